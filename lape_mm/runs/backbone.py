"""--backbone: one of our backbones in the place of a config's own, in any toolbox.

The old backbone is built without weights and run once. The strides and channels of its maps say
which levels of ours take their places; after that only settings equal to the old maps' channels
have to follow. Nothing here knows a config or an algorithm by name.
"""
from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import log2
from typing import Any, NamedTuple

import torch
from mmengine import registry
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from timm.layers import to_2tuple
from torch import Tensor, nn

from lape_mm import backbones
from lape_mm.wording import first_line

from .checks.build import WithoutValues, silence
from .config import entries, lookup, walk
from .errors import RunError

CLASSES = {'vit_adapter': 'ViTAdapter', 'deit': 'DeiT', 'swin': 'Swin'}
DROP_PATH = {'tiny': .1, 'small': .2, 'base': .3, 'large': .4}
LEVELS = (0, 1, 2, 3)
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
# ViT-Adapter's and DeiT's, for a total batch of 16 and 1024
ADAMW = dict(mmdet=dict(lr=1e-4, weight_decay=.05), mmseg=dict(lr=12e-5, weight_decay=.01),
             mmpretrain=dict(lr=1e-3, weight_decay=.05))
LAYER_DECAY = .95
PREPROCESSOR = r'(model\.|model\.detector\.)?data_preprocessor(\.data_preprocessor)*'
CONSUMERS = ('neck', 'head', 'roi_head', 'decode_head', 'auxiliary_head', 'bbox_head', 'mask_head',
             'rpn_head', 'panoptic_head', 'semantic_head', 'query_head', 'panoptic_fusion_head')


class Map(NamedTuple):
    """Channels and stride of one output; a pooled vector has stride None."""

    channels: int
    stride: float | None


class Unfit(Exception):
    """A part of the config has no place for our maps; the message names it."""


def set_backbone(cfg: Config, name: str) -> None:
    """Replaces the backbone of a config in place, and what depends on it.

    Args:
        name: ``vit_adapter_ARCH``, ``deit_ARCH`` or ``swin_ARCH``.

    Raises:
        RunError: the name is unknown, or a part of the config has no place for the new maps.
    """
    kind, arch = parse(name)
    forget_weights(cfg)
    try:
        with registry.MODELS.switch_scope_and_registry(cfg.get('default_scope')), silence():
            where, owner = find_owner(cfg)
            Replacement(cfg, where, owner, kind, arch).carry_out()
    except Unfit as unfit:
        raise RunError(f'--backbone {name}: {unfit}') from unfit
    set_normalisation(cfg)
    set_optimizer(cfg)
    imports = cfg.get('custom_imports') or {}
    cfg.custom_imports = dict(imports, imports=[
        'lape_mm', *(one for one in to_list(imports.get('imports', [])) if one != 'lape_mm')])


def parse(name: str) -> tuple[str, str]:
    """The class and the arch of a name; RunError with the allowed ones."""
    for prefix, cls in CLASSES.items():
        if name.startswith(f'{prefix}_'):
            arch = name.removeprefix(f'{prefix}_')
            try:
                with torch.device('meta'):
                    getattr(backbones, cls)(arch=arch)
            except ValueError as error:
                raise RunError(f'--backbone {name}: {error}') from error
            return cls, arch
    raise RunError(f'--backbone {name}: expected one of '
                   f'{", ".join(f"{prefix}_tiny" for prefix in CLASSES)} or another arch of these')


def find_owner(cfg: Config) -> tuple[str, Any]:
    """The dict of the model that holds ``backbone``: the model, or the detector in it."""
    for where in ('model', 'model.detector'):
        if isinstance(lookup(cfg, f'{where}.backbone'), Mapping):
            return where, lookup(cfg, where)
    raise Unfit(f'model.type={lookup(cfg, "model.type")!r} has no backbone to replace')


def build(node, what: str) -> nn.Module:
    """Builds a part on the meta device, or on the CPU if it needs values."""
    try:
        try:
            with WithoutValues():
                return registry.MODELS.build(deepcopy(node))
        except (NotImplementedError, RuntimeError):
            return registry.MODELS.build(deepcopy(node))
    except Exception as error:  # a constructor may raise anything
        text = f'{type(error).__name__}: {first_line(error)}'
        raise Unfit(f'{what} cannot be built: {text}') from error


def run(part: nn.Module, given: Any) -> Any:
    """Runs a part on meta tensors; on zeros on the CPU where that is not possible."""
    try:
        return part.to('meta')(given)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        part.to_empty(device='cpu')
        zeros = torch.zeros_like(given, device='cpu') if isinstance(given, Tensor) else [
            torch.zeros_like(one, device='cpu') for one in given]
        return part(zeros)


