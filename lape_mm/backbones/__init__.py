"""Backbones with any joining. They need torch, timm and mmengine, and no toolbox."""
from .vit import DeiT
from .vit_adapter import ViTAdapter

__all__ = ['DeiT', 'ViTAdapter']
