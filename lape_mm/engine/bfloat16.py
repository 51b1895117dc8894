"""bfloat16 autocast that works on the CPU too, and with the operators of detectors."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from torch import nn

from lape_mm.registry import OPTIM_WRAPPERS


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
