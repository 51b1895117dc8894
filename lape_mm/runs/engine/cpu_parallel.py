"""Distributed training on CPUs."""
from mmengine.model import MMDistributedDataParallel, revert_sync_batchnorm

from lape_mm.registry import MODEL_WRAPPERS


@MODEL_WRAPPERS.register_module()
class CpuDataParallel(MMDistributedDataParallel):
    """mmengine's wrapper for processes without a GPU. BatchNorm is not synchronised."""

    def __init__(self, module, **kwargs):
        super().__init__(revert_sync_batchnorm(module), **{**kwargs, 'device_ids': None})
