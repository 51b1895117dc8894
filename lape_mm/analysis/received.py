"""The position embedding (PE) that each layer receives, from the model's own plan."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm.backbones.encoder import Encoder
from lape_mm.backbones.swin import Swin, stage_grids
from lape_mm.position import PRESETS, Delivery

WAYS = ('attention', 'stream', 'bias')


@dataclass(frozen=True)
class Received:
    """What one layer receives.

    Attributes:
        values: (T, C), T = P prefix tokens and h * w patches row by row; of a bias
            (heads, T, T), in units of logits; None where nothing reaches the layer.
        way: how it comes, one of `WAYS`: added to the attention's input, through the layer's own
            LayerNorm of the tokens (the stream), or added to the logits.
        grid: (h, w) in tokens.
        prefix: P.
    """

    values: np.ndarray | None
    way: str
    grid: tuple[int, int]
    prefix: int

    @property
    def patches(self) -> np.ndarray | None:
        """The patches' part, (h * w, C) or (heads, h * w, h * w)."""
        if self.values is None:
            return None
        return self.values[self.prefix:] if self.way != 'bias' else \
            self.values[:, self.prefix:, self.prefix:]


def find_encoder(model: nn.Module) -> Encoder:
    """The backbone of this package in a model, or the model itself.

    Raises:
        ValueError: there is none, or it is folded, and its tables and norms are gone.
    """
    for module in model.modules():
        if isinstance(module, Encoder):
            if module.folded is not None:
                raise ValueError('the model is folded, its position embedding is gone: analyse '
                                 'the one that it was folded from')
            return module
    raise ValueError(f'{type(model).__name__} has no backbone of lape_mm')


def to_array(x: Tensor) -> np.ndarray:
    """A tensor as float64 on the CPU."""
    return x.detach().double().cpu().numpy()


@torch.no_grad()
def received(model: nn.Module, img_size: int | Sequence[int]) -> list[Received]:
    """What each of the L layers receives, for an image of (h, w) pixels.

    Where PE comes by the stream alone (default, share, unshare, and layer 0 of PVG), the entry is
    PE by itself through the layer's own LayerNorm of the tokens, ``LN_l(pos)``: LaPE's official
    script draws that. Under default it is so in every layer, since the residual stream carries PE
    on.

    Raises:
        ValueError: see `find_encoder`.
    """
    encoder = find_encoder(model)
    return received_at(encoder, encoder.grid_of(to_2tuple(img_size)))


@torch.no_grad()
def received_at(encoder: Encoder, grid: tuple[int, int]) -> list[Received]:
    """As `received`, for a grid of (h, w) tokens before the first layer."""
    plan, carried = encoder.delivery(grid), stream_alone(encoder, grid)
    layers = encoder.layers_in_order()
    prefix = len(encoder.prefix_tokens())
    grids = layer_grids(encoder, grid)
    entries = []
    values: Tensor | None
    for layer, module in enumerate(layers):
        if plan.bias is not None:
            values, way = plan.bias[layer], 'bias'
        elif plan.attention[layer] is not None:
            values, way = plan.attention[layer], 'attention'
        else:
            values, way = carried[layer], 'stream'
            values = None if values is None else module.attention_norm(values)
        entries.append(Received(None if values is None else to_array(values[0]), way,
                                grids[layer], prefix))
    return entries


@torch.no_grad()
def final_term(encoder: Encoder, grid: tuple[int, int], pooled: bool = False) -> np.ndarray | None:
    """What the last LayerNorm's output receives, (T, C) or None; ``pooled``, (1, C), as CeiT."""
    final = encoder.delivery(grid).final
    if final is None:
        return None
    return to_array(encoder.pool(final)) if pooled else to_array(final[0])


def layer_grids(encoder: Encoder, grid: tuple[int, int]) -> list[tuple[int, int]]:
    """The token grid (h, w) of each layer."""
    if not isinstance(encoder, Swin):
        return [grid] * encoder.depth
    stages = encoder.stage_layers()
    return [size for size, stage in zip(stage_grids(grid, len(stages)), stages) for _ in stage]


def stream_alone(encoder: Encoder, grid: tuple[int, int]) -> Sequence[Tensor | None]:
    """PE as the stream brings it to each layer, (1, T, C) each, or None where it does not.

    The model itself carries PE from grid to grid under share, whose plan is asked for here.
    """
    own = encoder.delivery(grid)
    if own.stream[0] is None:
        return own.stream
    if all(entry is not None for entry in own.stream):
        return own.stream
    with joined_as(encoder, 'share'):
        shared: Delivery = encoder.make_delivery(grid)
    return shared.stream


@contextmanager
def joined_as(encoder: Encoder, name: str) -> Iterator[None]:
    """Within, the encoder makes the plan of another joining of `PRESETS`."""
    own, encoder.joining = encoder.joining, PRESETS[name]
    try:
        yield
    finally:
        encoder.joining = own
