"""Our models under timm's names, registered by importing this: ``deit_tiny_patch16_224.mpvg``.

    import lape_mm.timm, timm
    model = timm.create_model('deit_tiny_patch16_224.mpvg', num_classes=10, img_size=160)

The plain names of architectures that timm has are timm's own models, as before.
"""
from .entries import ARCHITECTURES, register

__all__ = ['ARCHITECTURES']

register()
