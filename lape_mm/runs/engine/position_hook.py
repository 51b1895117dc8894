"""Logs how a model uses position embedding (PE) while it trains."""
from __future__ import annotations

import math
from functools import partial

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from torch import Tensor, nn

from lape_mm.analysis.measures import correlation, norms
from lape_mm.analysis.pe_per_layer import find_encoder, pe_of_grid, to_array
from lape_mm.backbones.encoder import Encoder
from lape_mm.registry import HOOKS


@HOOKS.register_module()
class PositionHook(Hook):
    """Logs token-PE correlation, PE norms and the last LayerNorm to the run's visualizer.

    Its backends (files, TensorBoard, W&B) get these scalars by iteration::

        position/correlation/layer{l}   of the normalised tokens, averaged over the batch, with the
                                        PE that the layer receives (MPVG paper, figure 4)
        position/norm/layer{l}          L2 norm of that PE, averaged over the patches
        position/last_norm/beta_variance, gamma_variance    (figure 6)

    Layers without PE, or with a relative bias, are left out. The hook costs time only in the
    iterations that it logs, one in ``interval``. With torch.compile, which bypasses forward hooks,
    correlations are missing.
    """

    priority = 'BELOW_NORMAL'

    def __init__(self, interval: int = 100):
        self.interval = interval
        self.handles: list = []
        self.tokens: dict[int, Tensor] = {}

    def before_train(self, runner) -> None:
        self.encoder: Encoder = find_encoder(runner.model)
        self.grid = self.encoder.grid

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if not self.every_n_train_iters(runner, self.interval) or not is_main_process():
            return
        layers = self.encoder.layers_in_order()
        self.handles = [layers[0].register_forward_pre_hook(self._note_grid)] + [
            module.attention_norm.register_forward_hook(partial(self._note_tokens, layer))
            for layer, module in enumerate(layers)]

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if not self.handles:
            return
        while self.handles:
            self.handles.pop().remove()
        runner.visualizer.add_scalars(self._scalars(), step=runner.iter + 1)
        self.tokens.clear()

    def _note_grid(self, module: nn.Module, args) -> None:
        height, width = args[0].shape[1:3] if args[0].ndim == 4 else args[1]
        self.grid = height, width

    def _note_tokens(self, layer: int, module: nn.Module, args, output: Tensor) -> None:
        # the first forward pass only: activation checkpointing and accumulation repeat it
        if layer not in self.tokens:
            self.tokens[layer] = output.detach().flatten(1, -2).float().mean(dim=0)

    @torch.no_grad()
    def _scalars(self) -> dict[str, float]:
        scalars = {}
        for layer, entry in enumerate(pe_of_grid(self.encoder, self.grid)):
            if entry.patches is None or entry.way == 'attn_bias':
                continue
            scalars[f'norm/layer{layer}'] = norms(entry.patches).mean()
            if layer in self.tokens:
                tokens = to_array(self.tokens[layer])[entry.num_prefix_tokens:]
                scalars[f'correlation/layer{layer}'] = correlation(tokens, entry.patches)
        if (norm := self.encoder.norm) is not None:
            scalars['last_norm/gamma_variance'] = norm.weight.var(correction=0).item()
            scalars['last_norm/beta_variance'] = norm.bias.var(correction=0).item()
        return {f'position/{name}': float(value) for name, value in scalars.items()
                if math.isfinite(value)}
