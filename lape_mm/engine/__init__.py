"""What training needs beside the toolboxes' own engines."""
from .bfloat16 import BFloat16OptimWrapper
from .device_loop import DeviceLoader, DeviceTrainLoop
from .fold_hook import FoldHook
from .frozen import FreezingOptimWrapperConstructor
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['BFloat16OptimWrapper', 'DeviceLoader', 'DeviceTrainLoop', 'FoldHook',
           'FreezingOptimWrapperConstructor', 'LayerDecayOptimWrapperConstructor']
