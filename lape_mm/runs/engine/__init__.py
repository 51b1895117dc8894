"""Hooks, optimizer wrappers and constructors that training configs name."""
from .exact_run import ExactRunHook, MissedValidationHook
from .finite_loss import FiniteLossHook
from .parameter_groups import (
    FreezingOptimWrapperConstructor,
    LayerDecayOptimWrapperConstructor,
)
from .position_hook import PositionHook
from .record_hook import RunRecordHook
from .safe_checkpoint import SafeCheckpointHook
from .wrappers import BFloat16OptimWrapper, CpuDataParallel

__all__ = ['BFloat16OptimWrapper', 'CpuDataParallel', 'ExactRunHook', 'FiniteLossHook',
           'FreezingOptimWrapperConstructor', 'LayerDecayOptimWrapperConstructor',
           'MissedValidationHook', 'PositionHook', 'RunRecordHook', 'SafeCheckpointHook']
