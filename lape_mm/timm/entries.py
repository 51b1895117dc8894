"""The names under which timm finds our models: ``architecture.joining``.

timm splits a name at its first dot and hands the rest, which it calls a pretrained tag, to the
architecture's entry. Here the tag names the joining. Where timm has the architecture itself (DeiT,
Swin) its entry is wrapped: our tags build our model, and everything else, the plain name first of
all, goes to timm's own entry as it came.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from timm.models import (
    _factory,
    _registry,
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
)

from lape_mm.position import PRESETS

from .classes import (
    CeiTClassifier,
    CompactClassifier,
    DeiTClassifier,
    SwinClassifier,
    T2TViTClassifier,
    ViTAdapterFeatures,
)
from .model import TimmModel
from .weights import fit

CIFAR100 = dict(input_size=(3, 32, 32), num_classes=100, crop_pct=1., mean=(.5071, .4867, .4408),
                std=(.2675, .2565, .2761))


@dataclass(frozen=True)
class Architecture:
    """A model of timm's naming, in every joining.

    Attributes:
        cls: its class.
        arguments: of the class.
        first_conv: name of the first convolution; None where there is none.
        data: what timm's evaluation has to know, over its defaults.
        without: joinings that the class refuses.
        out_indices: of ``features_only``.
    """

    cls: type
    arguments: Mapping
    first_conv: str | None = 'patch_embed.proj'
    data: Mapping = field(default_factory=dict)
    without: tuple[str, ...] = ()
    out_indices: int | tuple[int, ...] = 3

    @property
    def joinings(self) -> list[str]:
        """The tags."""
        return [name for name in PRESETS if name not in self.without]


STAGES = (0, 1, 2, 3)
STATIC = ('unshare',)  # joinings that need a learned table a layer, all of one grid
ARCHITECTURES = {
    **{f'deit_{arch}_patch16_224': Architecture(DeiTClassifier, dict(arch=arch))
       for arch in ('tiny', 'small', 'base')},
    **{f'swin_{arch}_patch4_window7_224': Architecture(
        SwinClassifier, dict(arch=arch), data=dict(crop_pct=.9), without=STATIC,
        out_indices=STAGES) for arch in ('tiny', 'small', 'base')},
    **{f'ceit_{arch}_patch16_224': Architecture(
        CeiTClassifier, dict(arch=arch), 'patch_embed.backbone.conv')
       for arch in ('tiny', 'small')},
    't2t_vit_7': Architecture(T2TViTClassifier, dict(arch='7'), None, dict(crop_pct=.9), STATIC),
    'vit_lite_7_4_32': Architecture(CompactClassifier, dict(arch='vit_lite_7_4'),
                                    'patch_embed.conv_layers.0.0', CIFAR100),
    'cvt_7_4_32': Architecture(CompactClassifier, dict(arch='cvt_7_4'),
                               'patch_embed.conv_layers.0.0', CIFAR100),
    'cct_7_3x1_32': Architecture(CompactClassifier, dict(arch='cct_7_3x1'),
                                 'patch_embed.conv_layers.0.0', CIFAR100),
    **{f'vit_adapter_{arch}_patch16': Architecture(
        ViTAdapterFeatures, dict(arch=arch), None, out_indices=STAGES)
       for arch in ('tiny', 'small', 'base')},
}
THEIRS = {name: _registry._model_entrypoints[name] for name in ARCHITECTURES
          if name in _registry._model_entrypoints}


def data_cfg(name: str) -> dict:
    """timm's pretrained cfg, without weights: there are none."""
    arch = ARCHITECTURES[name]
    head = None if arch.cls is ViTAdapterFeatures else 'head'
    return dict(dict(url='', classifier=head, first_conv=arch.first_conv), **arch.data)


default_cfgs = generate_default_cfgs({
    f'{name}.{joining}' if joining else name: data_cfg(name)
    for name in ARCHITECTURES if name not in THEIRS
    for joining in ('', *ARCHITECTURES[name].joinings)})


def tag_of(pretrained_cfg) -> str | None:
    """The tag in any of the forms in which timm hands on a pretrained cfg."""
    if isinstance(pretrained_cfg, Mapping):
        return pretrained_cfg.get('tag')
    return getattr(pretrained_cfg, 'tag', pretrained_cfg)


def make_entry(name: str, theirs: Callable | None) -> Callable:
    """What timm calls for an architecture's name."""
    arch = ARCHITECTURES[name]

    def entry(pretrained: bool = False, pretrained_cfg=None, **kwargs):
        tag = tag_of(pretrained_cfg)
        if theirs is not None and 'joining' not in kwargs and tag not in arch.joinings:
            return theirs(pretrained=pretrained, pretrained_cfg=pretrained_cfg, **kwargs)
        joining = kwargs.pop('joining', tag or 'default')
        if theirs is not None and tag not in arch.joinings:
            pretrained_cfg = data_cfg(name)
        if arch.cls is ViTAdapterFeatures and not kwargs.get('features_only'):
            raise ValueError(f'{name} gives a pyramid of maps: pass features_only=True')
        return build_model_with_cfg(
            arch.cls, name, pretrained, pretrained_cfg=pretrained_cfg,
            pretrained_filter_fn=fit, joining=joining,
            feature_cfg=dict(out_indices=kwargs.pop('out_indices', arch.out_indices),
                             feature_cls='getter'), **{**arch.arguments, **kwargs})

    if theirs is not None:
        return functools.wraps(theirs)(entry)
    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f'`{arch.cls.__name__}` with {dict(arch.arguments)}; see `Architecture`.'
    return entry


def register() -> None:
    """Adds the names to timm's registry, once."""
    for name, arch in ARCHITECTURES.items():
        theirs = THEIRS.get(name)
        entry = make_entry(name, theirs)
        if theirs is None:
            globals()[name] = register_model(entry)
            continue
        # not by register_model: it would forget timm's own weights of this architecture
        _registry._model_entrypoints[name] = entry
        tagged: dict[str, Any] = {f'{name}.{joining}': data_cfg(name) for joining in arch.joinings}
        for tag, cfg in generate_default_cfgs(tagged)[name].cfgs.items():
            cfg.architecture, cfg.tag = name, tag
            _registry._model_pretrained_cfgs[f'{name}.{tag}'] = cfg
            _registry._model_with_tags[name].append(f'{name}.{tag}')
    _factory.load_checkpoint = _load_checkpoint


_their_load_checkpoint = _factory.load_checkpoint


def _load_checkpoint(model, checkpoint_path, *args, **kwargs):
    """create_model's ``checkpoint_path``: for our models by our reader, which executes nothing."""
    if isinstance(model, TimmModel):
        return model.load_pretrained(checkpoint_path)
    return _their_load_checkpoint(model, checkpoint_path, *args, **kwargs)
