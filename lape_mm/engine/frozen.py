"""Parameters that a recipe leaves as they are."""
from __future__ import annotations

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from lape_mm.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class FreezingOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, which withholds from the optimizer what has ``lr_mult=0``.

    In a group with a learning rate of 0 a parameter would move as soon as a schedule with an
    ``eta_min`` pulls that rate up. Withheld parameters take a gradient still, so that
    DistributedDataParallel needs no search for unused ones.
    """

    def add_params(self, params: list[dict], module: nn.Module, **kwargs) -> None:
        """Fills ``params`` with one group for each parameter that learns."""
        super().add_params(params, module, **kwargs)
        params[:] = [group for group in params if group.get('lr') != 0.]
