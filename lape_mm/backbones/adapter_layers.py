"""The modules that ViT-Adapter (ICLR 2023) adds to a plain ViT, with the official parameter names.

A pyramid holds the maps of strides 8, 16 and 32 as one sequence, finest first:
(B, h8 w8 + h16 w16 + h32 w32, C).
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.layers import DropPath
from torch import Tensor, nn

from .sampling import DeformableAttention, Shapes

# fastest on the CPU; for a batch of one, tokens become maps without a copy
LAYOUT = torch.channels_last


class BatchNorm(nn.SyncBatchNorm):
    """SyncBatchNorm on GPUs, BatchNorm on the CPU, where SyncBatchNorm cannot run."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return super().forward(x)
        return super(nn.SyncBatchNorm, self).forward(x)  # plain BatchNorm


def conv_bn_relu(channels: int, out: int, *, stride: int = 2) -> list[nn.Module]:
    """3x3 convolution, norm and ReLU."""
    return [nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False), BatchNorm(out),
            nn.ReLU(inplace=True)]


def to_maps(tokens: Tensor, shapes: Shapes) -> list[Tensor]:
    """Splits tokens (B, sum of h * w, C) into maps (B, C, h, w), in `LAYOUT`."""
    # unflatten first, which gets the strides of a batch of one right
    return [level.unflatten(1, shape).permute(0, 3, 1, 2).contiguous(memory_format=LAYOUT)
            for level, shape in
            zip(tokens.split([height * width for height, width in shapes], dim=1), shapes)]


def to_pyramid(maps: Sequence[Tensor]) -> Tensor:
    """Joins maps (B, C, h, w) into tokens (B, sum of h * w, C)."""
    return torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)


class SpatialPriorModule(nn.Module):
    """The convolutional stem: makes maps of strides 4, 8, 16 and 32 from an image."""

    def __init__(self, *, inplane: int, dim: int, in_channels: int = 3):
        super().__init__()
        self.stem = nn.Sequential(
            *conv_bn_relu(in_channels, inplane), *conv_bn_relu(inplane, inplane, stride=1),
            *conv_bn_relu(inplane, inplane, stride=1), nn.MaxPool2d(3, stride=2, padding=1))
        self.conv2 = nn.Sequential(*conv_bn_relu(inplane, 2 * inplane))
        self.conv3 = nn.Sequential(*conv_bn_relu(2 * inplane, 4 * inplane))
        self.conv4 = nn.Sequential(*conv_bn_relu(4 * inplane, 4 * inplane))
        self.fc1 = nn.Conv2d(inplane, dim, 1)
        self.fc2 = nn.Conv2d(2 * inplane, dim, 1)
        self.fc3 = nn.Conv2d(4 * inplane, dim, 1)
        self.fc4 = nn.Conv2d(4 * inplane, dim, 1)

    def forward(self, img: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Pads (B, in_channels, H, W) to multiples of 32 and returns four maps (B, C, H/s, W/s)."""
        height, width = img.shape[-2:]
        img = F.pad(img, (0, -width % 32, 0, -height % 32)).contiguous(memory_format=LAYOUT)
        c1 = self.stem(img)
        c2 = self.conv2(c1)
        c3 = self.conv3(c2)
        c4 = self.conv4(c3)
        return self.fc1(c1), self.fc2(c2), self.fc3(c3), self.fc4(c4)


class DWConv(nn.Module):
    """3x3 depthwise convolution of each map of a pyramid."""

    def __init__(self, dim: int):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, pyramid: Tensor, shapes: Shapes) -> Tensor:
        return to_pyramid([self.dwconv(level) for level in to_maps(pyramid, shapes)])


class ConvFFN(nn.Module):
    """MLP over a pyramid, with a depthwise convolution between its layers."""

    def __init__(self, *, dim: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = DWConv(hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, pyramid: Tensor, shapes: Shapes) -> Tensor:
        return self.fc2(F.gelu(self.dwconv(self.fc1(pyramid), shapes)))


class CrossAttention(nn.Module):
    """Deformable attention from one normalised sequence to another."""

    def __init__(self, *, levels: int, dim: int, norm_eps: float, **attention):
        super().__init__()
        self.query_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.feat_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = DeformableAttention(dim=dim, levels=levels, **attention)

    def attend(self, x: Tensor, points: Tensor, cells: Tensor, shapes: Shapes) -> Tensor:
        """Queries x (B, Q, C) attend to cells (B, sum of h * w, C) of maps, around their points."""
        return self.attn(self.query_norm(x), points, self.feat_norm(cells), shapes)


class Injector(CrossAttention):
    """ViT tokens attend to the pyramid: ``x + gamma * attention``, gamma initially zero."""

    def __init__(self, *, dim: int, **attention):
        super().__init__(levels=3, dim=dim, **attention)
        self.gamma = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, points: Tensor, pyramid: Tensor, shapes: Shapes) -> Tensor:
        y = self.attend(x, points, pyramid, shapes)
        return torch.addcmul(x, self.gamma, y.to(x.dtype))


class Extractor(CrossAttention):
    """The pyramid attends to the ViT tokens; a ConvFFN with drop path follows."""

    def __init__(self, *, dim: int, norm_eps: float, ffn_ratio: float, drop_path: float,
                 **attention):
        super().__init__(levels=1, dim=dim, norm_eps=norm_eps, **attention)
        self.ffn = ConvFFN(dim=dim, hidden=int(dim * ffn_ratio))
        self.ffn_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.drop_path = DropPath(drop_path)

    def forward(self, pyramid: Tensor, points: Tensor, shapes: Shapes, x: Tensor,
                grid: tuple[int, int]) -> Tensor:
        pyramid = pyramid + self.attend(pyramid, points, x, (grid,))
        return pyramid + self.drop_path(self.ffn(self.ffn_norm(pyramid), shapes))


class Interaction(nn.Module):
    """An injector before a group of ViT layers, and one extractor (``extra``: three) after it."""

    def __init__(self, *, extra: bool, dim: int, norm_eps: float, ffn_ratio: float,
                 drop_path: float, **attention):
        super().__init__()
        extractor = dict(dim=dim, norm_eps=norm_eps, ffn_ratio=ffn_ratio, drop_path=drop_path,
                         **attention)
        self.injector = Injector(dim=dim, norm_eps=norm_eps, **attention)
        self.extractor = Extractor(**extractor)
        self.extra_extractors = nn.Sequential(
            *(Extractor(**extractor) for _ in range(2))) if extra else None

    @property
    def extractors(self) -> list[nn.Module]:
        """All extractors, in order."""
        return [self.extractor, *(self.extra_extractors or ())]


def init_adapter(module: nn.Module) -> None:
    """Initialises one module as the official code does; pass this to ``nn.Module.apply``."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
        nn.init.normal_(module.weight, std=math.sqrt(2 / (fan_out // module.groups)))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, DeformableAttention):
        module.init_weights()
