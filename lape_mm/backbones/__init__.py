"""Backbones with any joining. They need torch, timm and mmengine, and no toolbox."""
from .compact import CompactTransformer
from .swin import Swin
from .vit import DeiT
from .vit_adapter import ViTAdapter

__all__ = ['CompactTransformer', 'DeiT', 'Swin', 'ViTAdapter']
