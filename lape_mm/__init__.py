"""LaPE, PVG and MPVG position embedding for vision transformers on the OpenMMLab stack.

Importing the package registers its parts with mmengine, in scope ``lape_mm``. Without mmengine
only `lape_mm.position` is of use, which needs torch alone.
"""
from .requirements import missing, require, warn_untested

__version__ = '0.1.0'
__all__ = ['CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', '__version__',
           'fold', 'missing', 'require']

warn_untested()
if not missing('mmengine'):
    from . import engine as engine
    from .backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold


def __getattr__(name: str):
    # reached only where the import above did not happen
    if name in ('CeiT', 'CompactTransformer', 'DeiT', 'Swin', 'T2TViT', 'ViTAdapter', 'engine',
                'backbones', 'fold'):
        require('mmengine')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
