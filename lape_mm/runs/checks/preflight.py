"""Checks a run's settings, data, classes and checkpoints before it is built.

All problems of a kind are reported at once, one line each, with a remedy. Paths with a scheme
(``s3://``, ``http://``) are not checked.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from lape_mm.requirements import install_hint, missing
from lape_mm.wording import some

from ..config import our_backbones, walk
from ..errors import RunError
from .build import check_builds
from .channels import check_channels
from .class_folders import check_batches, check_class_folders
from .classes import Source, sources
from .coco import check_coco
from .label_maps import check_label_maps
from .report import Report
from .settings import check_settings
from .signatures import accepted, resolve
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
        RunError: with all problems found, of the first of these kinds that has any.
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
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        for warning in report.warnings:
            print(f'warning: {warning}', file=sys.stderr, flush=True)


def check_contents(report: Report, mode: str) -> None:
    """Checks values, builds what costs nothing, and compares channels."""
    check_values(report, mode)
    check_backends(report)
    model = check_builds(report)
    if model is not None:
        check_channels(report, model)


def check_backends(report: Report) -> None:
    """Reports backends of the visualizer whose package is not installed."""
    for where, node in walk({'visualizer': report.cfg.get('visualizer')}):
        module = BACKENDS.get(str(node.get('type')))
        if module and missing(module):
            report.add(where, install_hint(module))


def check_data(report: Report, mode: str) -> None:
    """Checks checkpoints, data sets and their classes."""
    check_checkpoints(report, mode)
    missing_roots: list[str] = []
    expected: list[str] | None = None
    for part in LOADERS[mode]:
        for source in sources(report.cfg, part):
            names = check_source(report, source, missing_roots)
            if names and expected and names != expected:
                other = sorted({*names} ^ {*expected})
                differ = f'only one has {some(other)}' if other else 'in another order'
                report.add(source.where, f'its classes differ from those of the other data '
                           f'({differ}), so equal labels would mean different classes',
                           'list the same classes in the same order in all files')
            expected = expected or names
        if part != 'train':
            check_evaluators(report, part, missing_roots)


def check_source(report: Report, source: Source, missing_roots: list[str]) -> list[str] | None:
    """Checks the paths of one data set; returns its classes if the files list them."""
    cls: Any = resolve(source.cfg.get('type'), DATASETS, report.scope)
    fetches = cls is not None and 'download' in accepted(cls).parameters  # such as CIFAR
    if fetches and source.cfg.get('download', True) or '://' in source.root + source.ann_file:
        return None
    if source.root and not os.path.isdir(source.root):
        missing_roots.append(source.root)
        report.add(source.where, f'data folder {source.root} does not exist',
                   report.path_remedy(source.root, 'data_root'))
        return None
    if fetches:
        check_batches(report, source, cls)
        return None
    complete = True
    if source.ann_file and not os.path.isfile(source.ann_file):
        complete = False
        report.add(source.where, f'annotation file {source.ann_file} does not exist',
                   report.path_remedy(source.ann_file, 'ann_file'))
    for name, folder in source.folders.items():
        if '://' not in folder and not os.path.isdir(folder):
            complete = False
            report.add(source.where, f'folder {folder} ({name}) does not exist',
                       report.path_remedy(folder, f'data_prefix.{name}'))
    family = {base.__name__ for base in getattr(cls, '__mro__', ())}
    formats = {'CocoDataset': check_coco, 'BaseSegDataset': check_label_maps,
               'CustomDataset': check_class_folders}
    for name, check in formats.items():
        if complete and name in family:
            try:
                return check(report, source, cls)
            except ValueError as error:  # the names of its classes cannot be read
                report.add(source.where, str(error))
    return None


def check_evaluators(report: Report, part: str, missing_roots: list[str]) -> None:
    """Reports missing annotation files of ``val_evaluator`` or ``test_evaluator``."""
    for where, evaluator in walk({f'{part}_evaluator': report.cfg.get(f'{part}_evaluator')}):
        path = evaluator.get('ann_file')
        if isinstance(path, str) and '://' not in path and not os.path.isfile(path) and not any(
                path.startswith(f'{root.rstrip("/")}/') for root in missing_roots):
            report.add(where, f'annotation file {path} does not exist',
                       report.path_remedy(path, 'ann_file'))


def check_checkpoints(report: Report, mode: str) -> None:
    """Reports missing local checkpoints, and frozen parameters without pretrained weights."""
    cfg, named = report.cfg, {}
    if path := cfg.get('load_from'):
        named[path] = 'load_from'
    if mode == 'train':  # a test takes all weights from the checkpoint
        for where, node in walk(dict(model=cfg.model)):
            for key in ('checkpoint', 'pretrained', 'checkpoint_path'):
                if isinstance(node.get(key), str):
                    named.setdefault(node[key], f'{where}.{key}')
        constructor = str((cfg.get('optim_wrapper') or {}).get('constructor', ''))
        if constructor.endswith('FreezingOptimWrapperConstructor') and not (
                (cfg.model.get('backbone') or {}).get('init_cfg') or cfg.get('load_from')
                or cfg.get('resume')):
            report.add('model.backbone', 'parts of it are not trained, and no weights are given, '
                       'so that they would stay random', 'give a checkpoint with --cfg-options '
                       '{where}.init_cfg.checkpoint=PATH')
        random = [where for where, node in our_backbones(cfg) if not node.get('init_cfg')]
        if report.scope in ('mmdet', 'mmseg') and random and not (
                cfg.get('load_from') or cfg.get('resume') or cfg.get('scenes')):
            report.warn(random[0], 'starts from random weights; the papers start from ImageNet '
                        'weights trained with the same joining: --cfg-options '
                        f'{random[0]}.init_cfg.checkpoint=PATH')
    for path, where in named.items():
        if '://' not in path and not Path(path).expanduser().is_file():
            report.add(where, f'checkpoint {path} does not exist')
