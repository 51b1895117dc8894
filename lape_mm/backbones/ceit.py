"""CeiT (ICCV 2021) with any joining: convolutions in the stem and in the feed-forward layers."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from lape_mm.position import PositionPlan
from lape_mm.registry import MODELS

from .checks import check_count, resolve_arch
from .encoder import init_linear
from .layers import Block
from .vit import VisionTransformer

ARCHS = {
    'tiny': dict(embed_dim=192, depth=12, num_heads=3),
    'small': dict(embed_dim=384, depth=12, num_heads=6),
}
DETAILS = dict(mlp_ratio=4., qkv_bias=True, stem_channels=64)
STRIDE = 16


class ImageToTokens(nn.Module):
    """The stem: conv, BatchNorm and max pooling to a quarter of the side, then 4 x 4 patches.

    As in the official ceit_model.py, it has no activation, and its children have these names.
    """

    def __init__(self, *, in_channels: int, stem_channels: int, embed_dim: int):
        super().__init__()
        check_count('in_channels', in_channels)
        self.backbone = nn.Sequential()
        self.backbone.add_module('conv', nn.Conv2d(in_channels, stem_channels, 7, stride=2,
                                                   padding=3, bias=False))
        self.backbone.add_module('bn', nn.BatchNorm2d(stem_channels))
        self.backbone.add_module('maxpool', nn.MaxPool2d(3, stride=2, padding=1))
        self.proj = nn.Conv2d(stem_channels, embed_dim, 4, stride=4)

    def forward(self, img: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W), multiples of 16, to (B, C, H / 16, W / 16)."""
        return self.proj(self.backbone(img))


class LeFF(nn.Module):
    """Locally-enhanced feed-forward: an MLP with a depthwise 3x3 convolution over the patch grid.

    Prefix tokens pass unchanged, so the residual sum adds ``norm2(cls)`` to the class token, as in
    the official code.
    """

    def __init__(self, *, dim: int, hidden: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(dim, hidden, 1), nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.conv3, self.bn3 = nn.Conv2d(hidden, dim, 1), nn.BatchNorm2d(dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Maps (B, T, C) to (B, T, C); the last h * w tokens are the patches."""
        prefix = x.shape[1] - grid[0] * grid[1]
        y = x[:, prefix:].transpose(1, 2).unflatten(2, grid)
        y = F.gelu(self.bn1(self.conv1(y)))
        y = F.gelu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)).flatten(2).transpose(1, 2)
        # under autocast the two dtypes differ
        return torch.cat([x[:, :prefix].to(y.dtype), y], dim=1) if prefix else y


class LeFFBlock(Block):
    """A `Block` with `LeFF` in place of the MLP."""

    def make_feed_forward(self, dim: int, hidden: int, *_) -> None:
        self.leff = LeFF(dim=dim, hidden=hidden)

    def feed_forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.leff(x, grid)


class LayerwiseAttention(Block):
    """LCA: a `Block` over one token per layer; the last layer's token is the query."""

    def make_feed_forward(self, dim: int, hidden: int, *_) -> None:
        self.feedforward = Mlp(dim, hidden)

    def feed_forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.feedforward(x)


class StillStatistics:
    """A reusable context in which BatchNorms do not update their running statistics."""

    def __init__(self, module: nn.Module):
        self.norms: list[Any] = [norm for norm in module.modules()
                                 if isinstance(norm, (nn.BatchNorm2d, nn.SyncBatchNorm))]

    def __enter__(self) -> None:
        self.before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in self.norms]
        for norm in self.norms:
            norm.momentum = 0.

    def __exit__(self, *_) -> None:
        for norm, (momentum, count) in zip(self.norms, self.before):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)


@MODELS.register_module()
class CeiT(VisionTransformer):
    """CeiT with any joining, for classification.

    Parameter names are those of the official checkpoints; only ``i2t`` is called ``patch_embed``.
    Layer-wise class-token attention (LCA) takes the class token after each of the L layers; the
    last LayerNorm follows. LCA receives no PE.

    PVG and MPVG have no class token, and the papers do not define them for CeiT. Our choice: LCA
    takes the mean of each layer's tokens, and MPVG's last term is averaged over the tokens.

    With a class token, the last layer's patches reach no output, so its LeFF gets zero gradients.
    That LeFF stays, because checkpoints hold it.

    Args:
        arch: 'tiny', 'small', or a dict of embed_dim, depth, num_heads and optionally mlp_ratio,
            qkv_bias and stem_channels.

    The other arguments are as in `lape_mm.backbones.DeiT`, with a stride of 16.
    """

    def __init__(self, *, arch: str | Mapping = 'tiny', img_size: int | Sequence[int] = 224,
                 in_channels: int = 3, joining: str | Mapping = 'default',
                 position: str = 'learnable', class_token: bool | None = None,
                 drop_path_rate: float = 0., interpolation: str = 'bicubic',
                 norm_eps: float = 1e-6, with_cp: bool = False, frozen: bool = False,
                 init_cfg: dict | None = None):
        sizes = resolve_arch(arch, ARCHS, DETAILS)
        super().__init__(
            sizes=sizes, img_size=img_size, stride=STRIDE, block=LeFFBlock,
            stem=ImageToTokens(in_channels=in_channels, stem_channels=sizes['stem_channels'],
                               embed_dim=sizes['embed_dim']),
            in_channels=in_channels, joining=joining, class_token=class_token, position=position,
            drop_path_rate=drop_path_rate, interpolation=interpolation, norm_eps=norm_eps,
            with_cp=with_cp, frozen=frozen, init_cfg=init_cfg)
        self.pos_layer_embed = nn.Parameter(torch.zeros(1, self.depth, self.embed_dim))
        self.lca = LayerwiseAttention(
            dim=self.embed_dim, num_heads=sizes['num_heads'], mlp_ratio=sizes['mlp_ratio'],
            qkv_bias=sizes['qkv_bias'], norm_eps=norm_eps).apply(init_linear)
        self.freeze()

    def checkpoint_contexts(self, segment: nn.Module) -> Callable[[], tuple]:
        """Keeps recomputation from updating the running statistics again."""
        return lambda: (nullcontext(), StillStatistics(segment))

    def forward(self, img: Tensor) -> tuple[Any, ...]:
        """Maps (B, in_channels, H, W) to LCA's result (B, C), in a tuple."""
        x, grid, plan = self.embed(img)
        pooled = []
        for layer, block in enumerate(self.blocks):
            x = self.maybe_checkpoint(block, x, grid, **plan.layer(layer))
            pooled.append(self.pool(x))
        return (self.attend_layers(pooled, plan),)

    def attend_layers(self, pooled: list[Tensor], plan: PositionPlan) -> Tensor:
        """Applies LCA and the last LayerNorm to the layers' pooled tokens (B, C); gives (B, C)."""
        # the last layer, the query, goes first: attention ignores the order
        x = (torch.stack(pooled, dim=1) + self.pos_layer_embed).roll(1, dims=1)
        x = self.lca(x, (1, len(pooled)), num_queries=1)[:, 0]
        return self.run_last_norm(
            x, None if plan.post_norm is None else self.pool(plan.post_norm))
