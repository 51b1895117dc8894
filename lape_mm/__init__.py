"""LaPE, PVG and MPVG position embedding for vision transformers on the OpenMMLab stack.

Importing the package registers its backbones with mmengine, in scope ``lape_mm``; all else is
registered when it is first asked for, by the registries' locations. Without mmengine only
`lape_mm.position` is of use, which needs torch and timm alone.
"""
import sys
from importlib import import_module

from .requirements import missing, require, warn_untested

__version__ = '0.1.0'
__all__ = ['CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', '__version__',
           'fold', 'missing', 'require']

# `python -m lape_mm.doctor` imports this first, and has to speak where an import below fails
if 'lape_mm.doctor' not in sys.orig_argv:
    warn_untested()
if 'lape_mm.doctor' not in sys.orig_argv and not missing('mmengine'):
    from .backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold


def __getattr__(name: str):
    if name == 'engine' and not missing('mmengine'):
        # on demand, since it brings mmengine's runner, which a backbone alone does not need
        return import_module(f'{__name__}.engine')
    if name in (*__all__, 'backbones', 'engine'):  # reached where mmengine is missing
        require('mmengine')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
