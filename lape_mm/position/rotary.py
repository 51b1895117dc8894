"""Rotary position embedding (RoPE): rotates q and k, one pair of channels at a time.

The angles grow with the position of a patch, so that the logit of two patches depends only on their
offset. The d channels of a head form d / 2 pairs: half encode x, half y. Prefix tokens have
angle zero.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class RotaryKind:
    """One published form of RoPE."""

    temperature: float  # frequency i of n = d / 4 is temperature^(-i / n)
    x_first: bool = False  # x takes the first channels
    # None keeps patch indices, a number maps the grid to 0..number, 'centred' to -2 pi..2 pi
    span: float | str | None = None
    halves: bool = False  # pairs channel c with c + d / 2, rather than with its neighbour
    mixed: bool = False  # every pair in each head and layer learns its own x and y frequencies


ROTARY = {
    'rope': RotaryKind(100., x_first=True),                    # axial, arXiv 2403.13298
    'rope_mixed': RotaryKind(10., x_first=True, mixed=True),   # arXiv 2403.13298
    'rope_eva02': RotaryKind(10000., span=16.),                # arXiv 2303.11331
    'rope_dinov3': RotaryKind(100., span='centred', halves=True),  # arXiv 2508.10104
}


class Rotary(nn.Module):
    """Makes the angles of a form in `ROTARY` for a token grid; ``head_dim`` d is a multiple of 4.

    Only the mixed form has ``freqs`` (2, L, heads, d / 2): the frequencies of x, then of y.
    """

    def __init__(self, kind: str, *, depth: int, num_heads: int, head_dim: int):
        super().__init__()
        if head_dim % 4:
            raise ValueError(f'position={kind!r} needs embed_dim / num_heads to be a multiple '
                             f'of 4, got {head_dim}')
        self.kind, self.depth, self.pairs = ROTARY[kind], depth, head_dim // 2
        self.freqs = None
        if self.kind.mixed:  # the axial frequencies, turned by a random angle in each head
            turn = 2 * math.pi * torch.rand(depth, num_heads, 1)
            axes = torch.cat([turn, turn + math.pi / 2], dim=-1).repeat_interleave(
                self.pairs // 2, dim=-1)
            size = self.frequencies(turn.device).repeat(2)
            self.freqs = nn.Parameter(torch.stack([axes.cos() * size, axes.sin() * size]))

    def frequencies(self, device: torch.device) -> Tensor:
        """The frequencies of the axial forms, (d / 4,)."""
        steps = torch.arange(self.pairs // 2, device=device) / (self.pairs // 2)
        return self.kind.temperature ** -steps

    def positions(self, size: int, device: torch.device) -> Tensor:
        """Positions of the patches along one side of the grid, (size,)."""
        index = torch.arange(size, device=device, dtype=torch.float32)
        if self.kind.span is None:
            return index
        if self.kind.span == 'centred':
            return 2 * math.pi * (2 * (index + .5) / size - 1)
        return index / size * float(self.kind.span)

    def forward(self, grid: tuple[int, int], num_prefix_tokens: int, device: torch.device) \
            -> tuple[Tensor, ...]:
        """Returns L float32 entries (2, T, heads or 1, d / 2): each token's cosines and sines."""
        y, x = torch.meshgrid(*(self.positions(size, device) for size in grid), indexing='ij')
        axes = [axis.flatten()[:, None] for axis in ((x, y) if self.kind.x_first else (y, x))]
        if self.freqs is None:
            angles = torch.cat([axis * self.frequencies(device) for axis in axes], dim=1)[:, None]
        else:  # (L, N, heads, d / 2)
            first, second = self.freqs.float()[:, :, None]
            angles = axes[0][..., None] * first + axes[1][..., None] * second
        angles = F.pad(angles, (0, 0, 0, 0, num_prefix_tokens, 0))
        entries = torch.stack([angles.cos(), angles.sin()], dim=-4)
        return (entries,) * self.depth if self.freqs is None else entries.unbind(0)


def rotate(x: Tensor, rotary: Tensor, halves: bool) -> Tensor:
    """Rotates q or k (B, T, heads, d) by an entry of `PositionPlan.rotary`."""
    cos, sin = rotary
    a, b = x.chunk(2, dim=-1) if halves else x.unflatten(-1, (-1, 2)).unbind(-1)
    pair = a * cos - b * sin, a * sin + b * cos
    turned = torch.cat(pair, dim=-1) if halves else torch.stack(pair, dim=-1).flatten(-2)
    return turned.to(x.dtype)
