"""Folding: turns the PE plan into constants for one image size. Nothing else caches a plan."""
from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lape_mm.position import PositionPlan

from .checks import image_sides
from .encoder import Encoder
from .layers import Attention, EncoderLayer
from .vit import VisionTransformer

Model = TypeVar('Model', bound=nn.Module)
BY_LAYER = ('residual', 'pre_attn', 'attn_bias', 'rotary')


class FoldedPlan(nn.Module):
    """A plan's entries as buffers, for one grid of (h, w) tokens."""

    post_norm: Tensor | None

    def __init__(self, plan: PositionPlan, grid: tuple[int, int]):
        super().__init__()
        self.grid = grid
        self.counts = {name: len(getattr(plan, name)) for name in BY_LAYER}
        for name in BY_LAYER:
            for layer, entry in enumerate(getattr(plan, name)):
                self.register_buffer(f'{name}{layer}', entry)
        self.register_buffer('post_norm', plan.post_norm)
        self.register_load_state_dict_pre_hook(refuse_unfolded)

    def forward(self, grid: tuple[int, int]) -> PositionPlan:
        """Returns the plan; ValueError if it was folded for another grid."""
        if tuple(grid) != self.grid:
            raise ValueError(f'folded for {self.grid[0]} x {self.grid[1]} tokens, got '
                             f'{grid[0]} x {grid[1]}: fold the model for that image size')
        return PositionPlan(post_norm=self.post_norm, **{
            name: tuple(getattr(self, f'{name}{layer}') for layer in range(count))
            for name, count in self.counts.items()})


def refuse_unfolded(plan: nn.Module, state_dict: Mapping, prefix: str, *_) -> None:
    """Raises RuntimeError if the weights lack the plan; mmengine alone would only warn."""
    if lacking := [name for name, _ in plan.named_buffers() if prefix + name not in state_dict]:
        raise RuntimeError(f'this model is folded, and the weights are those of an unfolded one '
                           f'({prefix}{lacking[0]} is missing): load them first, then fold')


@torch.no_grad()
def fold(model: Model, img_size: int | Sequence[int]) -> Model:
    """Returns a copy of a model in evaluation mode, with constant position embedding.

    The copy raises ValueError for other image sizes, and RuntimeError for training mode and for the
    weights of an unfolded model.

    Args:
        model: a backbone of this package, or a model that contains one.
        img_size: side or (h, w) in pixels of the images that enter the backbone, padding included.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if not encoders:
        raise ValueError(f'fold: {type(model).__name__} has no backbone of lape_mm')
    if any(encoder.folded is not None for encoder in encoders):
        raise ValueError('fold: the model is folded already; fold the original')
    model = copy.deepcopy(model).eval()
    for encoder in [module for module in model.modules() if isinstance(module, Encoder)]:
        grid = encoder.grid_of(image_sides(img_size, encoder.stride))
        encoder.folded = FoldedPlan(encoder.make_plan(grid), grid)
        for name in encoder.table_names:
            setattr(encoder, name, None)
        encoder.last_pe_norm = None
        if isinstance(encoder, VisionTransformer):
            encoder.relative_index = encoder.rope = None
        for module in encoder.modules():
            if isinstance(module, (EncoderLayer, Attention)):
                module.pe_norm = None
            if isinstance(module, Attention):
                module.relative_position_bias_table = None
    return model
