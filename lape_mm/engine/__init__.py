"""What training needs beside the toolboxes' own engines."""
from .bfloat16 import BFloat16OptimWrapper
from .cpu_parallel import CpuDataParallel
from .device_loop import DeviceLoader, DeviceTrainLoop
from .exact_run import ExactRunHook, MissedValidationHook
from .finite_loss import FiniteLossHook
from .fold_hook import FoldHook
from .frozen import FreezingOptimWrapperConstructor
from .layer_decay import LayerDecayOptimWrapperConstructor
from .position_hook import PositionHook
from .record_hook import RunRecordHook
from .safe_checkpoint import SafeCheckpointHook

__all__ = ['BFloat16OptimWrapper', 'CpuDataParallel', 'DeviceLoader', 'DeviceTrainLoop',
           'ExactRunHook', 'FiniteLossHook', 'FoldHook', 'FreezingOptimWrapperConstructor',
           'LayerDecayOptimWrapperConstructor', 'MissedValidationHook', 'PositionHook',
           'RunRecordHook', 'SafeCheckpointHook']
