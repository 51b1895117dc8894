"""The layers of Swin: attention within windows that shift, and the merging of tokens."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from timm.models.swin_transformer import (
    PatchMerging,
    WindowAttention,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from .layers import EncoderLayer

MASKED = -100.  # the official logit of masked pairs, finite in half precision


def shift_mask(x: Tensor, window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """Masks pairs of tokens of a map (B, H, W, C) that the cyclic shift made neighbours.

    Returns (number of windows, N, N) with N = h * w of the window, to be added to the logits.
    """
    # only the border of the wrapped tokens lies inside a window
    rows, columns = (torch.arange(extent, device=x.device) >= extent - step
                     for extent, step in zip(x.shape[1:3], shift))
    regions = 2 * rows[:, None].long() + columns
    regions = window_partition(regions[None, :, :, None], window).flatten(1)
    apart = regions[:, :, None] != regions[:, None]
    return x.new_zeros(apart.shape).masked_fill(apart, MASKED)


class SwinBlock(EncoderLayer):
    """Swin's block, with the layer's entries of the PE plan.

    ``x + (S)W-MSA(LN(x) + pre_attn)``, then ``x + MLP(LN(x))``. PE is added before the map is
    shifted and cut into windows. Maps are padded to whole windows with zeros at the bottom and
    right, which stay in the softmax as keys (official detection code; timm shifts first). A
    direction in which the map is no larger than the window, (h, w) in tokens, is not shifted
    (official: neither direction is if ``min(resolution) <= window_size``).
    """

    def __init__(self, *, dim: int, num_heads: int, window: tuple[int, int], shifted: bool,
                 mlp_ratio: float, qkv_bias: bool, norm_eps: float, drop_path: float = 0.,
                 relative_bias: bool = True, pe_norm: nn.Module | None = None):
        super().__init__()
        self.shifted, self.pe_norm = shifted, pe_norm
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = WindowAttention(dim, num_heads, window_size=window, qkv_bias=qkv_bias)
        if not relative_bias:  # timm's attention adds zeros that are no parameter
            table = torch.zeros_like(self.attn.relative_position_bias_table)
            del self.attn.relative_position_bias_table
            self.attn.register_buffer('relative_position_bias_table', table, persistent=False)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, residual: Tensor | None = None,
                pre_attn: Tensor | None = None) -> Tensor:
        """(B, H, W, C) and the layer's entries of the plan, (1, H * W, C), to (B, H, W, C)."""
        if residual is not None:
            x = x + residual.reshape(x.shape[1:])
        y = self.norm1(x)
        y = self.attend(y if pre_attn is None else y + pre_attn.reshape(x.shape[1:]))
        x = x + self.drop_path(y)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def attend(self, y: Tensor) -> Tensor:
        """Attention within (shifted) windows, (B, H, W, C) to (B, H, W, C)."""
        if y.shape[0] == 0:
            # timm's attention rejects an empty batch; an image of zeros keeps the gradients
            return y + self.attend(y.new_zeros(1, *y.shape[1:]))[:0]
        (height, width), window = y.shape[1:3], self.attn.window_size
        down, right = (side // 2 if self.shifted and extent > side else 0
                       for extent, side in zip((height, width), window))
        y = F.pad(y, (0, 0, 0, -width % window[1], 0, -height % window[0]))
        padded, mask = y.shape[1:3], None
        if down or right:
            y = y.roll((-down, -right), dims=(1, 2))
            # made for each map, because its size may change
            mask = shift_mask(y, window, (down, right))
        windows = self.attn(window_partition(y, window).flatten(1, 2), mask)
        y = window_reverse(windows.unflatten(1, window), window, *padded)
        if down or right:
            y = y.roll((down, right), dims=(1, 2))
        return y[:, :height, :width]


class SwinStage(nn.Module):
    """Blocks of one grid, then, except in the last stage, the merging of 2 x 2 tokens."""

    def __init__(self, blocks: Sequence[SwinBlock], downsample: PatchMerging | None):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, ceil(H / 2), ceil(W / 2), 2 C), for tokens and for PE."""
        assert self.downsample is not None  # never called for the last stage
        return self.downsample(F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2)))
