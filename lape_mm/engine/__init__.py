"""What training needs beside the toolboxes' own engines."""
from .bfloat16 import BFloat16OptimWrapper
from .frozen import FreezingOptimWrapperConstructor
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['BFloat16OptimWrapper', 'FreezingOptimWrapperConstructor',
           'LayerDecayOptimWrapperConstructor']
