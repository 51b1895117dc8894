"""Backbones with any joining. They need torch, timm and mmengine, and no toolbox."""
from .ceit import CeiT
from .compact import CompactTransformer
from .folding import fold
from .simple_fpn import SimpleFPN
from .swin import Swin
from .t2t_vit import T2TViT
from .vit import DeiT
from .vit_adapter import ViTAdapter

__all__ = ['CeiT', 'CompactTransformer', 'DeiT', 'SimpleFPN', 'Swin', 'T2TViT', 'ViTAdapter',
           'fold']
