"""T2T-ViT (ICCV 2021) with any joining: the tokens-to-token stem before a plain ViT."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from lape_mm.registry import MODELS

from .checks import check_count, resolve_arch
from .encoder import init_linear
from .vit import VisionTransformer

ARCHS = {'7': dict(embed_dim=256, depth=7, num_heads=4)}
DETAILS = dict(mlp_ratio=2., qkv_bias=False, token_dim=64)
STRIDE = 16


class TokenPerformer(nn.Module):
    """Performer layer (ICLR 2021) of linear cost; changes the width and adds v to its output.

    The kernel exp(q k) is estimated from m = D / 2 positive random features of k and of q,
    ``exp(w x - |x|^2 / 2) / sqrt(m)``. Parameter names and dropout are those of the official
    models/token_performer.py. The output has D = token_dim channels, an even number.
    """

    def __init__(self, *, dim: int, token_dim: int, norm_eps: float = 1e-5):
        super().__init__()
        features = token_dim // 2
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.kqv = nn.Linear(dim, 3 * token_dim)
        # a frozen parameter, so that checkpoints hold it
        self.w = nn.Parameter(nn.init.orthogonal_(torch.empty(features, token_dim))
                              * math.sqrt(features), requires_grad=False)
        self.proj = nn.Linear(token_dim, token_dim)
        self.drop = nn.Dropout(.1)
        self.norm2 = nn.LayerNorm(token_dim, eps=norm_eps)
        self.mlp = nn.Sequential(nn.Linear(token_dim, token_dim), nn.GELU(),
                                 nn.Linear(token_dim, token_dim), nn.Dropout(.1))

    def features(self, x: Tensor) -> Tensor:
        """Maps (B, N, D) to (B, N, m), all positive."""
        exponent = x @ self.w.to(x.dtype).T - x.square().sum(dim=-1, keepdim=True) / 2
        return exponent.exp() / math.sqrt(len(self.w))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, N, dim) to (B, N, D)."""
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)  # in this order
        # exponentials and sums over thousands of tokens need float32
        with torch.autocast('cpu' if x.is_meta else x.device.type, enabled=False):
            wide = torch.promote_types(v.dtype, torch.float32)
            k, q = self.features(k.to(wide)), self.features(q.to(wide))
            total = q @ k.sum(dim=1)[:, :, None]
            mix = q @ (k.transpose(1, 2) @ v.to(wide)) / (total + 1e-8)
        x = v + self.drop(self.proj(mix.to(v.dtype)))
        return x + self.mlp(self.norm2(x))


class TokenAttention(nn.Module):
    """Single-head attention that changes the width from C to D and adds v to its output.

    Logits are scaled by C^-0.5, as in the official models/token_transformer.py.
    """

    def __init__(self, *, dim: int, token_dim: int):
        super().__init__()
        self.scale = dim ** -.5
        self.qkv = nn.Linear(dim, 3 * token_dim, bias=False)
        self.proj = nn.Linear(token_dim, token_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, N, C) to (B, N, D)."""
        # the fused kernels need an axis of heads
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        mix = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return (v + self.proj(mix))[:, 0]


class TokenTransformer(nn.Module):
    """Pre-norm layer that changes the width; takes the arguments of `TokenPerformer`."""

    def __init__(self, *, dim: int, token_dim: int, norm_eps: float = 1e-5):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = TokenAttention(dim=dim, token_dim=token_dim)
        self.norm2 = nn.LayerNorm(token_dim, eps=norm_eps)
        self.mlp = Mlp(token_dim, token_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, N, dim) to (B, N, D)."""
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


TOKENS = {'performer': TokenPerformer, 'transformer': TokenTransformer}


class TokensToToken(nn.Module):
    """The stem: turns overlapping neighbourhoods into tokens three times, with layers in between.

    Names and initialisation are those of the official models/t2t_vit.py.
    """

    def __init__(self, *, tokens: str, in_channels: int, token_dim: int, embed_dim: int,
                 norm_eps: float):
        super().__init__()
        check_count('in_channels', in_channels)
        if tokens not in TOKENS:
            raise ValueError(f'tokens={tokens!r}: expected one of {[*TOKENS]}')
        if token_dim % 2:
            raise ValueError(f'arch: token_dim={token_dim}, expected a multiple of 2')
        layer = TOKENS[tokens]
        self.attention1 = layer(dim=in_channels * 7 ** 2, token_dim=token_dim, norm_eps=norm_eps)
        self.attention2 = layer(dim=token_dim * 3 ** 2, token_dim=token_dim, norm_eps=norm_eps)
        self.project = nn.Linear(token_dim * 3 ** 2, embed_dim)
        self.apply(init_linear)

    def forward(self, img: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W), multiples of 16, to (B, C, H / 16, W / 16)."""
        x = img
        for layer, (kernel, stride, padding) in ((self.attention1, (7, 4, 2)),
                                                 (self.attention2, (3, 2, 1)),
                                                 (self.project, (3, 2, 1))):
            grid = x.shape[2] // stride, x.shape[3] // stride
            x = F.unfold(x, kernel_size=kernel, stride=stride, padding=padding)
            x = layer(x.transpose(1, 2)).transpose(1, 2).unflatten(2, grid)
        return x


@MODELS.register_module()
class T2TViT(VisionTransformer):
    """T2T-ViT with any joining, for classification.

    Parameter names are those of the official checkpoints; only ``tokens_to_token`` is called
    ``patch_embed``. Class token and pooling are as in `DeiT`. The sinusoid is frozen, but counts as
    a parameter, as in the papers. Position 0 is the class token's or, without one, the first
    patch's. Attention is scaled by head_dim^-0.5, as in the official training and evaluation; the
    official factories use C^-0.5 only with ``pretrained=True``.

    Args:
        arch: '7', or a dict of embed_dim, depth, num_heads and optionally mlp_ratio, qkv_bias and
            token_dim, the width of the stem's layers.
        tokens: layers of the stem, 'performer' or 'transformer'.

    The other arguments are as in `lape_mm.backbones.DeiT`, with a stride of 16; 'sincos_1d' is the
    official position.
    """

    def __init__(self, *, arch: str | Mapping = '7', img_size: int | Sequence[int] = 224,
                 in_channels: int = 3, tokens: str = 'performer',
                 joining: str | Mapping = 'default', position: str = 'sincos_1d',
                 class_token: bool | None = None, drop_path_rate: float = 0.,
                 interpolation: str = 'bicubic', norm_eps: float = 1e-5,
                 with_cp: bool = False, frozen: bool = False, init_cfg: dict | None = None):
        sizes = resolve_arch(arch, ARCHS, DETAILS)
        super().__init__(
            sizes=sizes, img_size=img_size, stride=STRIDE,
            stem=TokensToToken(tokens=tokens, in_channels=in_channels,
                               token_dim=sizes['token_dim'], embed_dim=sizes['embed_dim'],
                               norm_eps=norm_eps),
            in_channels=in_channels, joining=joining, class_token=class_token, position=position,
            drop_path_rate=drop_path_rate, interpolation=interpolation, norm_eps=norm_eps,
            with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.freeze()

    def no_weight_decay(self) -> set[str]:
        """The class token alone, as in the official models/t2t_vit.py, which freezes its table."""
        return {'cls_token'}
