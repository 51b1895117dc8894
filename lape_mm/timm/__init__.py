"""Importing this adds our models to timm's registry.

    import lape_mm.timm, timm
    model = timm.create_model('lape_mm_deit_tiny_patch16_224.mpvg', num_classes=10, img_size=160)
"""
from .entries import ARCHITECTURES

__all__ = ['ARCHITECTURES']
