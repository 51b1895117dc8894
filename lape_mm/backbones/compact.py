"""ViT-Lite, CVT and CCT (Compact-Transformers, arXiv 2104.05704): small ViTs for small images."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from lape_mm.position import KINDS
from lape_mm.registry import MODELS

from .checks import check_count, check_rate, resolve_arch
from .encoder import init_linear
from .layers import Attention, EncoderLayer
from .vit import VisionTransformer

SEVEN = dict(embed_dim=256, depth=7, num_heads=4)
ARCHS: dict[str, dict] = {
    'vit_lite_7_4': SEVEN,
    'cvt_7_4': dict(SEVEN, pool='sequence'),
    'cct_7_3x1': dict(SEVEN, kernel_size=3, conv_layers=1, pool='sequence'),
}
DETAILS = dict(mlp_ratio=2., qkv_bias=False, kernel_size=4, conv_layers=0, pool='class')
POOLS = ('class', 'sequence')
HIDDEN_CHANNELS = 64


class Tokenizer(nn.Module):
    """Turns pixels into tokens by one convolution over patches, or by CCT's convolutions.

    ``kernel_size`` is the side of a patch, or of CCT's kernels (odd). ``conv_layers`` is 0 for
    patches (one convolution with bias), or the number of CCT's layers. Each of these has a
    convolution without bias, ReLU and 3 x 3 max-pooling of stride 2, with 64 channels in between.
    """

    def __init__(self, *, in_channels: int, embed_dim: int, kernel_size: int, conv_layers: int):
        super().__init__()
        check_count('in_channels', in_channels)
        if conv_layers and (kernel_size < 3 or kernel_size % 2 == 0):
            raise ValueError(f'arch: kernel_size={kernel_size} with conv_layers={conv_layers}, '
                             'expected an odd number, 3 or more')
        if conv_layers:
            # CCT's rule: 3 x 3 keeps the size and 7 x 7 halves it; the pooling halves it again
            step = max(1, kernel_size // 2 - 1)
            self.stride = (2 * step) ** conv_layers
            channels = [in_channels, *[HIDDEN_CHANNELS] * (conv_layers - 1), embed_dim]
            layers = [
                [nn.Conv2d(*pair, kernel_size, step, kernel_size // 2, bias=False),
                 nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
                for pair in zip(channels, channels[1:])]
        else:
            self.stride = kernel_size
            layers = [[nn.Conv2d(in_channels, embed_dim, kernel_size, kernel_size)]]
        self.conv_layers = nn.Sequential(*(nn.Sequential(*layer) for layer in layers))
        for layer in self.conv_layers:
            nn.init.kaiming_normal_(next(layer.parameters()))

    def forward(self, img: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W) to (B, C, ceil(H / stride), ceil(W / stride))."""
        return self.conv_layers(img)


class CompactBlock(EncoderLayer):
    """The layer of Compact-Transformers, whose second norm has no residual connection.

    ``x <- x + MSA(LN(x) + pre_attn)``, ``x <- LN(x)``, ``x <- x + MLP(x)``; the names are official.
    """

    def __init__(self, *, dim: int, num_heads: int, mlp_ratio: float = 2., qkv_bias: bool = False,
                 norm_eps: float = 1e-5, drop_path: float = 0., pe_norm: nn.Module | None = None,
                 attention: Mapping | None = None):
        super().__init__()
        self.pe_norm = pe_norm
        self.pre_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.self_attn = Attention(dim=dim, num_heads=num_heads, qkv_bias=qkv_bias,
                                   **(attention or {}))
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.linear1 = nn.Linear(dim, int(dim * mlp_ratio))
        self.linear2 = nn.Linear(int(dim * mlp_ratio), dim)
        self.drop_path = DropPath(drop_path)

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.pre_norm

    def forward(self, x: Tensor, grid: tuple[int, int], residual: Tensor | None = None,
                pre_attn: Tensor | None = None, num_queries: int | None = None) -> Tensor:
        """Maps (B, T, C), with the layer's entries of the plan, to (B, T or num_queries, C)."""
        if residual is not None:
            x = x + residual
        y = self.pre_norm(x)
        y = self.self_attn(y if pre_attn is None else y + pre_attn, grid, None, num_queries)
        x = self.norm1(x[:, :num_queries] + self.drop_path(y))
        return x + self.drop_path(self.linear2(F.gelu(self.linear1(x))))