def outputs(part: nn.Module, given: Any, side: int, what: str) -> list[Map]:
    """Channels and strides of what a part returns for an image of ``side`` pixels.

    Raises:
        Unfit: it returns anything but maps or one vector.
    """
    found = run(part, given)
    found = [found] if isinstance(found, Tensor) else found
    if not isinstance(found, Sequence) or not all(
            isinstance(one, Tensor) and one.dim() in (2, 4) for one in found):
        raise Unfit(f'{what} gives something other than maps')
    return [Map(one.shape[1], side / one.shape[3] if one.dim() == 4 else None) for one in found]


class Replacement:
    """One replacement: what the old backbone gave, and where the new maps go.

    Args:
        cfg: the config, changed in place.
        where, owner: dotted path and dict of what holds ``backbone``, ``neck`` and the heads.
        kind, arch: of the new backbone.
    """

    def __init__(self, cfg: Config, where: str, owner: Any, kind: str, arch: str):
        self.cfg, self.where, self.owner, self.kind, self.arch = cfg, where, owner, kind, arch
        self.dense = cfg.get('default_scope') != 'mmpretrain'

    def carry_out(self) -> None:
        """Replaces the backbone, and the channels of neck and heads.

        Raises:
            Unfit: names the part without a place for the new maps.
        """
        self.refuse()
        old = self.probe_old()
        neck = self.owner.get('neck')
        after = self.probe_neck(neck, old) if neck else old
        if self.dense and neck and only_makes_pyramid(old, after):
            self.owner.pop('neck')
            old, neck = after, None
        elif not self.dense:
            self.owner.pop('neck', None)
            after, neck = old, None
        new = self.place(old)
        if neck:
            self.owner.neck = follow(neck, old, new, 'neck')
            before, after = after, self.probe_neck(self.owner.neck, new)
        else:
            before, after = old, new
        if len(before) == len(after):
            for name in CONSUMERS[1:]:
                if name in self.owner:
                    self.owner[name] = follow(self.owner[name], before, after, name)
        self.verify(new)

    def refuse(self) -> None:
        """Refuses structures that need the old backbone itself."""
        if not self.dense and self.cfg.model.type != 'ImageClassifier':
            raise Unfit(f'model.type={self.cfg.model.type!r}: expected an ImageClassifier')
        if not self.dense and self.kind == 'ViTAdapter':
            raise Unfit('a classifier takes a vector, and ViT-Adapter gives maps: take deit_'
                        f'{self.arch}')
        for name in CONSUMERS:
            for path, _ in entries(self.owner.get(name), f'{self.where}.{name}'):
                if path.endswith('backbone'):
                    raise Unfit(f'{path} is a second backbone')
        if lookup(self.owner, 'roi_head.shared_head'):
            raise Unfit(f'{self.where}.roi_head.shared_head is a stage of the old backbone')
        channels = self.owner.backbone.get('in_channels', 3)
        if channels != 3:
            raise Unfit(f'{self.where}.backbone.in_channels={channels}: ours take images of three '
                        'channels')

    def probe_old(self) -> list[Map]:
        """The maps of the old backbone."""
        node = deepcopy(self.owner.backbone)
        for key in ('dcn', 'plugins', 'init_cfg'):  # compiled operators, and weights
            node.pop(key, None)
        if node.get('pretrained'):
            node.pretrained = None if isinstance(node.pretrained, str) else False
        what = f'{self.where}.backbone, {node.get("type")},'
        model = revert_sync_batchnorm(build(node, what))
        side = max(to_2tuple(node.get('img_size') or 512))
        images = torch.empty(2, 3, side, side, device='meta')
        found = []
        for training in (False, True):
            model.train(training)
            with torch.no_grad():
                try:
                    found.append(outputs(model, images, side, what))
                except Unfit:
                    raise
                except Exception as error:
                    if training:  # such as drop path on the meta device
                        break
                    raise Unfit(f'{what} cannot be run: {type(error).__name__}: '
                                f'{first_line(error)}') from error
        if len(found) > 1 and found[0] != found[1]:
            raise Unfit(f'{what} gives other maps in training than in validation')
        return found[0]

    def probe_neck(self, node: Any, maps: list[Map]) -> list[Map]:
        """The maps of a neck; the images' stride is 1."""
        what = f'{self.where}.neck'
        neck = revert_sync_batchnorm(build(node, what)).eval()
        try:
            with torch.no_grad():
                return outputs(neck, images_of(maps), SIDE, what)
        except Unfit:
            raise
        except Exception:  # more than maps goes in
            return []

    def place(self, old: list[Map]) -> list[Map]:
        """Sets the new backbone, with a level for each old map; returns its maps."""
        node = ConfigDict(type=f'lape_mm.{self.kind}', arch=self.arch, joining='default',
                          drop_path_rate=DROP_PATH.get(self.arch.split('_')[-1], .1))
        self.owner.backbone = node
        if not self.dense:
            return self.probe_new()
        if any(one.stride is None for one in old):
            raise Unfit(f'{self.where}.backbone: the old one gives a vector, not maps')
        levels = tuple(nearest(one.stride or 1.) for one in old)
        if self.cfg.default_scope == 'mmdet' and self.kind != 'DeiT':
            for one, level in zip(old, levels):
                if abs(log2((one.stride or 1.) / 4) - level) > .3:
                    raise Unfit(f'{self.where}: its heads expect a map of stride {one.stride:g}, '
                                'ours have 4, 8, 16 and 32')
        if self.kind == 'ViTAdapter':
            node.out_indices = levels
        elif self.kind == 'Swin':
            rising = list(levels) == sorted(set(levels)) and levels[-1] == 3
            if not rising and (self.cfg.default_scope != 'mmseg' or len(old) != 4):
                raise Unfit(f'{self.where}: its parts read strides {listed(old)}, and Swin gives '
                            'each of 4, 8, 16 and 32 once: take vit_adapter_tiny')
            node.out_indices = levels if rising else LEVELS
        else:
            strides = {nearest(one.stride or 1.) for one in old}
            if self.cfg.default_scope == 'mmdet' and strides != {2} or len(strides) > 2:
                raise Unfit(f'{self.where}: its parts read strides {listed(old)}, and DeiT gives '
                            'maps of stride 16 alone: take vit_adapter_tiny')
            depth = backbones.DeiT(arch=self.arch).depth
            node.out_indices = tuple(depth * (number + 1) // len(old) - 1
                                     for number in range(len(old)))
        return self.probe_new()

    def probe_new(self) -> list[Map]:
        """The maps of the new backbone."""
        what = f'{self.where}.backbone'
        model = build(self.owner.backbone, what).eval()
        with torch.no_grad():
            return outputs(model, torch.empty(2, 3, SIDE, SIDE, device='meta'), SIDE, what)

    def verify(self, new: list[Map]) -> None:
        """Builds the model, refuses what reads the backbone itself, and drops unread levels."""
        model = build(self.cfg.model, 'model')
        for part in self.where.split('.')[1:]:
            model = getattr(model, part, model)
        check_attributes(model, self.where)
        node = self.owner.backbone
        if self.kind == 'ViTAdapter':
            read = read_maps(model, new)
            levels = node.out_indices
            keep = sorted(levels[index] for index in read) or sorted(levels)
            # a level that is read takes the place of one that nobody reads
            node.out_indices = tuple(
                level if index in read else min(keep, key=lambda one: abs(one - level))
                for index, level in enumerate(levels))
            whole = self.cfg.default_scope == 'mmseg' and set(node.out_indices) == {*LEVELS}
            node.variant = 'segmentation' if whole else 'detection'
        elif self.dense and len(read_maps(model, new)) < len(new):
            self.cfg.find_unused_parameters = True


