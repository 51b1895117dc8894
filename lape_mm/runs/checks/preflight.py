"""Checks a run's settings, data and checkpoints before the run is built; one line per problem."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from timm.layers import to_ntuple

from lape_mm.backbones.archs import ARCHS
from lape_mm.requirements import install_hint, missing
from lape_mm.wording import some

from ..config import lookup, our_backbones, walk
from ..errors import Report
from .build import check_builds, check_channels
from .data_sets import check_source, path_remedy, sources
from .settings import check_settings, places, short

# a visualizer's backend -> the module that it needs
BACKENDS = {'TensorboardVisBackend': 'tensorboard', 'WandbVisBackend': 'wandb'}
TOGETHER = (('train_dataloader', 'train_cfg', 'optim_wrapper'),
            ('val_dataloader', 'val_cfg', 'val_evaluator'),
            ('test_dataloader', 'test_cfg', 'test_evaluator'))
# integers and their minimum
WHOLE = {'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1,
         'auto_scale_lr.base_batch_size': 1, 'randomness.seed': 0}


def check_config(cfg: Config, mode: str) -> None:
    """Checks a config for 'train' or 'test', without its files; RunError lists the problems."""
    report = Report(cfg)
    check_settings(report)
    report.stop()
    check_values(report, mode)
    check_normalisation(report)
    if (model := check_builds(report)) is not None:
        check_channels(report, model)
    report.stop()


def check_values(report: Report, mode: str) -> None:
    """Reports missing settings, and values that mmengine checks too late or not at all."""
    cfg, model = report.cfg, report.cfg.get('model')
    if not isinstance(model, Mapping) or 'type' not in model:
        report.add('model', f"{short(model)}: expected a dict with a 'type'")
    for keys in TOGETHER:
        lacking = [key for key in keys if cfg.get(key) is None]
        if 0 < len(lacking) < 3 or lacking and keys[0].startswith(mode):
            for key in lacking:
                others = ' and '.join(other for other in keys if other != key)
                report.add(key, f'is missing: {others} need it')
    for key, least in WHOLE.items():
        value = lookup(cfg, key)
        if value is not None and not (
                isinstance(value, (int, float)) and value >= least and value % 1 == 0):
            where, _, name = key.rpartition('.')
            report.add(where, f'{name}={value!r}: expected a whole number from {least}')
    for where, node in walk({'visualizer': cfg.get('visualizer')}):
        module = BACKENDS.get(str(node.get('type')))
        if module and missing(module):
            report.add(where, install_hint(module))
    classes: Any = lookup(cfg, 'model.head.num_classes')
    for place in places(cfg):
        topk = place.node.get('topk', 1) if isinstance(place.node, Mapping) else 1
        if isinstance(classes, int) and not {*to_ntuple(1)(topk)} <= {*range(1, classes + 1)}:
            report.add(place.where, f'topk={topk!r}: expected whole numbers of 1 to '
                       f'model.head.num_classes={classes}')


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


def check_files(cfg: Config, mode: str) -> None:
    """Checks checkpoints, data sets and their classes; RunError lists the problems."""
    report, expected = Report(cfg), None
    check_checkpoints(report, mode)
    for part in ('train', 'val') if mode == 'train' else ('test',):
        found = [*sources(report.cfg, part, report.scope)]
        for source in found:
            names = check_source(report, source)
            if names and expected and names != expected:
                other = sorted({*names} ^ {*expected})
                differ = f'only one has {some(other)}' if other else 'in another order'
                report.add(source.where, f'its classes differ from those of the other data '
                           f'({differ}), so equal labels would mean different classes',
                           'list the same classes in the same order in all files')
            expected = expected or names
        # check_source reports a missing root
        roots = tuple(os.path.join(source.root, '') for source in found
                      if source.root and not os.path.isdir(source.root))
        for where, node in walk({f'{part}_evaluator': report.cfg.get(f'{part}_evaluator')}):
            path = str(node.get('ann_file') or '')
            if path and '://' not in path and not os.path.isfile(path) \
                    and not path.startswith(roots):
                report.add(where, f'annotation file {path} does not exist',
                           path_remedy(report, path, 'ann_file'))
    report.stop()


def check_checkpoints(report: Report, mode: str) -> None:
    """Reports missing local checkpoints and random frozen backbones; warns of other random ones."""
    cfg = report.cfg
    named = {cfg.get('load_from') or '': 'load_from'}
    if mode == 'train':  # a test takes all weights from the checkpoint
        for where, node in walk(dict(model=cfg.model)):
            for key in ('checkpoint', 'pretrained', 'checkpoint_path'):
                if isinstance(node.get(key), str):
                    named.setdefault(node[key], f'{where}.{key}')
        started = cfg.get('load_from') or cfg.get('resume') or cfg.get('scenes')
        frozen = str(lookup(cfg, 'optim_wrapper.constructor')).startswith('lape_mm.Freezing')
        random = [where for where, node in our_backbones(cfg) if not node.get('init_cfg')]
        for where in () if started else random[:1]:
            remedy = f'set --cfg-options {where}.init_cfg.checkpoint=PATH'
            if frozen:
                report.add(where, 'is frozen but has no pretrained weights', remedy)
            elif report.scope in ('mmdet', 'mmseg'):
                report.warn(where, 'starts from random weights; the papers start from ImageNet '
                            f'weights trained with the same joining: {remedy}')
    for path, where in named.items():
        if path and '://' not in path and not Path(path).expanduser().is_file():
            report.add(where, f'checkpoint {path} does not exist')
