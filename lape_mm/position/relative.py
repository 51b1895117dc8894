"""2-D relative position bias in the attention's logits, plain or through a LayerNorm of its own.

The bias of a pair of patches depends on their offset alone: a table (offsets, heads) a layer, as in
Swin. LaPE gives it a LayerNorm too, over the key axis (the official code's joining "LN").
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers.pos_embed_rel import gen_relative_position_index
from torch import Tensor, nn

from .joining import Delivery

RELATIVE = 'relative'
JOININGS = {'default': False, 'lape': True}


def relative_table(grid: tuple[int, int], num_heads: int) -> nn.Parameter:
    """A new table ((2h - 1) (2w - 1), heads) of zeros, as in the official LaPE code."""
    height, width = grid
    return nn.Parameter(torch.zeros((2 * height - 1) * (2 * width - 1), num_heads))


def relative_norm(joining, grid: tuple[int, int]) -> nn.LayerNorm | None:
    """The LayerNorm over the keys of one query that a joining gives each layer's bias, or None.

    Its eps is torch's default, 1e-5, whatever the model's is, as in the official code.

    Raises:
        ValueError: for joinings that say nothing about a bias.
    """
    if not isinstance(joining, str) or joining not in JOININGS:
        raise ValueError(f"joining={joining!r}: position='relative' knows "
                         f'{" and ".join(map(repr, JOININGS))}')
    return nn.LayerNorm(grid[0] * grid[1]) if JOININGS[joining] else None


def relative_index(grid: tuple[int, int]) -> Tensor:
    """(N, N) rows of the table for each pair of the N = h * w patches, query by key."""
    return gen_relative_position_index(grid)


def relative_plan(tables: Sequence[Tensor], norms: Sequence[nn.Module | None], index: Tensor,
                  prefix: int) -> Delivery:
    """The plan that delivers each layer its bias, and nothing else.

    Args:
        tables: a table a layer, see `relative_table`.
        norms: a layer's own norm over the key axis, or None.
        index: see `relative_index`.
        prefix: number of prefix tokens, whose rows and columns stay zero.
    """
    biases = []
    for table, norm in zip(tables, norms):
        bias = table[index].permute(2, 0, 1)[None]
        bias = bias if norm is None else norm(bias)
        biases.append(F.pad(bias, (prefix, 0, prefix, 0)))
    nothing = (None,) * len(biases)
    return Delivery(nothing, nothing, bias=tuple(biases))
