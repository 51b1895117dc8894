"""LaPE, PVG and MPVG position embedding for vision transformers on the OpenMMLab stack.

Importing the package registers its backbones with mmengine, in scope ``lape_mm``; all else is
registered when it is first asked for, by the registries' locations. Without mmengine only
`lape_mm.position` is of use, which needs torch alone.
"""
from importlib import import_module

from .requirements import missing, require, warn_untested

__version__ = '0.1.0'
__all__ = ['CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', '__version__',
           'fold', 'missing', 'require']

warn_untested()
if not missing('mmengine'):
    from .backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold


def __getattr__(name: str):
    if name in ('CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', 'engine',
                'backbones', 'fold'):
        require('mmengine')
        # all but the engine, which brings mmengine's runner, is here wherever mmengine is
        return import_module(f'{__name__}.engine')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
