"""Mixed precision: float16 by mmengine's wrapper, bfloat16 by one that works on the CPU too."""
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from .errors import RunError

WRAPPERS = ('OptimWrapper', 'AmpOptimWrapper', 'BFloat16OptimWrapper')


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Autocast to bfloat16 on any device; it has float32's range, so no loss is scaled.

    mmengine's AmpOptimWrapper refuses the CPU, and mmcv's RoIAlign and NMS know no bfloat16.

    Args:
        features_only: whether only ``extract_feat`` (backbone and neck) is computed in bfloat16,
            and the heads take its features in float32.
    """

    def __init__(self, *, features_only: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.features_only = features_only

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model):
            if self.features_only:
                with _features_in_bfloat16(getattr(model, 'module', model)):
                    yield
            else:
                with _autocast():
                    yield


def set_amp(cfg: Config, kind: str) -> None:
    """Turns mixed precision on for training.

    Args:
        cfg: edited in place.
        kind: 'fp16', with dynamic loss scaling, or 'bf16', in detectors for backbone and neck.

    Raises:
        RunError: fp16 on the CPU, or an optimizer wrapper of another kind in the config.
    """
    wrapper = cfg.optim_wrapper
    if (present := wrapper.get('type', 'OptimWrapper')) not in WRAPPERS:
        raise RunError(f'--amp {kind}: optim_wrapper.type={present!r} cannot be turned into mixed '
                       f'precision, expected one of {", ".join(WRAPPERS)}')
    for setting in ('dtype', 'loss_scale', 'features_only'):
        wrapper.pop(setting, None)
    if kind == 'bf16':
        wrapper.update(type='BFloat16OptimWrapper',
                       features_only=cfg.get('default_scope') == 'mmdet')
    elif get_device() == 'cpu':
        raise RunError('--amp fp16 needs a GPU: on the CPU there is --amp bf16')
    else:
        wrapper.update(type='AmpOptimWrapper', dtype='float16', loss_scale='dynamic')


def _autocast() -> torch.autocast:
    return torch.autocast(get_device(), dtype=torch.bfloat16)


@contextmanager
def _features_in_bfloat16(model: nn.Module) -> Iterator[None]:
    extract = model.extract_feat

    def extract_feat(*args, **kwargs):
        with _autocast():
            features = extract(*args, **kwargs)
        return tuple(feature.float() for feature in features)

    model.extract_feat = extract_feat
    try:
        yield
    finally:
        del model.extract_feat
