"""The backbones with a head, as timm's models; parameter names stay the same."""
from __future__ import annotations

from timm.models.vision_transformer import feature_take_indices
from torch import Tensor

from lape_mm.backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter
from lape_mm.position import PositionPlan

from .model import Outputs, TimmModel, as_maps


class DeiTClassifier(TimmModel, DeiT):
    """`DeiT` for timm."""

    def __init__(self, *, distilled: bool = False, **kwargs):
        if distilled:
            raise ValueError(f'distilled={distilled!r}: expected False, models for timm have one '
                             'classifier. lape_mm.DistilledClassifier trains one with two')
        super().__init__(**kwargs)


class T2TViTClassifier(TimmModel, T2TViT):
    """`T2TViT` for timm."""


class CompactClassifier(TimmModel, CompactTransformer):
    """`CompactTransformer` for timm."""


class CeiTClassifier(TimmModel, CeiT):
    """`CeiT` for timm; its features are one token, the output of layer-wise attention."""

    def last_features(self, outputs: Outputs, plan: PositionPlan) -> Tensor:
        return self.attend_layers([self.pool(x) for x, _ in outputs], plan)[:, None]

    def pool_features(self, x: Tensor) -> Tensor:
        return x[:, 0]


class SwinClassifier(TimmModel, Swin):
    """`Swin` for timm; maps (B, h, w, C), one a stage; ``img_size`` decides the windows."""

    output_fmt = 'NHWC'
    layers_coarse = ((r'^layers\.(\d+)', None),)
    # a stage ends with its merging
    layers_fine = ((r'^layers\.(\d+)\.downsample', (99998,)), (r'^layers\.(\d+)\.\w+\.(\d+)', None))

    def describe_features(self) -> list[dict]:
        return [dict(module=f'layers.{stage}', num_chs=self.embed_dim * 2 ** stage,
                     reduction=self.stride * 2 ** stage) for stage in range(len(self.depths))]

    def pool_features(self, x: Tensor) -> Tensor:
        return x.mean(dim=(1, 2))

    def run_layers(self, img: Tensor, count: int) -> tuple[Outputs, PositionPlan]:
        maps, plan = self.encode(img, count)
        return [(x.flatten(1, 2), (x.shape[1], x.shape[2])) for x in maps], plan

    def last_features(self, outputs: Outputs, plan: PositionPlan) -> Tensor:
        return super().last_features(outputs, plan).unflatten(1, outputs[-1][1])

    def keep_layers(self, count: int) -> None:
        self.layers, self.depths = self.layers[:count], self.depths[:count]
        self.stages()[-1].downsample = None


class ViTAdapterFeatures(ViTAdapter):
    """`ViTAdapter` for timm's ``features_only=True``: four maps, of strides 4, 8, 16 and 32."""

    def __init__(self, *, num_classes: int = 0, in_chans: int = 3, **kwargs):
        if in_chans != 3:
            raise ValueError(f'in_chans={in_chans}: expected 3 channels')
        super().__init__(**kwargs)
        self.num_features, self.num_classes = self.embed_dim, 0
        self.feature_info = [dict(module=f'norm{level}', num_chs=self.embed_dim,
                                  reduction=2 ** (level + 1)) for level in range(1, 5)]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Turns gradient checkpointing on or off."""
        self.with_cp = enable

    def forward_intermediates(self, x: Tensor, indices: int | list[int] | None = None,
                              norm: bool = False, stop_early: bool = False,
                              output_fmt: str = 'NCHW', intermediates_only: bool = False):
        """See `TimmModel`; the maps are normalised whatever ``norm`` says."""
        wanted, _ = feature_take_indices(4, indices)
        levels = self(x)
        maps = [as_maps(levels[level].flatten(2).transpose(1, 2), levels[level].shape[2:],
                        output_fmt) for level in wanted]
        return maps if intermediates_only else (levels[-1], maps)
