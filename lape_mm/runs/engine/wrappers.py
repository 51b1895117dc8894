"""bfloat16 on any device, and distributed training on CPUs."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper

from lape_mm.registry import MODEL_WRAPPERS, OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Autocasts to bfloat16 on any device, the CPU included, without loss scaling.

    mmengine's AmpOptimWrapper refuses the CPU. ``features_only`` autocasts only ``extract_feat``
    and gives float32 to the heads: mmcv's RoIAlign and NMS do not support bfloat16.
    """

    def __init__(self, *, features_only: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.features_only = features_only

    @contextmanager
    def optim_context(self, model: Any) -> Iterator[None]:
        autocast = torch.autocast(get_device(), dtype=torch.bfloat16)
        with super().optim_context(model):
            if not self.features_only:
                with autocast:
                    yield
                return
            model = getattr(model, 'module', model)
            extract = autocast(model.extract_feat)
            model.extract_feat = lambda *args, **kwargs: tuple(
                feature.float() for feature in extract(*args, **kwargs))
            try:
                yield
            finally:
                del model.extract_feat


@MODEL_WRAPPERS.register_module()
class CpuDataParallel(MMDistributedDataParallel):
    """mmengine's DistributedDataParallel for CPU processes, without synchronised BatchNorm."""

    def __init__(self, module, **kwargs):
        super().__init__(revert_sync_batchnorm(module), **{**kwargs, 'device_ids': None})
