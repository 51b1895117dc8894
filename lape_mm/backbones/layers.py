"""Attention and the pre-norm transformer block that all plain ViTs of this package share."""
from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from torch import Tensor, nn


def add(x: Tensor, y: Tensor, source: nn.Module) -> Tensor:
    """``x + y``; into y where no gradient needs it and nobody watches its ``source``.

    It spares new memory: at 1024 pixels a pyramid of ViT-Adapter takes 16 MB, and is added to
    twelve times.
    """
    if torch.is_grad_enabled() or x.dtype != y.dtype or torch.compiler.is_compiling() \
            or any(module._forward_hooks for module in source.modules()):
        return x + y
    return y.add_(x)


def add_scaled(x: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """``x + scale * y``, in one pass where no gradient needs the product."""
    if torch.is_grad_enabled() or x.dtype != y.dtype:
        return x + scale * y
    return torch.addcmul(x, scale, y)


class Attention(nn.Module):
    """Multi-head self-attention, over all tokens or over windows of the patch grid.

    Keys as in DeiT: ``qkv`` (rows ordered q, k, v, each split head by head) and ``proj``.

    Windows follow the official ViT-Adapter (detection): q, k and v are made first and then padded
    with zeros to whole windows, so that padded positions stay in the softmax as keys of logit 0.

    Args:
        dim: channels C.
        num_heads: heads; divides C.
        qkv_bias: whether ``qkv`` has a bias.
        window_size: side of the windows in tokens; None for global attention.
        drop: probability of dropping an attention weight in training.
        bias_table, pe_norm: of a relative position bias, see `lape_mm.position.relative`. They
            are registered here, because checkpoints want them here; the plan reads them.
    """

    def __init__(self, *, dim: int, num_heads: int, qkv_bias: bool = True,
                 window_size: int | None = None, drop: float = 0.,
                 bias_table: nn.Parameter | None = None, pe_norm: nn.LayerNorm | None = None):
        super().__init__()
        self.num_heads, self.window_size, self.drop = num_heads, window_size, drop
        self.relative_position_bias_table = bias_table
        self.pe_norm = pe_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int], bias: Tensor | None = None,
                keep: int | None = None) -> Tensor:
        """(B, T, C) to (B, T, C); with windows, T is exactly the grid's h * w.

        ``bias``, (1, heads, T, T), is added to the scaled logits of global attention. With
        ``keep`` the first so many tokens alone attend, to all: (B, T, C) to (B, keep, C).
        """
        if keep is not None and type(self.qkv) is not nn.Linear:  # quantised, LoRA and the like
            q, k, v = self._split(self.qkv(x))
            return self.proj(self._mix(q[:, :, :keep], k, v,
                                       None if bias is None else bias[:, :, :keep]))
        if keep is not None:
            parts = (x.shape[2], 2 * x.shape[2])
            weights, shifts = self.qkv.weight.split(parts), (None, None)
            if self.qkv.bias is not None:
                shifts = self.qkv.bias.split(parts)
            q, = self._split(F.linear(x[:, :keep], weights[0], shifts[0]))
            k, v = self._split(F.linear(x, weights[1], shifts[1]))
            return self.proj(self._mix(q, k, v, None if bias is None else bias[:, :, :keep]))
        qkv = self.qkv(x)
        mix = (self._attend(qkv, bias) if self.window_size is None else
               self._attend_windows(qkv, grid, self.window_size))
        return self.proj(mix)

    def _attend(self, qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        """(B, T, 3 C) to (B, T, C)."""
        q, k, v = self._split(qkv)
        return self._mix(q, k, v, bias)

    def _split(self, rows: Tensor) -> Tensor:
        """(B, T, n C) to (n, B, heads, T, C / heads)."""
        width = self.proj.in_features
        return rows.unflatten(2, (-1, self.num_heads, width // self.num_heads)) \
            .permute(2, 0, 3, 1, 4)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Queries, keys and values (B, heads, T, C / heads) to (B, T of q, C)."""
        mix = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if bias is None else bias.to(q.dtype),
            dropout_p=self.drop if self.training else 0.)
        return mix.transpose(1, 2).flatten(2)

    def _attend_windows(self, qkv: Tensor, grid: tuple[int, int], side: int) -> Tensor:
        batch, channels, (height, width) = qkv.shape[0], qkv.shape[2], grid
        bottom, right = -height % side, -width % side
        qkv = F.pad(qkv.unflatten(1, grid), (0, 0, 0, right, 0, bottom))
        rows, columns = (height + bottom) // side, (width + right) // side
        # channels are named throughout: in an empty batch -1 could be anything
        qkv = qkv.reshape(batch, rows, side, columns, side, channels).transpose(2, 3)
        mix = self._attend(qkv.reshape(batch * rows * columns, side * side, channels))
        mix = mix.reshape(batch, rows, columns, side, side, channels // 3).transpose(2, 3)
        mix = mix.reshape(batch, height + bottom, width + right, channels // 3)
        return mix[:, :height, :width].flatten(1, 2)


class Block(nn.Module):
    """Pre-norm transformer block that takes the layer's share of the PE plan.

    ``x + MSA(LN(x) + pe)``, then ``x + MLP(LN(x))`` (equations 3 and 6 of the MPVG paper). Its
    own PE norm is registered here, as ``pe_norm``, because checkpoints want it here; the joining
    applies it.

    Args:
        dim, num_heads, mlp_ratio, qkv_bias, norm_eps: of the transformer.
        drop_path: probability of dropping a residual branch, a sample at a time.
        layer_scale: adds ``gamma1`` and ``gamma2``, (C,) each and ones at first.
        pe_norm: the LayerNorm of PE, or None where this layer receives none.
        attention: further arguments of `Attention`.
    """

    def __init__(self, *, dim: int, num_heads: int, mlp_ratio: float = 4., qkv_bias: bool = True,
                 norm_eps: float = 1e-6, drop_path: float = 0., layer_scale: bool = False,
                 pe_norm: nn.Module | None = None, attention: Mapping | None = None):
        super().__init__()
        self.pe_norm = pe_norm
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = Attention(dim=dim, num_heads=num_heads, qkv_bias=qkv_bias,
                              **(attention or {}))
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.make_feed_forward(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)
        self.gamma1 = nn.Parameter(torch.ones(dim)) if layer_scale else None
        self.gamma2 = nn.Parameter(torch.ones(dim)) if layer_scale else None

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The norm before the attention, to whose output PE is added."""
        return self.norm1

    def forward(self, x: Tensor, pe: Tensor | None, grid: tuple[int, int],
                bias: Tensor | None = None, keep: int | None = None) -> Tensor:
        """(B, T, C), PE of (1, T, C) or None, and a bias as `Attention` takes it, to (B, T, C).

        With ``keep`` only the first so many tokens are computed, (B, keep, C).
        """
        y = self.norm1(x)
        y = self.attn(y if pe is None else add(pe, y, self.norm1), grid, bias, keep)
        x = self.join(x if keep is None else x[:, :keep], y, self.gamma1)
        return self.join(x, self.feed_forward(self.norm2(x), grid), self.gamma2)

    def make_feed_forward(self, dim: int, hidden: int) -> None:
        """Registers what `feed_forward` runs, under its checkpoints' name."""
        self.mlp = Mlp(dim, hidden)

    def feed_forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, T, C) to (B, T, C), position by position."""
        return self.mlp(x)

    def join(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        """The stream, (B, T, C), with what a branch adds."""
        if gamma is None:
            return add(x, self.drop_path(branch), self)
        return add_scaled(x, gamma, branch) if not self.training else \
            x + self.drop_path(gamma * branch)
