"""Attention and the pre-norm transformer block of the plain ViTs."""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, GluMlp, Mlp, SwiGLU
from torch import Tensor, nn

from lape_mm.position import rotate


class EncoderLayer(nn.Module):
    """Base of an encoder's layers; forward applies the entries of `PositionPlan.layer`."""

    pe_norm: nn.Module | None  # here for checkpoints; joinings apply it
    norm1: nn.LayerNorm

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The norm before the attention; its name in the checkpoints varies."""
        return self.norm1


class Attention(nn.Module):
    """Multi-head self-attention, over all tokens or over windows of the patch grid.

    Parameter names are DeiT's: ``qkv`` (rows in the order q, k, v, each head by head), ``proj``;
    and timm's: ``q_bias`` and ``v_bias``, ``q_norm`` and ``k_norm``.

    Windows follow the official ViT-Adapter (detection): q, k and v are padded with zeros to whole
    windows, and padded positions stay in the softmax as keys with logit 0. Prefix tokens (the
    official model has none) are keys in every window; as queries they attend to all tokens.

    Args:
        qkv_bias: whether ``qkv`` has a bias, or 'qv' for q and v alone.
        qk_norm: whether q and k each pass a LayerNorm over the channels of a head (``norm_eps``).
        rotary_halves: see `lape_mm.position.rotary.RotaryKind`.
        window_size: side in tokens; None for global attention.
        drop: dropout of the attention weights.
        bias_table, pe_norm: relative position bias and its norm, here for checkpoints; the plan
            reads them.
    """

    def __init__(self, *, dim: int, num_heads: int, qkv_bias: bool | str = True,
                 qk_norm: bool = False, norm_eps: float = 1e-6, rotary_halves: bool = False,
                 window_size: int | None = None, drop: float = 0.,
                 bias_table: nn.Parameter | None = None, pe_norm: nn.LayerNorm | None = None):
        super().__init__()
        self.num_heads, self.window_size, self.drop = num_heads, window_size, drop
        self.rotary_halves = rotary_halves
        self.relative_position_bias_table = bias_table
        self.pe_norm = pe_norm
        self.qkv = nn.Linear(dim, 3 * dim, bias=bool(qkv_bias) and qkv_bias != 'qv')
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(dim)) if qkv_bias == 'qv' else None
                                    for _ in 'qv')
        self.q_norm, self.k_norm = (nn.LayerNorm(dim // num_heads, eps=norm_eps) if qk_norm
                                    else None for _ in 'qk')
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int], attn_bias: Tensor | None = None,
                num_queries: int | None = None, rotary: Tensor | None = None) -> Tensor:
        """Maps (B, T, C) to (B, T, C); the last h * w tokens are the grid's.

        ``attn_bias`` (1, heads, T, T) is added to the scaled logits of global attention. With
        ``num_queries``, returns only the first tokens (B, num_queries, C). ``rotary``
        (2, T, heads or 1, d / 2) rotates q and k.
        """
        if self.q_bias is None or self.v_bias is None:
            qkv = self.qkv(x)
        else:
            qkv = F.linear(x, self.qkv.weight, torch.cat(
                [self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]))
        if rotary is not None or self.q_norm is not None:
            qkv = self._turn(qkv, rotary)
        mix = (self._attend(qkv, attn_bias, num_queries) if self.window_size is None else
               self._attend_windows(qkv, grid, self.window_size))
        return self.proj(mix)

    def _turn(self, qkv: Tensor, rotary: Tensor | None) -> Tensor:
        """Normalises and rotates q and k within ``qkv`` (B, T, 3 C)."""
        width = qkv.shape[2] // (3 * self.num_heads)
        q, k, v = qkv.unflatten(2, (3, self.num_heads, width)).unbind(2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = (rotate(x, rotary, self.rotary_halves) for x in (q, k))
        return torch.stack([q.to(v.dtype), k.to(v.dtype), v], dim=2).flatten(2)

    def _attend(self, qkv: Tensor, attn_bias: Tensor | None = None,
                num_queries: int | None = None) -> Tensor:
        """Attends to all tokens: (B, T, 3 C) to (B, T, C)."""
        width = qkv.shape[2] // (3 * self.num_heads)
        q, k, v = qkv.unflatten(2, (3, self.num_heads, width)).permute(2, 0, 3, 1, 4)
        if attn_bias is not None:
            attn_bias = attn_bias[:, :, :num_queries].to(q.dtype)
        mix = F.scaled_dot_product_attention(q[:, :, :num_queries], k, v, attn_mask=attn_bias,
                                             dropout_p=self.drop if self.training else 0.)
        return mix.transpose(1, 2).flatten(2)

    def _attend_windows(self, qkv: Tensor, grid: tuple[int, int], side: int) -> Tensor:
        batch, channels, (height, width) = qkv.shape[0], qkv.shape[2], grid
        prefix, everything = qkv.shape[1] - height * width, qkv
        if prefix:
            qkv = qkv[:, prefix:]
        bottom, right = -height % side, -width % side
        qkv = F.pad(qkv.unflatten(1, grid), (0, 0, 0, right, 0, bottom))
        rows, columns = (height + bottom) // side, (width + right) // side
        # no -1 in these shapes: it is ambiguous for an empty batch
        qkv = qkv.reshape(batch, rows, side, columns, side, channels).transpose(2, 3)
        qkv = qkv.reshape(batch * rows * columns, side * side, channels)
        if prefix:
            shared = everything[:, :prefix].repeat_interleave(rows * columns, dim=0)
            mix = self._attend(torch.cat([shared, qkv], dim=1))[:, prefix:]
        else:
            mix = self._attend(qkv)
        mix = mix.reshape(batch, rows, columns, side, side, channels // 3).transpose(2, 3)
        mix = mix.reshape(batch, height + bottom, width + right, channels // 3)
        mix = mix[:, :height, :width].flatten(1, 2)
        return torch.cat([self._attend(everything, None, prefix), mix], dim=1) if prefix else mix


class Block(EncoderLayer):
    """Pre-norm transformer block, which applies its layer's entries of the PE plan.

    ``x + MSA(LN(x) + pre_attn)``, then ``x + MLP(LN(x))`` (equations 3 and 6 of the MPVG paper).

    ``mlp`` is the MLP's form, see `lape_mm.backbones.DeiT`. ``layer_scale`` is the initial value of
    ``gamma1`` and ``gamma2``, or 0 for none. ``attention`` has more arguments for `Attention`.
    """

    def __init__(self, *, dim: int, num_heads: int, mlp_ratio: float = 4.,
                 qkv_bias: bool | str = True, norm_eps: float = 1e-6, drop_path: float = 0.,
                 mlp: str = 'mlp', layer_scale: float = 0., pe_norm: nn.Module | None = None,
                 attention: Mapping | None = None):
        super().__init__()
        self.pe_norm = pe_norm
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = Attention(dim=dim, num_heads=num_heads, qkv_bias=qkv_bias, norm_eps=norm_eps,
                              **(attention or {}))
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.make_feed_forward(dim, int(dim * mlp_ratio), mlp, norm_eps)
        self.drop_path = DropPath(drop_path)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.full((dim,), float(layer_scale)))
                                    if layer_scale else None for _ in range(2))

    def forward(self, x: Tensor, grid: tuple[int, int], residual: Tensor | None = None,
                pre_attn: Tensor | None = None, attn_bias: Tensor | None = None,
                rotary: Tensor | None = None, num_queries: int | None = None) -> Tensor:
        """Maps (B, T, C), with the layer's entries of the plan, to (B, T or num_queries, C)."""
        if residual is not None:
            x = x + residual
        y = self.norm1(x)
        y = self.attn(y if pre_attn is None else y + pre_attn, grid, attn_bias, num_queries,
                      rotary)
        x = self.add(x[:, :num_queries], y, self.gamma1)
        return self.add(x, self.feed_forward(self.norm2(x), grid), self.gamma2)

    def make_feed_forward(self, dim: int, hidden: int, form: str, eps: float) -> None:
        """Registers the modules of `feed_forward`, named as in checkpoints."""
        norm: Any = partial(nn.LayerNorm, eps=eps) if form == 'swiglu_norm' else None
        self.mlp = (
            Mlp(dim, hidden) if form == 'mlp' else
            GluMlp(dim, 2 * hidden, act_layer=nn.SiLU, gate_last=False) if form == 'swiglu' else
            SwiGLU(dim, hidden, norm_layer=norm))

    def feed_forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Maps (B, T, C) to (B, T, C), each token by itself."""
        return self.mlp(x)

    def add(self, x: Tensor, branch: Tensor, gamma: Tensor | None) -> Tensor:
        """Adds a branch to the residual stream (B, T, C), after drop path and layer scale."""
        branch = self.drop_path(branch)
        return x + branch if gamma is None else torch.addcmul(x, gamma, branch.to(x.dtype))
