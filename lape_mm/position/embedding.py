"""Tables of position embedding (PE), and how they are resized to another token grid.

A table is (1, P + h * w, C): P prefix tokens, such as the class token, then the patches row by row.
A relative bias has one table ((2h - 1) (2w - 1), heads) per layer, as in Swin. The bias between two
patches depends only on their offset.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ('learnable', 'sincos_1d', 'sincos_2d')
RELATIVE = 'relative'
RESIZE_MODES = ('bicubic', 'bilinear', 'bicubic_antialias')


def sincos(positions: Tensor, dim: int) -> Tensor:
    """Maps positions (T,), in tokens, to sinusoids (T, dim) in float64; ``dim`` is even.

    Channel i is the sine (even i) or the cosine (odd i) of ``p / 10000^(2 (i // 2) / dim)``.
    """
    frequencies = 10000 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions.double()[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def position_table(kind: str, *, grid: tuple[int, int], dim: int, num_prefix_tokens: int,
                   std: float = .02) -> nn.Parameter:
    """Makes a PE table (1, P + h * w, C) of a kind in `KINDS`, as the official LaPE code does.

    ``learnable`` is drawn from a truncated normal distribution; ``std`` is DeiT's by default.
    ``sincos_1d`` gives prefix tokens the first positions. ``sincos_2d`` encodes x in the first half
    of the channels and y in the second, and gives prefix tokens zeros. Sinusoids are frozen
    parameters, so that checkpoints hold them.

    Raises:
        ValueError: for an unknown kind, or channels not divisible by 2 (1-D) or 4 (2-D).
    """
    if kind not in KINDS:
        raise ValueError(f'position={kind!r}: expected one of {", ".join(map(repr, KINDS))}')
    height, width = grid
    if kind == 'learnable':
        table = nn.Parameter(torch.zeros(1, num_prefix_tokens + height * width, dim))
        nn.init.trunc_normal_(table, std=std)
        return table
    parts = 2 if kind == 'sincos_1d' else 4
    if dim % parts:
        raise ValueError(f'position={kind!r} needs embed_dim to be a multiple of {parts}, '
                         f'got {dim}')
    if kind == 'sincos_1d':
        values = sincos(torch.arange(num_prefix_tokens + height * width), dim)
    else:
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
        patches = torch.cat([sincos(axis.flatten(), dim // 2) for axis in (x, y)], dim=1)
        values = torch.cat([patches.new_zeros(num_prefix_tokens, dim), patches])
    return nn.Parameter(values.float()[None], requires_grad=False)


def resize_table(table: Tensor, *, old: tuple[int, int], new: tuple[int, int],
                 num_prefix_tokens: int, mode: str = 'bicubic') -> Tensor:
    """Resizes a table's patch entries to another token grid and keeps its prefix entries.

    Maps (1, P + h * w, C) on the old grid (h, w) to (1, P + h' * w', C) on the new one. Equal
    grids give the table itself. DeiT, LaPE and ViT-Adapter use 'bicubic', Segmenter 'bilinear' and
    timm 'bicubic_antialias', all with ``align_corners=False``.
    """
    if tuple(old) == tuple(new):
        return table
    slots, patches = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]
    patches = patches.unflatten(1, old).permute(0, 3, 1, 2)
    # some devices cannot interpolate in half precision
    wide = patches.float() if patches.dtype in (torch.float16, torch.bfloat16) else patches
    mode, _, antialias = mode.partition('_')
    resized = F.interpolate(wide, size=tuple(new), mode=mode, align_corners=False,
                            antialias=bool(antialias))
    return torch.cat([slots, resized.to(table.dtype).flatten(2).transpose(1, 2)], dim=1)
