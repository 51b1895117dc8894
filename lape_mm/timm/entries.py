"""Our names in timm's registry: ``lape_mm_architecture.joining``.

timm splits a name at its first dot and passes the rest, the pretrained tag, to the architecture's
entry. Here the tag names the joining.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from lape_mm.backbones.archs import ARCHS, DEFAULTS
from lape_mm.position import PRESETS

from .classes import (
    CeiTClassifier,
    CompactClassifier,
    DeiTClassifier,
    SwinClassifier,
    T2TViTClassifier,
    ViTAdapterFeatures,
)
from .model import fit

CIFAR100 = dict(input_size=(3, 32, 32), num_classes=100, crop_pct=1., mean=(.5071, .4867, .4408),
                std=(.2675, .2565, .2761))


class Architecture(NamedTuple):
    """One architecture of timm's registry; ``data`` are settings of timm's evaluation."""

    cls: type
    arguments: Mapping
    first_conv: str | None = 'patch_embed.proj'
    data: Mapping = MappingProxyType({})
    joinings: tuple[str, ...] = tuple(PRESETS)
    out_indices: int | tuple[int, ...] = 3  # of features_only


STAGES = (0, 1, 2, 3)
# 'unshare' needs a learned table for each layer, all on one grid
STATIC = tuple(name for name in PRESETS if name != 'unshare')
PUBLISHED = {name: arch for name, arch in ARCHS.items() if arch.timm}


def published(name: str) -> Architecture:
    """The architecture for a name of `lape_mm.backbones.archs.ARCHS`."""
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
    # several weights of one architecture have one name in timm: the first gets it
    **{f'lape_mm_{arch.timm.split(".")[0]}': published(name)
       for name, arch in reversed(PUBLISHED.items())},
    **{f'lape_mm_vit_adapter_{name}': Architecture(
        ViTAdapterFeatures, dict(arch=name), None, out_indices=STAGES) for name in PUBLISHED},
}


# without an address: there are no weights
default_cfgs = generate_default_cfgs({
    f'{name}.{joining}' if joining else name: dict(
        url='', first_conv=arch.first_conv, **arch.data,
        classifier=None if arch.cls is ViTAdapterFeatures else 'head')
    for name, arch in ARCHITECTURES.items() for joining in ('', *arch.joinings)})


def make_entry(name: str, arch: Architecture) -> Callable:
    """The function that timm calls to build an architecture."""
    def entry(pretrained: bool = False, pretrained_cfg=None, **kwargs):
        # timm passes a dict, or the tag itself
        tag = pretrained_cfg.get('tag') if isinstance(pretrained_cfg, dict) else pretrained_cfg
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


# timm reads the module's `default_cfgs`, and adds the names to its `__all__`
globals().update({name: register_model(make_entry(name, arch))
                  for name, arch in ARCHITECTURES.items()})