SIDE = 512  # pixels of the images that our backbones and the necks are probed with


def images_of(maps: list[Map]) -> list[Tensor]:
    """Meta tensors of these channels and strides, (2, C, h, w)."""
    sides = [round(SIDE / (one.stride or 1.)) for one in maps]
    return [torch.empty(2, one.channels, side, side, device='meta')
            for one, side in zip(maps, sides)]


def nearest(stride: float) -> int:
    """The level of the nearest of strides 4, 8, 16 and 32."""
    return min(LEVELS, key=lambda level: abs(log2(stride / 4) - level))


def listed(maps: list[Map]) -> str:
    """Strides for a message."""
    return ', '.join(f'{one.stride:g}' for one in maps)


def only_makes_pyramid(old: list[Map], after: list[Map]) -> bool:
    """Whether a neck only gives the equal maps of a plain ViT different strides."""
    return len(old) == len(after) > 1 and len({one.stride for one in old}) == 1 \
        and len({one.stride for one in after}) == len(after)


def follow(node: Any, old: list[Map], new: list[Map], name: str) -> Any:
    """A neck or head whose channels are the new maps' wherever they were the old ones'."""
    before, after = [one.channels for one in old], [one.channels for one in new]
    if before == after:
        return node
    node = deepcopy(node)
    first = node[0] if name == 'neck' and isinstance(node, list) else node
    for path, part in [('', first)] if name == 'neck' else walk({name: node}):
        for key in ('in_channels', 'c1_in_channels', 'out_channels'):
            value = part.get(key)
            if key == 'out_channels' and not (name == 'neck' and isinstance(value, (list, tuple))
                                              or path.endswith('roi_extractor')):
                continue
            if key in part:
                index = 0 if key.startswith('c1') else part.get(
                    'in_index', -1 if name in ('decode_head', 'auxiliary_head') else None)
                part[key] = replaced(value, before, after, index)
        # a convolution-free FCNHead hands its input on
        if part.get('num_convs') == 0 and 'channels' in part and isinstance(
                part.get('in_channels'), int) and part.channels in before:
            part.channels = part.in_channels
    return node


