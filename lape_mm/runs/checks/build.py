"""Builds the cheap parts before the run: a bad value is reported in one line with its place.

The model is built on the meta device, the optimizer and its schedules with one parameter. Data
sets, most metrics that use files, and other packages' hooks are not built. The backbone and neck
are also run to compare channels; if one cannot run on the meta device, that check ends.
"""
from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from mmengine import registry
from mmengine.config import Config
from timm.layers import to_2tuple
from torch import nn
from torch.utils.data import DataLoader

from lape_mm.wording import first_line

from ..config import walk
from ..errors import Report
from ..probe import Unfit, WithoutValues, images, outputs, parts_of, silence, tensors
from .settings import Place, places, resolve

FILES = {'ann_file', 'output_dir'}  # metrics read or create these when they are built
OURS = ('mmengine.', 'lape_mm.')  # building their hooks has no side effects
HEADS = ('head', 'decode_head', 'auxiliary_head', 'rpn_head', 'bbox_head')


def build_model(cfg: Config) -> nn.Module:
    """Builds the model of a config, with initial weights; RunError names the part that fails."""
    report = Report(cfg)
    registry.init_default_scope(cfg.default_scope)
    model = trying(report, 'model', cfg.model, lambda: registry.MODELS.build(cfg.model))
    report.stop()
    return model


def check_builds(report: Report) -> nn.Module | None:
    """Builds cheap parts and reports failures; returns the model on the meta device, or None."""
    def model() -> nn.Module | None:
        try:
            with WithoutValues():
                return registry.MODELS.build(deepcopy(node))
        except RuntimeError:  # some code reads values
            return None

    node, wrapper = report.cfg.get('model'), deepcopy(report.cfg.get('optim_wrapper') or {})
    constructor = dict(type=wrapper.pop('constructor', 'DefaultOptimWrapperConstructor'),
                       paramwise_cfg=wrapper.pop('paramwise_cfg', None), optim_wrapper_cfg=wrapper)
    with registry.MODELS.switch_scope_and_registry(report.scope), silence():
        for place in places(report.cfg):
            if isinstance(place.node, Mapping):
                build_place(report, place)
        if 'optimizer' in wrapper:
            trying(report, 'optim_wrapper', constructor,
                   lambda: registry.OPTIM_WRAPPER_CONSTRUCTORS.build(constructor))
        return trying(report, 'model', node, model) if node else None


def build_place(report: Report, place: Place) -> None:
    """Builds one part of the run, with stand-ins for its data set, weights and optimizer."""
    node = {key: deepcopy(value) for key, value in place.node.items() if key not in place.taken}
    number = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([number], lr=.1, momentum=.9)
    stand_ins: dict[Any, dict] = {
        DataLoader: dict(dataset=range(1), collate_fn=None, worker_init_fn=None, sampler=[0],
                         batch_sampler=None),
        registry.TRANSFORMS: {}, registry.METRICS: {}, registry.HOOKS: {},
        registry.OPTIMIZERS: dict(params=[number]),
        registry.OPTIM_WRAPPERS: dict(optimizer=optimizer),
        registry.PARAM_SCHEDULERS: dict(optimizer=optimizer, epoch_length=1)}
    if place.build not in stand_ins:
        return
    node.update(stand_ins[place.build])
    if place.build is DataLoader:
        trying(report, place.where, place.node, lambda: DataLoader(**node))
        return
    kind = node.setdefault('type', place.default)
    cls: Any = resolve(kind, place.build, report.scope)
    if cls.__name__ == 'CocoMetric':
        node.pop('ann_file', None)
    if place.build is registry.METRICS and FILES & set(node) \
            or place.build is registry.HOOKS and not cls.__module__.startswith(OURS) \
            or kind == 'AmpOptimWrapper':  # needs a GPU
        return
    trying(report, place.where, place.node, lambda: place.build.build(node))


def trying(report: Report, where: str, node: Mapping, build: Callable):
    """Returns ``build()``; if it fails, reports which part of ``node`` is bad and returns None."""
    try:
        return build()
    except Exception as error:  # a constructor may raise anything
        built: Any = node
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_name == 'build_from_cfg':
                built = frame.f_locals['cfg']
        text = first_line(error, kind=type(error) is not ValueError, most=600)
        if not str(error):  # an assertion: quote its line
            last = traceback.extract_tb(error.__traceback__)[-1]
            text += f': {last.line} ({last.filename}:{last.lineno})'
        found = {path: part for path, part in walk({where: node})
                 if part.get('type') == built.get('type')}
        # among several of this type, the one with the same settings; its parent may have added some
        same = [path for path, part in found.items() if part == built]
        report.add((same or (list(found) if len(found) == 1 else [where]))[0], text)


def check_channels(report: Report, model: nn.Module) -> None:
    """Reports parts whose ``in_channels`` differ from the channels of the maps they receive."""
    side = max(to_2tuple(report.cfg.model.get('backbone', {}).get('img_size', 224)))
    given: Any = images(side)
    found: list[int] = []
    source = ''
    for where, part in parts_of(model, 'model', 'backbone', 'neck'):
        if source and not expect(report, where, part, found, source):
            return
        try:
            maps = outputs(part, given, where, side, values=False)
        except Unfit:
            return
        given, found, source = tensors(maps), [one.channels for one in maps], where
    heads = [*parts_of(model, 'model', *HEADS)]
    roi_head = getattr(model, 'roi_head', None)
    if not getattr(roi_head, 'with_shared_head', False):
        heads += parts_of(roi_head, 'model.roi_head', 'bbox_head', 'mask_head')
    for where, head in heads if found else ():
        expect(report, where, head, found, source)


def expect(report: Report, where: str, part: nn.Module, found: list[int], source: str) -> bool:
    """Whether a part accepts maps with these channels; reports it if not."""
    wanted, index = (getattr(part, name, None) for name in ('in_channels', 'in_index'))
    if index is not None:  # mmseg's heads pick their maps
        picks = np.atleast_1d(index).tolist()
        if not all(-len(found) <= pick < len(found) for pick in picks):
            report.add(where, f'in_index={index}: {source} gives {len(found)} maps')
            return False
        found = [found[pick] for pick in picks]
    if not isinstance(wanted, (int, list, tuple)):
        return True
    channels = np.atleast_1d(wanted).tolist()
    # heads with an index may concatenate their maps; other parts than FPN may read a part of them
    whole = index is not None or type(part).__name__ == 'FPN'
    fits = channels in (found, [sum(found)]) if whole else set(channels) <= set(found)
    if not fits:
        report.add(where, f'in_channels={wanted}: {source} gives '
                   f'{found[0] if len(found) == 1 else found}')
    return fits
