"""Values of a config that go together, or that nothing looks at before it is too late."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any

from mmengine import registry

from ..config import walk
from .calls import resolve
from .settings import places
from .signatures import accepted, short

TOGETHER = {'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
            'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
            'test': ('test_dataloader', 'test_cfg', 'test_evaluator')}
IOU_METRICS = ('mIoU', 'mDice', 'mFscore')  # mmseg looks at them after the first validation


def check_values(report, mode: str) -> None:
    """Reports what is missing, and what is out of range; see `preflight.Report`.

    Args:
        report: takes the problems; its config's names are known, see
            `lape_mm.runs.checks.settings`.
        mode: 'train' or 'test'.
    """
    check_complete(report, mode)
    check_loop(report)
    check_statistics(report)
    check_metrics(report)
    cfg = report.cfg
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size', 1)
    if not whole(base):
        report.add('auto_scale_lr', f'base_batch_size={base!r}: expected a whole number from 1')
    seed = (cfg.get('randomness') or {}).get('seed')
    if seed is not None and not whole(seed, 0):
        report.add('randomness', f'seed={seed!r}: expected None or a whole number from 0')
    level = cfg.get('log_level', 'INFO')
    if isinstance(level, str) and not isinstance(logging.getLevelName(level), int):
        report.add('log_level', f'{level!r}: expected DEBUG, INFO, WARNING or ERROR')


def check_complete(report, mode: str) -> None:
    """What the run needs, and what mmengine takes together or not at all."""
    cfg = report.cfg
    model = cfg.get('model')
    if not isinstance(model, Mapping) or 'type' not in model:
        report.add('model', f"{short(model)}: expected a dict with a 'type'")
    for part, keys in TOGETHER.items():
        given = [key for key in keys if cfg.get(key) is not None]
        if not given and part != mode:
            continue
        for key in keys:
            if key not in given:
                others = ' and '.join(other for other in keys if other != key)
                report.add(key, f'is missing, but goes together with {others}')
        if isinstance(loader := cfg.get(keys[0]), Mapping):
            for key in ('dataset', 'sampler'):
                if not loader.get(key):
                    report.add(keys[0], f'needs {key!r}')


def check_loop(report) -> None:
    """How long the run is, and how often it is evaluated."""
    loop = report.cfg.get('train_cfg')
    if not isinstance(loop, Mapping):
        return
    if 'type' not in loop and 'by_epoch' not in loop:
        report.add('train_cfg', f"{short(dict(loop))}: expected a 'type', or by_epoch=True or "
                   'False')
        return
    for key, least in (('max_epochs', 1), ('max_iters', 1), ('val_interval', 1), ('val_begin', 0)):
        if key in loop and not whole(loop[key], least):
            report.add('train_cfg', f'{key}={loop[key]!r}: expected a whole number from {least}')
    kind = loop.get('type', 'EpochBasedTrainLoop' if loop.get('by_epoch') else 'IterBasedTrainLoop')
    build = resolve(kind, registry.LOOPS, report.cfg.get('default_scope'))
    for key in ('max_epochs', 'max_iters'):
        if build and key in accepted(build).parameters and key not in loop:
            report.add('train_cfg', f'{build.__name__} needs {key!r}')


def check_statistics(report) -> None:
    """Mean and standard deviation of the pixels, as long as each other and no division by 0."""
    for where, node in walk({'model': report.cfg.get('model'),
                             'data_preprocessor': report.cfg.get('data_preprocessor')}):
        if where.split('.')[-1] != 'data_preprocessor':
            continue
        mean: Any = node.get('mean')
        std: Any = node.get('std')
        if mean is None and std is None:
            continue
        pair = f'mean={short(mean)}, std={short(std)}'
        if not all(isinstance(values, (list, tuple)) and values and all(
                isinstance(value, Real) for value in values) for values in (mean, std)):
            report.add(where, f'{pair}: expected a list of numbers each, one a channel')
        elif len(mean) != len(std):
            report.add(where, f'{pair}: expected as many of one as of the other')
        elif min(std) <= 0:
            report.add(where, f'std={short(std)}: expected numbers above 0')


def check_metrics(report) -> None:
    """Metrics that are known to be there only when the first validation has ended."""
    classes = ((report.cfg.get('model') or {}).get('head') or {}).get('num_classes')
    for place in places(report.cfg):
        if place.build is not registry.METRICS or not isinstance(place.node, Mapping):
            continue
        kind, node = str(place.node.get('type')).split('.')[-1], place.node
        if kind == 'IoUMetric':
            chosen = node.get('iou_metrics', IOU_METRICS)
            chosen = [chosen] if isinstance(chosen, str) else chosen
            if unknown := [name for name in chosen if name not in IOU_METRICS]:
                report.add(place.where, f'iou_metrics={short(chosen)}: there is no {unknown[0]!r}, '
                           f'expected some of {", ".join(IOU_METRICS)}')
        elif kind == 'Accuracy' and isinstance(classes, int):
            ranks = node.get('topk', 1)
            ranks = ranks if isinstance(ranks, (list, tuple)) else [ranks]
            if not all(whole(rank) and rank <= classes for rank in ranks):
                report.add(place.where, f'topk={short(node["topk"])}: expected whole numbers of 1 '
                           f'to model.head.num_classes={classes}')


def whole(value, least: int = 1) -> bool:
    """Whether a value is a whole number, such as 3 or 3.0, of at least ``least``."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= least \
        and float(value).is_integer()
