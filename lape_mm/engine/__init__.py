"""What training needs beside the toolboxes' own engines."""
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['LayerDecayOptimWrapperConstructor']
