"""Attention and the pre-norm transformer block of the plain ViTs."""
from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from lape_mm.mmcv_ext import compiled

COMPILED = compiled()


def to_output(level: Tensor) -> Tensor:
    """Makes a map, (B, C, h, w), contiguous for mmcv's compiled operators.

    mmcv's RoIAlign silently misreads channels-last maps.
    """
    return level.contiguous() if COMPILED else level


class EncoderLayer(nn.Module):
    """Base of an encoder's layers; forward applies the entries of `PositionPlan.layer`.

    Attributes:
        pe_norm: the layer's norm of PE, or None. Checkpoints hold it here; the joining applies it.
    """

    pe_norm: nn.Module | None
    norm1: nn.LayerNorm

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The attention's pre-norm, whatever its checkpoints call it."""
        return self.norm1


class Attention(nn.Module):
    """Multi-head self-attention, over all tokens or over windows of the patch grid.

    Parameter names are DeiT's: ``qkv`` (rows in the order q, k, v, each head by head), ``proj``.

    Windows follow the official ViT-Adapter (detection): q, k and v are padded with zeros to whole
    windows, so that padded positions stay in the softmax as keys with logit 0.

    Args:
        dim: channels C.
        num_heads: heads; divides C.
        qkv_bias: whether ``qkv`` has a bias.
        window_size: side of the windows in tokens; None for global attention.
        drop: probability of dropping an attention weight in training.
        bias_table, pe_norm: of a relative position bias, see `lape_mm.position.embedding`.
            Checkpoints hold them here; the plan reads them.
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

    def forward(self, x: Tensor, grid: tuple[int, int], attn_bias: Tensor | None = None,
                num_queries: int | None = None) -> Tensor:
        """(B, T, C) to (B, T, C); with windows, T is the grid's h * w.

        ``attn_bias``, (1, heads, T, T), is added to the scaled logits of global attention. With
        ``num_queries``, only the first tokens are queries: (B, num_queries, C).
        """
        qkv = self.qkv(x)
        mix = (self._attend(qkv, attn_bias, num_queries) if self.window_size is None else
               self._attend_windows(qkv, grid, self.window_size))
        return self.proj(mix)

    def _attend(self, qkv: Tensor, attn_bias: Tensor | None = None,
                num_queries: int | None = None) -> Tensor:
        """(B, T, 3 C) to (B, T, C)."""
        width = qkv.shape[2] // (3 * self.num_heads)
        q, k, v = qkv.unflatten(2, (3, self.num_heads, width)).permute(2, 0, 3, 1, 4)
        if attn_bias is not None:
            attn_bias = attn_bias[:, :, :num_queries].to(q.dtype)
        mix = F.scaled_dot_product_attention(q[:, :, :num_queries], k, v, attn_mask=attn_bias,
                                             dropout_p=self.drop if self.training else 0.)
        return mix.transpose(1, 2).flatten(2)

    def _attend_windows(self, qkv: Tensor, grid: tuple[int, int], side: int) -> Tensor:
        batch, channels, (height, width) = qkv.shape[0], qkv.shape[2], grid
        bottom, right = -height % side, -width % side
        qkv = F.pad(qkv.unflatten(1, grid), (0, 0, 0, right, 0, bottom))
        rows, columns = (height + bottom) // side, (width + right) // side
        # no -1 in these shapes: it is ambiguous for an empty batch
        qkv = qkv.reshape(batch, rows, side, columns, side, channels).transpose(2, 3)
        mix = self._attend(qkv.reshape(batch * rows * columns, side * side, channels))
        mix = mix.reshape(batch, rows, columns, side, side, channels // 3).transpose(2, 3)
        mix = mix.reshape(batch, height + bottom, width + right, channels // 3)
        return mix[:, :height, :width].flatten(1, 2)


class Block(EncoderLayer):
    """Pre-norm transformer block with the layer's entries of the PE plan.

    ``x + MSA(LN(x) + pre_attn)``, then ``x + MLP(LN(x))`` (equations 3 and 6 of the MPVG paper).

    Args:
        dim, num_heads, mlp_ratio, qkv_bias, norm_eps: of the transformer.
        drop_path: probability of dropping a residual branch, per sample.
        layer_scale: adds ``gamma1`` and ``gamma2``, (C,) each, initially ones.
        pe_norm: the joining's norm of PE for this layer, or None.
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

    def forward(self, x: Tensor, grid: tuple[int, int], residual: Tensor | None = None,
                pre_attn: Tensor | None = None, attn_bias: Tensor | None = None,
                num_queries: int | None = None) -> Tensor:
        """(B, T, C) and the layer's entries of the plan to (B, T, C).

        With ``num_queries``, only the first tokens are computed: (B, num_queries, C).
        """
        if residual is not None:
            x = x + residual
        y = self.norm1(x)
        y = self.attn(y if pre_attn is None else y + pre_attn, grid, attn_bias, num_queries)
        x = self.add(x[:, :num_queries], y, self.gamma1)
        return self.add(x, self.feed_forward(self.norm2(x), grid), self.gamma2)

    def make_feed_forward(self, dim: int, hidden: int) -> None:
        """Registers the modules of `feed_forward`, named as in checkpoints."""
        self.mlp = Mlp(dim, hidden)

    def feed_forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, T, C) to (B, T, C), token by token."""
        return self.mlp(x)

    def add(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        """Adds a branch to the residual stream, (B, T, C)."""
        branch = self.drop_path(branch)
        return x + branch if gamma is None else torch.addcmul(x, gamma, branch.to(x.dtype))
