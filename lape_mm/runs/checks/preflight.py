"""Checks a run's settings, data, classes and checkpoints before it is built.

Each problem is one line with a remedy. Paths with a scheme (``s3://``, ``http://``) are skipped.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmengine.config import Config

from lape_mm.requirements import install_hint, missing
from lape_mm.wording import some

from ..config import our_backbones, walk
from ..errors import RunError, rank
from .build import check_builds
from .channels import check_channels
from .data_sets import check_source, sources
from .report import Report
from .settings import check_settings
from .values import check_values

LOADERS = {'train': ('train', 'val'), 'test': ('test',)}
# a visualizer's backend -> the module that it needs
BACKENDS = {'TensorboardVisBackend': 'tensorboard', 'WandbVisBackend': 'wandb'}


def check_config(cfg: Config, mode: str) -> None:
    """Checks a config's names, then its values; needs no data.

    Args:
        cfg: with all options merged.
        mode: 'train' (training and validation data) or 'test'.

    Raises:
        RunError: lists all unknown names; if there are none, all bad values.
    """
    carry_out(cfg, check_settings, partial(check_contents, mode=mode))


def check_files(cfg: Config, mode: str) -> None:
    """Checks the data and checkpoints that a config names; see `check_config`."""
    carry_out(cfg, partial(check_data, mode=mode))


def carry_out(cfg: Config, *checks: Callable[[Report], None]) -> None:
    """Raises RunError with the problems of the first check that finds any; prints warnings."""
    report = Report(cfg)
    for check in checks:
        check(report)
        if report.found:
            raise RunError(report.lines())
    for warning in report.warnings if rank() == 0 else ():
        print(f'warning: {warning}', file=sys.stderr, flush=True)


def check_contents(report: Report, mode: str) -> None:
    """Checks values, builds the cheap parts, and compares channels."""
    check_values(report, mode)
    for where, node in walk({'visualizer': report.cfg.get('visualizer')}):
        module = BACKENDS.get(str(node.get('type')))
        if module and missing(module):
            report.add(where, install_hint(module))
    model = check_builds(report)
    if model is not None:
        check_channels(report, model)


def check_data(report: Report, mode: str) -> None:
    """Checks checkpoints, data sets and their classes."""
    check_checkpoints(report, mode)
    expected: list[str] | None = None
    for part in LOADERS[mode]:
        for source in sources(report.cfg, part, report.scope):
            names = check_source(report, source)
            if names and expected and names != expected:
                other = sorted({*names} ^ {*expected})
                differ = f'only one has {some(other)}' if other else 'in another order'
                report.add(source.where, f'its classes differ from those of the other data '
                           f'({differ}), so equal labels would mean different classes',
                           'list the same classes in the same order in all files')
            expected = expected or names
        # check_source reports a missing root
        roots = tuple(os.path.join(source.root, '') for source in sources(report.cfg, part)
                      if source.root and not os.path.isdir(source.root))
        for where, node in walk({f'{part}_evaluator': report.cfg.get(f'{part}_evaluator')}):
            path = str(node.get('ann_file') or '')
            if path and '://' not in path and not os.path.isfile(path) \
                    and not path.startswith(roots):
                report.add(where, f'annotation file {path} does not exist',
                           report.path_remedy(path, 'ann_file'))


def check_checkpoints(report: Report, mode: str) -> None:
    """Reports missing local checkpoints, and warns of random and frozen backbones."""
    cfg = report.cfg
    named = {cfg.get('load_from') or '': 'load_from'}
    if mode == 'train':  # a test takes all weights from the checkpoint
        for where, node in walk(dict(model=cfg.model)):
            for key in ('checkpoint', 'pretrained', 'checkpoint_path'):
                if isinstance(node.get(key), str):
                    named.setdefault(node[key], f'{where}.{key}')
        started = cfg.get('load_from') or cfg.get('resume')
        constructor = str((cfg.get('optim_wrapper') or {}).get('constructor'))
        backbone = cfg.model.get('backbone') or {}
        random = [where for where, node in our_backbones(cfg) if not node.get('init_cfg')]
        if constructor.endswith('FreezingOptimWrapperConstructor') and not (
                backbone.get('init_cfg') or started):
            report.add('model.backbone', 'is frozen but has no pretrained weights', 'set '
                       '--cfg-options {where}.init_cfg.checkpoint=PATH')
        elif report.scope in ('mmdet', 'mmseg') and random and not (started or cfg.get('scenes')):
            report.warn(random[0], 'starts from random weights; the papers start from ImageNet '
                        'weights trained with the same joining: set --cfg-options '
                        f'{random[0]}.init_cfg.checkpoint=PATH')
    for path, where in named.items():
        if path and '://' not in path and not Path(path).expanduser().is_file():
            report.add(where, f'checkpoint {path} does not exist')