@MODELS.register_module()
class CompactTransformer(VisionTransformer):
    """ViT-Lite, CVT and CCT with any joining, for classification.

    They differ in tokenizer and pooling. ViT-Lite has a class token, or averages its tokens under
    PVG and MPVG. CVT and CCT have no class token; they sum the tokens with softmax weights
    (``attention_pool``). The papers do not define PVG and MPVG for these two. Our choice: they
    keep this sequence pooling, after MPVG's last term.

    Args:
        arch: 'vit_lite_7_4', 'cvt_7_4', 'cct_7_3x1', or a dict of embed_dim, depth, num_heads and
            optionally mlp_ratio, qkv_bias, kernel_size, conv_layers (see `Tokenizer`) and pool
            ('class' or 'sequence').
        position: 'learnable' (std 0.2 here), 'sincos_1d' (the official "sine") or 'sincos_2d'.
        class_token: None for the papers' choice; sequence pooling allows no class token.
        attn_drop_rate: dropout of the attention weights.

    The other arguments are as in `lape_mm.backbones.DeiT`; the defaults are the official code's.
    """

    positions = KINDS

    def __init__(self, *, arch: str | Mapping = 'vit_lite_7_4', img_size: int | Sequence[int] = 32,
                 in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str = 'learnable', class_token: bool | None = None,
                 attn_drop_rate: float = .1, drop_path_rate: float = .1,
                 interpolation: str = 'bilinear', norm_eps: float = 1e-5,
                 with_cp: bool = False, frozen: bool = False, init_cfg: dict | None = None):
        sizes = resolve_arch(arch, ARCHS, DETAILS)
        if sizes['pool'] not in POOLS:
            raise ValueError(f'arch: pool={sizes["pool"]!r}, expected one of {POOLS}')
        check_rate('attn_drop_rate', attn_drop_rate)
        sequence = sizes['pool'] == 'sequence'
        if sequence and class_token:
            raise ValueError("class_token=True: pool='sequence' has no class token, expected "
                             'False or None')
        stem = Tokenizer(in_channels=in_channels, embed_dim=sizes['embed_dim'],
                         kernel_size=sizes['kernel_size'], conv_layers=sizes['conv_layers'])
        super().__init__(
            sizes=sizes, img_size=img_size, stem=stem, stride=stem.stride,
            # overlapping convolutions pad themselves
            pad_to=1 if sizes['conv_layers'] else stem.stride,
            in_channels=in_channels, joining=joining, position=position, position_std=.2,
            class_token=False if sequence else class_token, block=CompactBlock,
            layers=[dict(attention=dict(drop=attn_drop_rate))] * sizes['depth'],
            drop_path_rate=drop_path_rate, interpolation=interpolation, norm_eps=norm_eps,
            with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.attention_pool = nn.Linear(self.embed_dim, 1) if sequence else None
        if self.attention_pool is not None:
            init_linear(self.attention_pool)
        self.freeze()

    def new_token(self, count: int = 1) -> nn.Parameter:
        """Makes tokens (1, count, C) of zeros."""
        return nn.Parameter(torch.zeros(1, count, self.embed_dim))

    def pool(self, x: Tensor) -> Tensor:
        """Maps (B, T, C) to (B, C): class token, mean, or sum weighted by `attention_pool`."""
        if self.attention_pool is None:
            return super().pool(x)
        return (self.attention_pool(x).softmax(dim=1) * x).sum(dim=1)
