"""LaPE, PVG and MPVG position embedding for vision transformers on the OpenMMLab stack.

Importing the package makes mmcv's operators available (`lape_mm.mmcv_ext`). It imports neither
torch nor mmengine: each name is imported on first use, and mmengine's registries find
``lape_mm.X`` on their own. Without mmengine you can still use `lape_mm.position`, which needs only
torch and timm.
"""
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from . import mmcv_ext
from .requirements import missing, require, untested

if TYPE_CHECKING:
    from .backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold

__version__ = '0.2.0'
__all__ = ['CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', '__version__',
           'fold', 'missing', 'require']

MODULES = ('backbones', 'checkpoints', 'position', 'runs')

mmcv_ext.install()
if other_versions := untested():
    warnings.warn('; '.join(other_versions), stacklevel=2)


def __getattr__(name: str):
    if name in MODULES:
        if name != 'position':
            require('mmengine')
        return import_module(f'{__name__}.{name}')
    if name in __all__:
        require('mmengine')
        return getattr(import_module(f'{__name__}.backbones'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *MODULES})
