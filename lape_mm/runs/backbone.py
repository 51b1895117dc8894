"""--backbone: replaces a config's backbone with one of ours, in any toolbox.

The old backbone is run without its weights. The strides of its maps decide which of our levels
replace them. Then every channel setting of neck and heads that equals an old map's channels
changes to the new map's. No config is special-cased by name.
"""
from __future__ import annotations

import re
from copy import deepcopy
from math import log2
from typing import Any

import torch
from mmengine import registry
from mmengine.config import Config, ConfigDict
from timm.layers import to_2tuple

from lape_mm import backbones
from lape_mm.backbones.archs import ARCHS

from .config import entries, lookup, walk
from .errors import RunError
from .probe import Map, Unfit, build, check_installed, images, outputs, read_maps, silence, tensors

CLASSES = {'vit_adapter': 'ViTAdapter', 'deit': 'DeiT', 'swin': 'Swin'}
DROP_PATH = {'tiny': .1, 'small': .2, 'base': .3, 'large': .4}
LEVELS = (0, 1, 2, 3)  # strides 4, 8, 16 and 32
HEADS = ('head', 'roi_head', 'decode_head', 'auxiliary_head', 'bbox_head', 'mask_head', 'rpn_head',
         'panoptic_head', 'semantic_head', 'query_head', 'track_head')
PREPROCESSOR = r'(model\.|model\.detector\.)?data_preprocessor(\.data_preprocessor)*'
# ViT-Adapter's for detection and segmentation, DeiT's for a total batch of 1024
ADAMW = dict(mmdet=dict(lr=1e-4, weight_decay=.05), mmseg=dict(lr=12e-5, weight_decay=.01),
             mmpretrain=dict(lr=1e-3, weight_decay=.05))
LAYER_DECAY = .95


def set_backbone(cfg: Config, name: str) -> None:
    """Replaces a config's backbone and what depends on it, in place; RunError if that fails."""
    if name in ARCHS:
        name = f'{"deit" if cfg.default_scope == "mmpretrain" else "vit_adapter"}_{name}'
    prefix = next((one for one in CLASSES if name.startswith(f'{one}_')), None)
    if prefix is None:
        raise RunError(f'--backbone {name}: expected {"_ARCH, ".join(CLASSES)}_ARCH, such as '
                       'deit_tiny, or an arch such as dinov2_small')
    arch = name.removeprefix(f'{prefix}_')
    try:
        with torch.device('meta'):
            encoder = getattr(backbones, CLASSES[prefix])(arch=arch)
        with registry.MODELS.switch_scope_and_registry(cfg.default_scope), silence():
            Replacement(cfg, encoder, arch).carry_out()
    except ValueError as error:
        raise RunError(f'--backbone {name}: {error}') from error
    set_normalisation(cfg, arch)
    set_optimizer(cfg)
    imports = cfg.setdefault('custom_imports', ConfigDict(imports=[]))
    imports.imports = list(dict.fromkeys(['lape_mm', *imports.imports]))


