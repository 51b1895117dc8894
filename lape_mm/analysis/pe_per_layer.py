"""Reads from a model's plan the position embedding (PE) that each layer receives."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm.backbones.encoder import Encoder
from lape_mm.position import PRESETS


@dataclass(frozen=True)
class LayerPE:
    """The PE of one layer.

    Attributes:
        values: (T, C) with T = P prefix tokens + h * w patches; a bias is (heads, T, T), in
            logits. None if the layer receives nothing.
        way: the field of `lape_mm.position.PositionPlan` that carries the PE: 'pre_attn',
            'attn_bias' or 'residual'. Residual PE is shown after the layer's own LayerNorm.
        grid: (h, w) in tokens.
        num_prefix_tokens: P.
    """

    values: np.ndarray | None
    way: str
    grid: tuple[int, int]
    num_prefix_tokens: int

    @property
    def patches(self) -> np.ndarray | None:
        """``values`` without prefix tokens: (h * w, C) or (heads, h * w, h * w)."""
        if self.values is None:
            return None
        first = self.num_prefix_tokens
        return self.values[first:] if self.way != 'attn_bias' else self.values[:, first:, first:]


def find_encoder(model: nn.Module) -> Encoder:
    """The first lape_mm backbone in a model; ValueError if there is none or if it is folded."""
    for module in model.modules():
        if isinstance(module, Encoder):
            if module.folded is not None:
                raise ValueError('a folded model has no position embedding: analyse the model '
                                 'before folding')
            return module
    raise ValueError(f'{type(model).__name__} has no backbone of lape_mm')


def to_array(x: Tensor) -> np.ndarray:
    """A tensor as float64 on the CPU."""
    return x.detach().double().cpu().numpy()


def pe_per_layer(model: nn.Module, img_size: int | Sequence[int]) -> list[LayerPE]:
    """The PE of each layer, for an image of (h, w) pixels.

    PE that only the residual stream carries (default, share, unshare, and layer 0 of PVG and MPVG)
    is shown after the layer's own LayerNorm, ``LN_l(pos)``, as in LaPE's official script.
    ValueError if the model's lape_mm backbone is missing or folded.
    """
    encoder = find_encoder(model)
    return pe_of_grid(encoder, encoder.grid_of(to_2tuple(img_size)))


@torch.no_grad()
def pe_of_grid(encoder: Encoder, grid: tuple[int, int]) -> list[LayerPE]:
    """Like `pe_per_layer`, but for a grid of (h, w) tokens at the first layer."""
    plan, carry = encoder.plan(grid), encoder.carry(grid)
    residual = plan.residual
    if residual[0] is not None and residual[-1] is None:
        # what enters at layer 0 stays in the stream, as if `share` had added it to each layer
        residual = PRESETS['share'].plan(encoder.tables(grid), [None] * encoder.depth,
                                         carry=carry).residual
    entries = []
    for layer, module in enumerate(encoder.layers_in_order()):
        if layer in carry:
            grid = -(-grid[0] // 2), -(-grid[1] // 2)
        ways = {'attn_bias': plan.attn_bias[layer], 'pre_attn': plan.pre_attn[layer]}
        way = next((way for way in ways if ways[way] is not None), 'residual')
        values = ways.get(way, residual[layer])
        if way == 'residual' and values is not None:
            values = module.attention_norm(values)
        entries.append(LayerPE(None if values is None else to_array(values[0]), way, grid,
                               encoder.num_prefix_tokens))
    return entries
