"""Learning rates that decay from layer to layer, and the weight decay that goes with them."""
from __future__ import annotations

from typing import Any

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor

from lape_mm.registry import OPTIM_WRAPPER_CONSTRUCTORS

SETTINGS = {'layer_decay_rate': 1., 'decay_embeddings': False}


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning-rate decay for backbones that know the depth of their parameters.

    A parameter of depth d of D (see `Encoder.get_layer_depth`) learns at
    ``lr * rate ** (D - 1 - d)``: a block's PE norm with its block, all that is not the ViT's at
    the full rate. Biases, 1-D parameters and the backbone's ``no_weight_decay`` take no weight
    decay, as in DeiT.

    ``paramwise_cfg`` takes ``layer_decay_rate`` (1.0: no decay from layer to layer) and
    ``decay_embeddings`` (the backbone's ``no_weight_decay`` is decayed nonetheless, as the
    official ViT-Adapter segmentation code does by comparing bare names with prefixed ones).
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None):
        given = dict(paramwise_cfg or {})
        if unknown := sorted(set(given) - set(SETTINGS)):
            raise ValueError(f'paramwise_cfg has no {unknown[0]!r}: expected {list(SETTINGS)}')
        super().__init__(optim_wrapper_cfg, {**SETTINGS, **given})
        if not 0 < self.paramwise_cfg['layer_decay_rate'] <= 1:
            raise ValueError(f'layer_decay_rate={self.paramwise_cfg["layer_decay_rate"]}: '
                             'expected 0 < rate <= 1')

    def add_params(self, params: list[dict], module: Any, **kwargs) -> None:
        """Fills ``params`` with one group for each pair of learning rate and weight decay."""
        backbone, prefix = (module.backbone, 'backbone.') if hasattr(module, 'backbone') else \
            (module, '')
        if not hasattr(backbone, 'get_layer_depth') or not hasattr(backbone, 'no_weight_decay'):
            raise TypeError(f'{type(self).__name__} needs a backbone with get_layer_depth and '
                            f'no_weight_decay, got {type(backbone).__name__}')
        exempt = set()
        if not self.paramwise_cfg['decay_embeddings']:
            exempt = {prefix + name for name in backbone.no_weight_decay()}
        groups: dict[tuple[int, bool], dict] = {}
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            levels = 0
            if name.startswith(prefix):
                depth, depths = backbone.get_layer_depth(name, prefix)
                levels = depths - 1 - depth
            decays = parameter.ndim > 1 and not name.endswith('.bias') and name not in exempt
            group = groups.setdefault((levels, decays), {'params': [], 'names': []})
            group['params'].append(parameter)
            group['names'].append(name)
        for (levels, decays), group in sorted(groups.items()):
            group['lr'] = self.base_lr * self.paramwise_cfg['layer_decay_rate'] ** levels
            if self.base_wd is not None:
                group['weight_decay'] = self.base_wd if decays else 0.
            print_log(f'lr {group["lr"]:.3g}, weight decay {group.get("weight_decay")}: '
                      f'{len(group["params"])} parameters, {group.pop("names")[0]} ...',
                      logger='current')
            params.append(group)