class Replacement:
    """Replaces a backbone. ``owner``: dict of backbone, neck and heads; ``where``: its path."""

    def __init__(self, cfg: Config, encoder: Any, arch: str):
        self.cfg, self.encoder, self.arch, self.scope = cfg, encoder, arch, cfg.default_scope
        self.kind = type(encoder).__name__
        self.where = next((where for where in ('model', 'model.detector') if lookup(
            cfg, f'{where}.backbone.type')), '')
        self.owner: Any = lookup(cfg, self.where)

    def carry_out(self) -> None:
        """Replaces the backbone and adapts the channels of neck and heads; Unfit if that fails."""
        self.refuse()
        if self.cfg.get('load_from'):
            self.cfg.load_from = None
        for node in (self.cfg.model, self.owner):  # weights that were trained with the old backbone
            node.pop('pretrained', None)
            if 'checkpoint' in (node.get('init_cfg') or {}):
                node.pop('init_cfg')
        unmodified = deepcopy(self.cfg.model)
        old = self.old_maps()
        after = self.neck_maps(old)
        # a neck that only turns a plain ViT's equal maps into a pyramid
        pyramid = len(old) == len(after) > 1 == len({one.stride for one in old}) \
            and len({one.stride for one in after}) == len(after)
        if self.scope == 'mmpretrain' or pyramid:  # a classifier gets a vector from ours
            self.owner.pop('neck', None)
            old = after if pyramid else old
        placed = new = self.place(old)
        if self.owner.get('neck'):
            self.owner.neck = follow(self.owner.neck, old, new, 'neck')
            old, new = after, self.neck_maps(new)
        for name in HEADS:
            if self.owner.get(name) and len(old) == len(new):
                self.owner[name] = follow(self.owner[name], old, new, name)
        self.settle(unmodified, placed)

    def refuse(self) -> None:
        """Raises Unfit for models that need the old backbone itself."""
        if not self.where:
            raise Unfit(f'model.type={lookup(self.cfg, "model.type")!r} has no backbone to replace')
        if self.scope == 'mmpretrain':
            if self.cfg.model.type != 'ImageClassifier':
                raise Unfit(f'model.type={self.cfg.model.type!r}: expected an ImageClassifier')
            if self.kind == 'ViTAdapter':
                raise Unfit(f'ViT-Adapter gives no vector to classify: use deit_{self.arch}')
        for name in ('neck', *HEADS):
            for path, _ in entries(self.owner.get(name), f'{self.where}.{name}'):
                if path.endswith('backbone'):
                    raise Unfit(f'{path} is a second backbone')
        if lookup(self.owner, 'roi_head.shared_head'):
            raise Unfit(f'{self.where}.roi_head.shared_head is a stage of the old backbone')
        if (channels := self.owner.backbone.get('in_channels', 3)) != 3:
            raise Unfit(f'{self.where}.backbone.in_channels={channels}: ours take three channels')

    def old_maps(self) -> list[Map]:
        """The maps of the old backbone."""
        node = deepcopy(self.owner.backbone)
        for key in ('dcn', 'plugins', 'init_cfg'):  # compiled operators, and weights
            node.pop(key, None)
        if node.get('pretrained'):
            node.pretrained = None if isinstance(node.pretrained, str) else False
        what = f'{self.where}.backbone, {node.type},'
        model = build(node, what)
        side = max(to_2tuple(node.get('img_size') or images().shape[-1]))
        found = []
        for mode in (True, False):
            model.train(mode)
            found.append(outputs(model, images(side), what, side))
        if len(found[0]) != len(found[1]):
            raise Unfit(f'{what} gives other maps in training than in validation')
        return found[1]

    def neck_maps(self, maps: list[Map]) -> list[Map]:
        """The maps after the neck: ``maps`` without a neck, [] if the neck needs more than maps."""
        if not self.owner.get('neck'):
            return maps
        neck = build(self.owner.neck, what := f'{self.where}.neck').eval()
        try:
            return outputs(neck, tensors(maps), what)
        except Unfit:
            return []

    def place(self, old: list[Map]) -> list[Map]:
        """Sets the new backbone, with one level per old map; returns the new backbone's maps."""
        node = ConfigDict(type=f'lape_mm.{self.kind}', arch=self.arch, joining='default',
                          drop_path_rate=DROP_PATH.get(self.arch.split('_')[-1], .1))
        if self.scope != 'mmpretrain':
            node.out_indices = self.levels(old)
        self.owner.backbone = node
        what = f'{self.where}.backbone'
        return outputs(build(node, what).eval(), images(), what)

    def levels(self, old: list[Map]) -> tuple[int, ...]:
        """``out_indices`` of the new backbone."""
        if any(one.stride is None for one in old):
            raise Unfit(f'{self.where}.backbone: the old one gives a vector, not maps')
        strides = ', '.join(f'{one.stride:g}' for one in old)
        exact = [log2((one.stride or 1.) / 4) for one in old]
        levels = tuple(min(LEVELS, key=lambda level: abs(one - level)) for one in exact)
        index = lookup(self.owner, 'decode_head.in_index')
        if {*levels} == {2} and index == list(LEVELS):  # UPerNet on a plain ViT wants a pyramid
            levels = LEVELS
        # boxes are placed by strides; segmentation heads resize
        off = self.scope == 'mmdet' and any(abs(one - at) > .3 for one, at in zip(exact, levels))
        if self.kind == 'DeiT':
            if off or len({*levels}) > 2 or self.scope == 'mmdet' and {*levels} != {2}:
                raise Unfit(f'{self.where} takes maps of strides {strides}, and DeiT only has 16: '
                            'use vit_adapter_tiny')
            return tuple(self.encoder.depth * number // len(old) - 1
                         for number in range(1, len(old) + 1))
        if off:
            raise Unfit(f'{self.where} takes maps of strides {strides}, ours have 4, 8, 16 and 32')
        if self.kind == 'Swin' and (list(levels) != sorted({*levels}) or levels[-1] != 3):
            if self.scope == 'mmdet' or len(old) != 4:
                raise Unfit(f'{self.where} takes maps of strides {strides}, and Swin gives 4, 8, '
                            '16 and 32 once each: use vit_adapter_tiny')
            return LEVELS
        return levels

    def settle(self, unmodified: Any, new: list[Map]) -> None:
        """Builds the model, drops levels that no part reads, and chooses ViT-Adapter's variant."""
        try:
            model: Any = build(self.cfg.model, 'model')
        except Unfit:
            build(unmodified, 'with its own backbone, too, the model')
            raise
        check_installed(model)
        if self.scope == 'mmpretrain':
            return
        node = self.owner.backbone
        inner = next(part for part in model.modules()
                     if type(getattr(part, 'backbone', None)).__name__ == self.kind)
        levels, read = node.out_indices, read_maps(inner, new)
        if read is None or self.kind != 'ViTAdapter' and len(read) < len(levels):
            self.cfg.find_unused_parameters = True  # for distributed runs
        if self.kind == 'ViTAdapter':
            kept = [levels[index] for index in read or range(len(levels))]
            # the nearest level that is read replaces one that is not
            node.out_indices = tuple(min(kept, key=lambda one: abs(one - level))
                                     for level in levels)
            whole = self.scope == 'mmseg' and {*node.out_indices} == {*LEVELS}
            node.variant = 'segmentation' if whole else 'detection'


