"""Learning rate and weight decay of each parameter."""
from __future__ import annotations

import re
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from lape_mm.backbones.checks import check_positive
from lape_mm.registry import OPTIM_WRAPPER_CONSTRUCTORS

SETTINGS = {'layer_decay_rate': 1., 'decay_embeddings': False, 'pe_norm_lr_mult': 1.}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class FreezingOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, but parameters with ``lr_mult=0`` stay out of the optimizer.

    An ``eta_min`` of the schedule would raise their learning rate above 0. They still get
    gradients, so DistributedDataParallel need not search for unused parameters.
    """

    def add_params(self, params: list[dict], module: nn.Module, **kwargs) -> None:
        super().add_params(params, module, **kwargs)
        params[:] = [group for group in params if group.get('lr') != 0.]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning-rate decay for encoders of this package.

    A parameter at depth d of D (see `Encoder.get_layer_depth`) learns at
    ``lr * rate ** (D - 1 - d)``. A PE norm has the depth of its block; everything outside the ViT
    learns at the full rate. As in DeiT, biases, 1-D parameters and those that the backbone lists in
    ``no_weight_decay`` have no weight decay.

    ``paramwise_cfg`` takes ``layer_decay_rate`` (default 1.0: the same rate for all layers),
    ``decay_embeddings`` (whether ``no_weight_decay`` is ignored, as in the official ViT-Adapter
    segmentation code) and ``pe_norm_lr_mult`` (a further factor for the PE norms, useful
    when they are grafted onto pre-trained weights; default 1.0). Other settings and values raise
    ValueError; a model without such an encoder raises TypeError.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None):
        given = dict(paramwise_cfg or {})
        if unknown := sorted(set(given) - set(SETTINGS)):
            raise ValueError(f'paramwise_cfg has no {unknown[0]!r}: expected {list(SETTINGS)}')
        super().__init__(optim_wrapper_cfg, {**SETTINGS, **given})
        self.rate = self.paramwise_cfg['layer_decay_rate']
        if not 0 < self.rate <= 1:
            raise ValueError(f'layer_decay_rate={self.rate}: expected 0 < rate <= 1')
        check_positive('pe_norm_lr_mult', self.paramwise_cfg['pe_norm_lr_mult'])

    def add_params(self, params: list[dict], module: Any, **kwargs) -> None:
        # the model itself, or below it: model.backbone, model.detector.backbone, ...
        found = {f'{name}.' if name else '': part for name, part in module.named_modules()
                 if hasattr(part, 'get_layer_depth') and hasattr(part, 'no_weight_decay')}
        if not found:
            kind = type(getattr(module, 'backbone', module)).__name__
            raise TypeError(f'{type(self).__name__} needs a backbone with get_layer_depth and '
                            f'no_weight_decay, got {kind}')
        exempt = set() if self.paramwise_cfg['decay_embeddings'] else {
            prefix + name for prefix, part in found.items() for name in part.no_weight_decay()}
        groups: dict[tuple[int, float, bool], list] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            levels, factor = 0, 1.
            for prefix in (prefix for prefix in found if name.startswith(prefix)):
                depth, depths = found[prefix].get_layer_depth(name, prefix)
                levels = depths - 1 - depth
                if re.search(r'\b(last_)?pe_norm\.', name):
                    factor = self.paramwise_cfg['pe_norm_lr_mult']
            decays = parameter.ndim > 1 and not name.endswith('.bias') and name not in exempt
            groups.setdefault((levels, factor, decays), []).append(parameter)
        for (levels, factor, decays), parameters in sorted(groups.items()):
            group = dict(params=parameters, lr=self.base_lr * self.rate ** levels * factor)
            if self.base_wd is not None:
                group['weight_decay'] = self.base_wd if decays else 0.
            print_log(f'lr {group["lr"]:.3g}, weight decay {group.get("weight_decay")}: '
                      f'{len(parameters)} parameters', logger='current')
            params.append(group)
