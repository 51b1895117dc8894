"""The backbones with a head, as timm's models; parameter names stay the same."""
from __future__ import annotations

from torch import Tensor

from lape_mm.backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter
from lape_mm.position import PositionPlan

from .model import TimmModel, as_maps, take_indices


class DeiTClassifier(TimmModel, DeiT):
    """`DeiT` for timm.

    Raises:
        ValueError: for ``distilled``, which needs a second classifier.
    """

    def __init__(self, *, distilled: bool = False, **kwargs):
        if distilled:
            raise ValueError(f'distilled={distilled!r}: expected False, models for timm have one '
                             'classifier. lape_mm.DistilledClassifier trains one with two')
        super().__init__(**kwargs)

    def name_of_pool(self) -> str:
        return 'token' if self.pools_class_token else 'avg'

    def prune_end(self, layers: bool, norm: bool, head: bool) -> None:
        super().prune_end(layers, norm, head)
        if norm or head:
            self.fc_norm = None


class T2TViTClassifier(TimmModel, T2TViT):
    """`T2TViT` for timm."""


class CompactClassifier(TimmModel, CompactTransformer):
    """`CompactTransformer` for timm."""

    def name_of_pool(self) -> str:
        return super().name_of_pool() if self.attention_pool is None else 'sequence'


class CeiTClassifier(TimmModel, CeiT):
    """`CeiT` for timm; its features are one token, the output of layer-wise attention."""

    def last_features(self, outputs: list[Tensor], plan: PositionPlan) -> Tensor:
        return self.attend_layers([self.pool(x) for x in outputs], plan)[:, None]

    def pool_features(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def prune_end(self, layers: bool, norm: bool, head: bool) -> None:
        super().prune_end(layers, norm, head)
        if head:
            for name in ('lca', 'pos_layer_embed'):
                setattr(self, name, None)


class SwinClassifier(TimmModel, Swin):
    """`Swin` for timm; its maps are (B, h, w, C), one a stage.

    The ``img_size`` of the constructor decides the windows.
    """

    output_fmt = 'NHWC'
    layers_coarse = ((r'^layers\.(\d+)', None),)
    # a stage ends with its merging
    layers_fine = ((r'^layers\.(\d+)\.downsample', (99998,)), (r'^layers\.(\d+)\.\w+\.(\d+)', None))

    def describe_features(self) -> list[dict]:
        return [dict(module=f'layers.{stage}', num_chs=self.embed_dim * 2 ** stage,
                     reduction=self.stride * 2 ** stage) for stage in range(len(self.depths))]

    def pool_features(self, x: Tensor) -> Tensor:
        return x.mean(dim=(1, 2))

    def forward_intermediates(self, x: Tensor, indices: int | list[int] | None = None,  # type: ignore[override]
                              norm: bool = False, stop_early: bool = False,
                              output_fmt: str = 'NCHW', intermediates_only: bool = False):
        """See `TimmModel`; a map for each stage. ``norm`` applies to the last one alone."""
        wanted, deepest = take_indices(len(self.layers), indices)
        count = deepest + 1 if stop_early and intermediates_only else len(self.layers)
        outputs, plan = self.encode(x, count)
        maps = []
        for stage in wanted:
            y = outputs[stage]
            if norm and stage == len(self.depths) - 1:
                y = self.finish(y, plan)
            maps.append(as_maps(y.flatten(1, 2), y.shape[1:3], output_fmt))
        return maps if intermediates_only else (self.finish(outputs[-1], plan), maps)

    def prune_intermediate_layers(self, indices: int | list[int] = 1,
                                  prune_norm: bool = False, prune_head: bool = True) -> list[int]:
        wanted, deepest = take_indices(len(self.layers), indices)
        shorter = deepest < len(self.layers) - 1
        self.layers, self.depths = self.layers[:deepest + 1], self.depths[:deepest + 1]
        self.stages()[-1].downsample = None
        self.prune_end(shorter, prune_norm, prune_head)
        return wanted


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
        wanted, _ = take_indices(4, indices)
        levels = self(x)
        maps = [as_maps(levels[level].flatten(2).transpose(1, 2), levels[level].shape[2:],
                        output_fmt) for level in wanted]
        return maps if intermediates_only else (levels[-1], maps)
