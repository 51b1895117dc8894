"""bfloat16 on any device, and distributed training on CPUs."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from torch import nn

from lape_mm.registry import MODEL_WRAPPERS, OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Autocasts to bfloat16 on any device, the CPU included, without loss scaling.

    mmengine's AmpOptimWrapper refuses the CPU.

    Args:
        features_only: autocast only ``extract_feat`` (backbone and neck) and hand float32 features
            to the heads. Detectors need it: mmcv's RoIAlign and NMS do not support bfloat16.
    """

    def __init__(self, *, features_only: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.features_only = features_only

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        features = _features_in_bfloat16(getattr(model, 'module', model))
        with super().optim_context(model), features if self.features_only else _autocast():
            yield


def _autocast() -> torch.autocast:
    return torch.autocast(get_device(), dtype=torch.bfloat16)


@contextmanager
def _features_in_bfloat16(model: Any) -> Iterator[None]:
    extract = model.extract_feat

    def extract_feat(*args, **kwargs):
        with _autocast():
            return tuple(feature.float() for feature in extract(*args, **kwargs))

    model.extract_feat = extract_feat
    try:
        yield
    finally:
        del model.extract_feat


@MODEL_WRAPPERS.register_module()
class CpuDataParallel(MMDistributedDataParallel):
    """mmengine's wrapper for processes without a GPU. BatchNorm is not synchronised."""

    def __init__(self, module, **kwargs):
        super().__init__(revert_sync_batchnorm(module), **{**kwargs, 'device_ids': None})