def follow(node: Any, old: list[Map], new: list[Map], name: str) -> Any:
    """Returns a neck or head with the old maps' channels replaced by the new maps'."""
    before, after = [one.channels for one in old], [one.channels for one in new]
    if before == after:
        return node
    node, neck = deepcopy(node), name == 'neck'
    last = -1 if name in ('decode_head', 'auxiliary_head') else None  # mmseg's in_index
    first = node[0] if neck and isinstance(node, list) else node
    part: Any
    for path, part in [('', first)] if neck else walk({name: node}):
        wide, read = part.get('out_channels'), part.get('in_channels')
        # RoI extractors, and necks that pass their first maps through
        if path.endswith('roi_extractor') or neck and isinstance(wide, (list, tuple)) \
                and wide[:len(before)] == read:
            part.out_channels = replaced(wide, before, after, None)
        if 'c1_in_channels' in part:
            part.c1_in_channels = replaced(part.c1_in_channels, before, after, 0)
        if 'in_channels' in part:
            was = part.in_channels
            part.in_channels = replaced(was, before, after, part.get('in_index', last))
            # FCNHead without convolutions
            if part.get('num_convs') == 0 and part.get('channels') == was:
                part.channels = part.in_channels
    return node


def replaced(value: Any, before: list[int], after: list[int], index: Any) -> Any:
    """Returns ``value`` with old maps' channels replaced. ``index``: the maps read, if known."""
    table = dict(zip(before, after))
    if not isinstance(value, (list, tuple)):
        if isinstance(index, int):
            table = {before[index]: after[index]}
        return table.get(value, value)
    if isinstance(index, (list, tuple)) and len(index) == len(value):
        before, after = [before[one] for one in index], [after[one] for one in index]
    if list(value[:len(before)]) == before:
        return type(value)([*after, *value[len(before):]])
    return type(value)(table.get(one, one) for one in value)


def set_normalisation(cfg: Config, arch: str) -> None:
    """Sets the arch's mean and standard deviation in RGB, and padding to multiples of 32."""
    node: Any
    for path, node in walk(dict(cfg.items())):
        if re.fullmatch(PREPROCESSOR, path) and 'mean' in node:  # a tracker's reid has its own
            for name, values in zip(('mean', 'std'), ARCHS[arch].normalisation):
                node[name] = [round(255 * value, 3) for value in values]
            node['to_rgb' if cfg.default_scope == 'mmpretrain' or 'to_rgb' in node
                 else 'bgr_to_rgb'] = True
            node.pop('rgb_to_bgr', None)
            if node.get('pad_size_divisor', 32) % 32:
                node.pad_size_divisor = 32


def set_optimizer(cfg: Config) -> None:
    """Sets AdamW with layer-wise decay; keeps the settings of an existing AdamW and the wrapper."""
    wrapper: Any = cfg.get('optim_wrapper')
    if not wrapper:
        return  # a tracker that is only tested
    own = wrapper.get('optimizer') or {}
    if own.get('type') != 'AdamW':
        wrapper.optimizer = ConfigDict(type='AdamW', betas=(.9, .999), **ADAMW[cfg.default_scope])
        schedule: Any
        for _, schedule in walk({'param_scheduler': cfg.get('param_scheduler')}):
            if schedule.get('eta_min'):
                schedule.eta_min *= wrapper.optimizer.lr / own.get('lr', wrapper.optimizer.lr)
    wrapper.constructor = 'lape_mm.LayerDecayOptimWrapperConstructor'
    wrapper.paramwise_cfg = ConfigDict(layer_decay_rate=LAYER_DECAY)
