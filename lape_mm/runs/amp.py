"""Mixed precision, on the GPU by mmengine's wrapper and on the CPU by a small one of ours."""
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from .errors import RunError

WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'CpuAmpOptimWrapper')


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """bfloat16 autocast on the CPU, where mmengine's AmpOptimWrapper refuses to work."""

    @contextmanager
    def optim_context(self, model):
        with super().optim_context(model), torch.autocast('cpu', dtype=torch.bfloat16):
            yield


def set_amp(cfg: Config, kind: str) -> None:
    """Turns mixed precision on for training.

    Args:
        cfg: edited in place.
        kind: 'fp16', with dynamic loss scaling, or 'bf16', which needs none.

    Raises:
        RunError: fp16 on the CPU, or an optimizer wrapper of another kind in the config.
    """
    wrapper = cfg.optim_wrapper
    if (present := wrapper.get('type', 'OptimWrapper')) not in WRAPPERS:
        raise RunError(f'--amp {kind}: optim_wrapper.type={present!r} cannot be turned into mixed '
                       f'precision, expected one of {", ".join(WRAPPERS)}')
    for setting in ('dtype', 'loss_scale'):
        wrapper.pop(setting, None)
    if get_device() == 'cpu':
        if kind == 'fp16':
            raise RunError('--amp fp16 needs a GPU: on the CPU there is --amp bf16')
        wrapper.type = 'CpuAmpOptimWrapper'
    elif kind == 'fp16':
        wrapper.update(type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic')
    else:
        # bfloat16 has float32's range: the loss is not scaled
        wrapper.update(type='AmpOptimWrapper', dtype='bfloat16', loss_scale=1.0)
