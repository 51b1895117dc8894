"""The feature pyramid of a plain ViT (ViTDet)."""
from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from lape_mm.registry import MODELS

from .checks import check_count


@MODELS.register_module()
class SimpleFPN(nn.Module):
    """Feature pyramid from the last map of a plain ViT, a neck for mmdet and mmseg.

    It makes four maps from the map x of stride 16; deconvolutions have kernel and stride 2 (ViTDet,
    ECCV 2022, section 3, as in detectron2's ``SimpleFeaturePyramid``)::

        stride 4    deconv(GELU(LN(deconv(x))))     C -> C / 2 -> C / 4 channels
        stride 8    deconv(x)                       C -> C / 2
        stride 16   x
        stride 32   max-pooling of 2 x 2

    At each stride, LN(conv 1 x 1) and LN(conv 3 x 3) follow, without biases. Each LayerNorm is over
    channels. ``num_outs`` is 4 or more; each further map takes every other pixel of the one before.
    """

    def __init__(self, *, in_channels: int, out_channels: int = 256, num_outs: int = 4):
        super().__init__()
        check_count('num_outs', num_outs, 4)
        half, quarter = in_channels // 2, in_channels // 4
        scales: list[tuple[int, list[nn.Module]]] = [
            (quarter, [nn.ConvTranspose2d(in_channels, half, 2, stride=2), LayerNorm2d(half),
                       nn.GELU(), nn.ConvTranspose2d(half, quarter, 2, stride=2)]),
            (half, [nn.ConvTranspose2d(in_channels, half, 2, stride=2)]),
            (in_channels, []),
            (in_channels, [nn.MaxPool2d(2)])]
        self.levels = nn.ModuleList(nn.Sequential(
            *scale,
            nn.Conv2d(channels, out_channels, 1, bias=False), LayerNorm2d(out_channels),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            LayerNorm2d(out_channels)) for channels, scale in scales)
        self.num_outs = num_outs

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Makes ``num_outs`` maps from the last of a ViT's ``maps``, (B, C, h, w).

        The first is (B, out_channels, 4 h, 4 w); each further one has half the size, rounded down.
        """
        outputs = [level(maps[-1]) for level in self.levels]
        while len(outputs) < self.num_outs:
            outputs.append(F.max_pool2d(outputs[-1], 1, stride=2))
        return tuple(one.contiguous() for one in outputs)
