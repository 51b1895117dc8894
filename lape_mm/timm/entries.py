"""The backbones with a head as timm models, named ``lape_mm_ARCHITECTURE.JOINING``.

Parameter names are the backbones'. timm splits a model's name at its first dot and passes what
follows, the pretrained tag, to the architecture's entry. Here the tag names the joining.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import feature_take_indices
from torch import Tensor

from lape_mm.backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter
from lape_mm.backbones.archs import ARCHS, DEFAULTS
from lape_mm.position import PRESETS, PositionPlan

from .model import Outputs, TimmModel, as_maps, fit


class DeiTClassifier(TimmModel, DeiT):
    """`DeiT` for timm."""

    def __init__(self, *, distilled: bool = False, **kwargs):
        if distilled:
            raise ValueError(f'distilled={distilled!r}: expected False, because timm models have '
                             'one head. To train with two, use lape_mm.DistilledClassifier')
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
    """`Swin` for timm, with one map (B, h, w, C) per stage; ``img_size`` limits the windows."""

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


CIFAR100 = dict(input_size=(3, 32, 32), num_classes=100, crop_pct=1., mean=(.5071, .4867, .4408),
                std=(.2675, .2565, .2761))


class Architecture(NamedTuple):
    """One architecture in timm's registry; ``data`` holds settings of timm's evaluation."""

    cls: type
    arguments: Mapping
    first_conv: str | None = 'patch_embed.proj'
    data: Mapping = MappingProxyType({})
    joinings: tuple[str, ...] = tuple(PRESETS)
    out_indices: int | tuple[int, ...] = 3  # default with features_only


STAGES = (0, 1, 2, 3)
# 'unshare' needs a learned table for each layer, all on one grid
STATIC = tuple(name for name in PRESETS if name != 'unshare')
PUBLISHED = {name: arch for name, arch in ARCHS.items() if arch.timm}


def published(name: str) -> Architecture:
    """The `Architecture` of a key of `lape_mm.backbones.archs.ARCHS`, for timm's registry."""
    mean, std = ARCHS[name].normalisation
    side = {**DEFAULTS, **ARCHS[name].defaults}['img_size']
    return Architecture(DeiTClassifier, dict(arch=name), data=dict(
        input_size=(3, side, side), mean=mean, std=std))


ARCHITECTURES = {
    **{f'lape_mm_deit_{arch}_patch16_224': Architecture(DeiTClassifier, dict(arch=arch))
       for arch in ('tiny', 'small', 'base')},
    **{f'lape_mm_swin_{arch}_patch4_window7_224': Architecture(
        SwinClassifier, dict(arch=arch), data=dict(crop_pct=.9), joinings=STATIC,
        out_indices=STAGES) for arch in ('tiny', 'small', 'base')},
    **{f'lape_mm_ceit_{arch}_patch16_224': Architecture(
        CeiTClassifier, dict(arch=arch), 'patch_embed.backbone.conv')
       for arch in ('tiny', 'small')},
    'lape_mm_t2t_vit_7': Architecture(
        T2TViTClassifier, dict(arch='7'), None, dict(crop_pct=.9), STATIC),
    **{f'lape_mm_{arch}_32': Architecture(
        CompactClassifier, dict(arch=arch), 'patch_embed.conv_layers.0.0', CIFAR100)
       for arch in ('vit_lite_7_4', 'cvt_7_4', 'cct_7_3x1')},
    **{f'lape_mm_vit_adapter_{arch}_patch16': Architecture(
        ViTAdapterFeatures, dict(arch=arch), None, out_indices=STAGES)
       for arch in ('tiny', 'small', 'base')},
    # some weights share their architecture's name in timm: the first of them gets it
    **{f'lape_mm_{arch.timm.split(".")[0]}': published(name)
       for name, arch in reversed(PUBLISHED.items())},
    **{f'lape_mm_vit_adapter_{name}': Architecture(
        ViTAdapterFeatures, dict(arch=name), None, out_indices=STAGES) for name in PUBLISHED},
}


# the url is empty, because there are no weights
default_cfgs = generate_default_cfgs({
    f'{name}.{joining}' if joining else name: dict(
        url='', first_conv=arch.first_conv, **arch.data,
        classifier=None if arch.cls is ViTAdapterFeatures else 'head')
    for name, arch in ARCHITECTURES.items() for joining in ('', *arch.joinings)})


def make_entry(name: str, arch: Architecture) -> Callable:
    """Returns the function that timm calls to build an architecture."""
    def entry(pretrained: bool = False, pretrained_cfg=None, **kwargs):
        tag = getattr(pretrained_cfg, 'tag', pretrained_cfg)  # of an object, a dict, or the tag
        tag = tag.get('tag') if isinstance(tag, dict) else tag
        joining = kwargs.pop('joining', tag or 'default')
        if arch.cls is ViTAdapterFeatures and not kwargs.get('features_only'):
            raise ValueError(f'{name} gives a pyramid of maps: pass features_only=True')
        return build_model_with_cfg(
            arch.cls, name, pretrained, pretrained_cfg=pretrained_cfg,
            pretrained_filter_fn=fit, joining=joining,
            feature_cfg=dict(out_indices=kwargs.pop('out_indices', arch.out_indices),
                             feature_cls='getter'), **{**arch.arguments, **kwargs})

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f'`{arch.cls.__name__}` with {dict(arch.arguments)}; see `Architecture`.'
    return entry


# timm reads this module's `default_cfgs`, and adds the names to this module's `__all__`
globals().update({name: register_model(make_entry(name, arch))
                  for name, arch in ARCHITECTURES.items()})
