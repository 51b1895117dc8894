"""Values that depend on each other, or that mmengine checks too late."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mmengine import registry

from lape_mm.backbones.archs import ARCHS

from ..config import lookup, our_backbones, walk
from .report import Report
from .settings import places
from .signatures import short

TOGETHER = (('train_dataloader', 'train_cfg', 'optim_wrapper'),
            ('val_dataloader', 'val_cfg', 'val_evaluator'),
            ('test_dataloader', 'test_cfg', 'test_evaluator'))
# integers and their minimum
WHOLE = {'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1,
         'auto_scale_lr.base_batch_size': 1, 'randomness.seed': 0}
IOU_METRICS = ('mIoU', 'mDice', 'mFscore')  # mmseg reads them after the first validation


def check_values(report: Report, mode: str) -> None:
    """Reports missing settings, and values out of range.

    Args:
        report: collects the problems; `check_settings` has checked the names.
        mode: 'train' or 'test'.
    """
    cfg, model = report.cfg, report.cfg.get('model')
    if not isinstance(model, Mapping) or 'type' not in model:
        report.add('model', f"{short(model)}: expected a dict with a 'type'")
    for keys in TOGETHER:
        given = [key for key in keys if cfg.get(key) is not None]
        for key in keys if given or keys[0].startswith(mode) else ():
            if key not in given:
                others = ' and '.join(other for other in keys if other != key)
                report.add(key, f'is missing: {others} need it')
        loader: Any = cfg.get(keys[0])
        for key in ('dataset', 'sampler') if isinstance(loader, Mapping) else ():
            if not loader.get(key):
                report.add(keys[0], f'needs {key!r}')
    wrapper: Any = cfg.get('optim_wrapper')
    if isinstance(wrapper, Mapping) and not {'optimizer', 'constructor'} & set(wrapper):
        report.add('optim_wrapper', "needs 'optimizer'")
    for key, least in WHOLE.items():
        value = lookup(cfg, key)
        if value is not None and not (
                isinstance(value, (int, float)) and value >= least and value % 1 == 0):
            where, _, name = key.rpartition('.')
            report.add(where, f'{name}={value!r}: expected a whole number from {least}')
    check_normalisation(report)
    check_metrics(report)


def check_normalisation(report: Report) -> None:
    """Warns if images are not normalised as for the backbone's published weights."""
    archs = {str(node.get('arch')) for _, node in our_backbones(report.cfg)}
    for where, node in walk(dict(report.cfg.items())):
        given: Any = node.get('mean'), node.get('std')
        if not where.endswith('data_preprocessor') or [len(one or ()) for one in given] != [3, 3]:
            continue
        for arch in sorted(name for name in archs if name in ARCHS and ARCHS[name].timm):
            for name, values, wanted in zip(('mean', 'std'), given, ARCHS[arch].normalisation):
                if not np.allclose(values, np.multiply(wanted, 255), atol=.6):
                    report.warn(where, f'{name}={short(list(values))}, but the weights of '
                                f'{arch!r} were trained with '
                                f'{[round(255 * value, 3) for value in wanted]}')


def check_metrics(report: Report) -> None:
    """Reports bad metric settings that mmengine would read only after the first validation."""
    classes: Any = lookup(report.cfg, 'model.head.num_classes')
    for place in places(report.cfg):
        if place.build is not registry.METRICS or not isinstance(place.node, Mapping):
            continue
        for name in np.atleast_1d(place.node.get('iou_metrics', [])):
            if name not in IOU_METRICS:
                report.add(place.where, f'iou_metrics: there is no {str(name)!r}, expected some of '
                           f'{", ".join(IOU_METRICS)}')
        topk = place.node.get('topk', 1)
        ranks = np.atleast_1d(topk).tolist() if isinstance(classes, int) else []
        if str(place.node.get('type')).endswith('Accuracy') and not all(
                isinstance(rank, int) and rank <= classes for rank in ranks):
            report.add(place.where, f'topk={short(topk)}: expected whole numbers of 1 to '
                       f'model.head.num_classes={classes}')