def replaced(value: Any, before: list[int], after: list[int], index: Any) -> Any:
    """Channels after the change, of the same type.

    Args:
        index: of the maps that are read; None if that is not said.
    """
    if isinstance(value, (list, tuple)):
        if isinstance(index, (list, tuple)) and len(index) == len(value):
            pairs = [(before[one], after[one]) for one in index]
        elif list(value[:len(before)]) == before:
            pairs = list(zip(before, after))
        else:
            table = dict(zip(before, after))
            return type(value)(table.get(one, one) for one in value)
        changed = [to if one == old else one for one, (old, to) in zip(value, pairs)]
        return type(value)([*changed, *value[len(pairs):]])
    if isinstance(index, int):
        return after[index] if value == before[index] else value
    return dict(zip(before, after)).get(value, value)


def check_attributes(model: Any, where: str) -> None:
    """Refuses a model whose code reads attributes that our backbone does not have."""
    for part in {type(one): one for one in model.modules()}.values():
        for cls in type(part).__mro__:
            if cls.__module__.startswith('mm') and 'backbone' in vars(part).get('_modules', {}):
                for name in re.findall(r'self\.backbone\.(\w+)', source(cls)):
                    if not hasattr(part.backbone, name):
                        raise Unfit(f'{where}: {cls.__name__} reads backbone.{name}, which the '
                                    'old backbone alone has')


def source(cls: type) -> str:
    """The code of a class; '' where there is none."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ''


def read_maps(model: Any, maps: list[Map]) -> set[int]:
    """The maps that the neck, or the heads of mmseg, read; all where that cannot be found out."""
    everything = set(range(len(maps)))
    heads = [getattr(model, name, None) for name in ('decode_head', 'auxiliary_head')]
    parts = [model.neck] if getattr(model, 'neck', None) is not None else [
        one for head in heads if head is not None
        for one in (head if isinstance(head, nn.ModuleList) else [head])]
    read: set[int] = set()
    for part in parts:
        given = [one.requires_grad_() for one in images_of(maps)]
        try:
            found = revert_sync_batchnorm(part).to('meta')(given)
            total = sum(value.sum() for _, value in entries(dict(found=found))
                        if isinstance(value, Tensor) and value.requires_grad)
            grads = torch.autograd.grad(total, given, allow_unused=True)
        except Exception:
            return everything
        read |= {index for index, grad in enumerate(grads) if grad is not None}
    return read or everything


def forget_weights(cfg: Config) -> None:
    """Drops weights that were trained with the old backbone."""
    if cfg.get('load_from'):
        cfg.load_from = None
    for where in ('model', 'model.detector'):
        node = lookup(cfg, where)
        if isinstance(node, Mapping):
            node.pop('pretrained', None)
            if 'checkpoint' in (lookup(node, 'init_cfg') or {}):
                node.pop('init_cfg')


def set_normalisation(cfg: Config) -> None:
    """ImageNet's mean and standard deviation, RGB, and maps without a rest."""
    for path, node in walk(dict(cfg.items())):
        # a tracker's reid model has its own
        if re.fullmatch(PREPROCESSOR, path) and 'mean' in node:
            node.update({key: list(value) for key, value in IMAGENET.items()})
            rgb = 'to_rgb' if cfg.default_scope == 'mmpretrain' or 'to_rgb' in node \
                else 'bgr_to_rgb'
            node[rgb] = True
            node.pop('rgb_to_bgr', None)
            if node.get('pad_size_divisor', 32) % 32:
                node.pad_size_divisor = 32


def set_optimizer(cfg: Config) -> None:
    """AdamW with layer-wise decay; AdamW's own settings, ``clip_grad`` and the wrapper stay."""
    wrapper = cfg.get('optim_wrapper')
    if not isinstance(wrapper, Mapping):
        return  # a tracker that is only tested
    optimizer = wrapper.get('optimizer') or {}
    if optimizer.get('type') not in ('AdamW', torch.optim.AdamW):
        chosen = dict(type='AdamW', betas=(.9, .999), **ADAMW[cfg.default_scope])
        ratio = chosen['lr'] / optimizer.get('lr', chosen['lr'])
        wrapper.optimizer = ConfigDict(chosen)
        for _, schedule in walk({'param_scheduler': cfg.get('param_scheduler')}):
            if schedule.get('eta_min'):
                schedule.eta_min *= ratio
    wrapper.constructor = 'lape_mm.LayerDecayOptimWrapperConstructor'
    wrapper.paramwise_cfg = ConfigDict(layer_decay_rate=LAYER_DECAY)


def to_list(value: Any) -> list:
    """A value, or several, as a list."""
    return [value] if isinstance(value, str) else list(value or [])
