"""Values that depend on each other, or that mmengine reads too late."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from mmengine import registry

from lape_mm.backbones.archs import ARCHS

from ..config import lookup, our_backbones, walk
from .report import Report
from .settings import places
from .signatures import accepted, resolve, short

TOGETHER = {'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
            'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
            'test': ('test_dataloader', 'test_cfg', 'test_evaluator')}
# integers and their minimum
WHOLE = {'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1,
         'train_cfg.val_begin': 0, 'auto_scale_lr.base_batch_size': 1, 'randomness.seed': 0}
IOU_METRICS = ('mIoU', 'mDice', 'mFscore')  # mmseg reads them after the first validation


def check_values(report: Report, mode: str) -> None:
    """Reports what is missing, and what is out of range.

    Args:
        report: collects the problems; names are checked already (`check_settings`).
        mode: 'train' or 'test'.
    """
    cfg = report.cfg
    check_complete(report, mode)
    for key, least in WHOLE.items():
        where, _, name = key.rpartition('.')
        value = lookup(cfg, key)
        if name in (cfg.get(where) or {}) and not whole(value, least) and not (
                name == 'seed' and value is None):
            report.add(where, f'{name}={value!r}: expected a whole number from {least}')
    level = cfg.get('log_level', 'INFO')
    if isinstance(level, str) and not isinstance(logging.getLevelName(level), int):
        report.add('log_level', f'{level!r}: expected DEBUG, INFO, WARNING or ERROR')
    check_statistics(report)
    if not report.found:
        check_normalisation(report)
    check_metrics(report)


def check_complete(report: Report, mode: str) -> None:
    """Reports what the run lacks, and settings that mmengine needs together."""
    cfg = report.cfg
    model = cfg.get('model')
    if not isinstance(model, Mapping) or 'type' not in model:
        report.add('model', f"{short(model)}: expected a dict with a 'type'")
    for part, keys in TOGETHER.items():
        given = [key for key in keys if cfg.get(key) is not None]
        for key in keys if given or part == mode else ():
            if key not in given:
                others = ' and '.join(other for other in keys if other != key)
                report.add(key, f'is missing; it is needed together with {others}')
        if isinstance(loader := cfg.get(keys[0]), Mapping):
            for key in ('dataset', 'sampler'):
                if not loader.get(key):
                    report.add(keys[0], f'needs {key!r}')
    wrapper: Any = cfg.get('optim_wrapper')
    if isinstance(wrapper, Mapping) and not {'optimizer', 'constructor'} & set(wrapper):
        report.add('optim_wrapper', f"{short(dict(wrapper))}: lacks 'optimizer'")
    loop: Any = cfg.get('train_cfg')
    if not isinstance(loop, Mapping):
        return
    if not {'type', 'by_epoch'} & set(loop):
        report.add('train_cfg', f"{short(dict(loop))}: expected a 'type', or by_epoch=True or "
                   'False')
        return
    kind = loop.get('type', 'EpochBasedTrainLoop' if loop.get('by_epoch') else 'IterBasedTrainLoop')
    build = resolve(kind, registry.LOOPS, report.scope)
    for key in ('max_epochs', 'max_iters'):
        if build and key in accepted(build).parameters and key not in loop:
            report.add('train_cfg', f'{kind} needs {key!r}')


def check_statistics(report: Report) -> None:
    """Reports means and standard deviations of different lengths, and divisions by 0."""
    for where, node in walk({'model': report.cfg.get('model'),
                             'data_preprocessor': report.cfg.get('data_preprocessor')}):
        mean: Any = node.get('mean')
        std: Any = node.get('std')
        if not where.endswith('data_preprocessor') or mean is None and std is None:
            continue
        if not all(isinstance(values, (list, tuple)) and values and all(
                isinstance(value, Real) for value in values) for values in (mean, std)) \
                or len(mean) != len(std):
            report.add(where, f'mean={short(mean)}, std={short(std)}: expected two lists of '
                       'equal length, one number per channel')
        elif min(std) <= 0:
            report.add(where, f'std={short(std)}: expected numbers above 0')


def check_normalisation(report: Report) -> None:
    """Warns of images that are not normalised as those of a backbone's published weights."""
    archs = {node.get('arch') for _, node in our_backbones(report.cfg)
             if isinstance(node.get('arch'), str)}
    for where, node in walk({'model': report.cfg.get('model'),
                             'data_preprocessor': report.cfg.get('data_preprocessor')}):
        if not where.endswith('data_preprocessor') or len(node.get('mean') or ()) != 3:
            continue
        for arch in sorted(name for name in archs if name in ARCHS and ARCHS[name].timm):
            wanted = [[255 * value for value in values] for values in ARCHS[arch].normalisation]
            for name, values in zip(('mean', 'std'), wanted):
                if not np.allclose(node[name], values, atol=.6):
                    report.warn(where, f'{name}={short(list(node[name]))}, but the weights of '
                                f'{arch!r} were trained with {[round(one, 3) for one in values]}')


def check_metrics(report: Report) -> None:
    """Reports settings of metrics that would be read only after the first validation."""
    classes = lookup(report.cfg, 'model.head.num_classes')
    for place in places(report.cfg):
        if place.build is not registry.METRICS:
            continue
        kind = str(place.node.get('type')).split('.')[-1]
        chosen = place.node.get('iou_metrics' if kind == 'IoUMetric' else 'topk', ())
        values = chosen if isinstance(chosen, (list, tuple)) else [chosen]
        if kind == 'IoUMetric' and (unknown := [name for name in values
                                                if name not in IOU_METRICS]):
            report.add(place.where, f'iou_metrics={short(chosen)}: there is no {unknown[0]!r}, '
                       f'expected some of {", ".join(IOU_METRICS)}')
        elif kind == 'Accuracy' and isinstance(classes, int) and not all(
                whole(rank) and rank <= classes for rank in values):
            report.add(place.where, f'topk={short(chosen)}: expected whole numbers of 1 to '
                       f'model.head.num_classes={classes}')


def whole(value, least: int = 1) -> bool:
    """Whether a value is a whole number, such as 3 or 3.0, of at least ``least``."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= least \
        and float(value).is_integer()
