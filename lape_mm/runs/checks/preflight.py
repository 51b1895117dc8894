"""What a run needs, checked before any of it is built: settings, data, classes, checkpoints.

Every problem of a kind is reported at once, one line each, with the way to put it right. Paths with
a scheme (``s3://``, ``http://``) are left to the run itself.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mmengine.config import Config

from lape_mm.requirements import install_hint, missing

from ..config import walk
from ..errors import RunError
from .channels import check_channels
from .class_folders import check_batches
from .classes import check_named, dataset_class, downloads
from .labels import check as check_labels
from .report import Report
from .settings import check_settings
from .trial import check_builds
from .values import check_values

LOADERS = {'train': ('train', 'val'), 'test': ('test',)}
# a visualizer's backend -> the module that it needs
BACKENDS = {'TensorboardVisBackend': 'tensorboard', 'WandbVisBackend': 'wandb'}


@dataclass
class Source:
    """One dataset of a config, below all wrappers.

    Attributes:
        where: its dotted path in the config, such as ``train_dataloader.dataset``.
        cfg: its dict.
        root: its data_root, '' for none.
        ann_file: path of the annotation file, '' for none.
        folders: name in data_prefix -> folder.
    """

    where: str
    cfg: Mapping
    root: str
    ann_file: str
    folders: dict[str, str]


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
    """Raises RunError with the problems of the first check that finds any.

    What does not keep a run from starting is printed as a warning.
    """
    report = Report(cfg)
    for check in checks:
        check(report)
        if report.found:
            raise RunError(report.lines())
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        for warning in report.warnings:
            print(f'warning: {warning}', file=sys.stderr, flush=True)


def check_contents(report: Report, mode: str) -> None:
    """Values, and whether the parts can be built from them and fit together."""
    check_values(report, mode)
    check_backends(report)
    model = check_builds(report)
    if model is not None:
        check_channels(report, model)


def check_backends(report: Report) -> None:
    """What a run is followed with is installed; mmengine finds out in the midst of its start."""
    for where, node in walk({'visualizer': report.cfg.get('visualizer')}):
        module = BACKENDS.get(str(node.get('type')))
        if module and missing(module):
            report.add(where, install_hint(module))


def check_data(report: Report, mode: str) -> None:
    """Checkpoints, data sets and their classes."""
    check_checkpoints(report, mode)
    if mode == 'train':
        check_frozen(report)
    missing_roots: list[str] = []
    classes: dict[str, list[str]] = {}
    for part in LOADERS[mode]:
        loader = report.cfg.get(f'{part}_dataloader')
        if not loader:
            continue
        for source in sources(loader.get('dataset'), f'{part}_dataloader.dataset'):
            if found := check_source(report, source, missing_roots):
                names = classes.setdefault(found.kind, found.names)
                if names != found.names:
                    report.add(source.where, f'its {found.kind} are not those of the other data '
                               f'({_differ(names, found.names)}), so that equal labels mean '
                               'different classes', 'all files need the same ones, listed in the '
                               'same order')
        if part != 'train':
            check_evaluators(report, part, missing_roots)


def check_frozen(report: Report) -> None:
    """A recipe that leaves parameters as they are needs weights to leave."""
    constructor = str((report.cfg.get('optim_wrapper') or {}).get('constructor', ''))
    backbone = (report.cfg.get('model') or {}).get('backbone') or {}
    if constructor.endswith('FreezingOptimWrapperConstructor') and not (
            backbone.get('init_cfg') or report.cfg.get('load_from') or report.cfg.get('resume')):
        report.add('model.backbone', 'parts of it are not trained, and no weights are given, so '
                   'that they would stay random', 'give a checkpoint with --cfg-options '
                   '{where}.init_cfg.checkpoint=PATH')


def sources(dataset, where: str) -> Iterator[Source]:
    """The datasets below RepeatDataset, ConcatDataset, ClassBalancedDataset and the like."""
    if isinstance(dataset, (list, tuple)):
        for index, entry in enumerate(dataset):
            yield from sources(entry, f'{where}.{index}')
        return
    if not isinstance(dataset, Mapping):
        return
    inner = [key for key in ('dataset', 'datasets') if key in dataset]
    if inner:
        for key in inner:
            yield from sources(dataset[key], f'{where}.{key}')
        return
    root = os.path.expanduser(dataset.get('data_root') or '')
    prefix = dataset.get('data_prefix') or {}
    if isinstance(prefix, str):  # mmpretrain
        prefix = {'img_path': prefix}
    ann_file = dataset.get('ann_file') or ''
    if split := dataset.get('split'):  # mmpretrain's ImageNet
        if not prefix:
            prefix = {'img_path': split}
        listed = os.path.join('meta', f'{split}.txt')
        if not ann_file and os.path.isfile(os.path.join(root, listed)):
            ann_file = listed
    yield Source(
        where=where, cfg=dataset, root=root,
        ann_file=os.path.join(root, ann_file) if ann_file else '',
        folders={name: os.path.join(root, path) for name, path in prefix.items()
                 if isinstance(path, str)})


def check_source(report: Report, source: Source, missing_roots: list[str]):
    """Paths of one dataset, and where they are there its classes (`classes.Found` or None)."""
    cls = dataset_class(source.cfg.get('type'), report.cfg.get('default_scope'))
    fetches = downloads(cls)
    if fetches and source.cfg.get('download', True) or _remote(source.root) \
            or _remote(source.ann_file):
        return None
    if source.root and not os.path.isdir(source.root):
        missing_roots.append(source.root)
        report.add(source.where, f'data folder {source.root} does not exist',
                   report.path_remedy(source.root, 'data_root'))
        return None
    if not check_named(report, source):
        return None
    if fetches:
        return check_batches(report, source, cls)
    complete = True
    if source.ann_file and not os.path.isfile(source.ann_file):
        complete = False
        report.add(source.where, f'annotation file {source.ann_file} does not exist',
                   report.path_remedy(source.ann_file, 'ann_file'))
    for name, folder in source.folders.items():
        if not _remote(folder) and not os.path.isdir(folder):
            complete = False
            report.add(source.where, f'folder {folder} ({name}) does not exist',
                       report.path_remedy(folder, f'data_prefix.{name}'))
    return check_labels(report, source, cls) if complete else None


def check_evaluators(report: Report, part: str, missing_roots: list[str]) -> None:
    """Annotation files of ``val_evaluator`` or ``test_evaluator``."""
    evaluators = report.cfg.get(f'{part}_evaluator') or []
    several = isinstance(evaluators, (list, tuple))
    for index, evaluator in enumerate(evaluators if several else [evaluators]):
        path = evaluator.get('ann_file')
        if not path or _remote(path) or os.path.isfile(path):
            continue
        if not any(path.startswith(f'{root.rstrip("/")}/') for root in missing_roots):
            where = f'{part}_evaluator.{index}' if several else f'{part}_evaluator'
            report.add(where, f'annotation file {path} does not exist',
                       report.path_remedy(path, 'ann_file'))


def check_checkpoints(report: Report, mode: str) -> None:
    """Every local checkpoint that the run will read."""
    named = {}
    if path := report.cfg.get('load_from'):
        named[path] = 'load_from'
    if mode == 'train':  # a test takes all weights from the checkpoint
        for where, node in walk(dict(model=report.cfg.model)):
            for key in ('checkpoint', 'pretrained', 'checkpoint_path'):
                if isinstance(node.get(key), str):
                    named.setdefault(node[key], f'{where}.{key}')
    for path, where in named.items():
        if not _remote(path) and not Path(path).expanduser().is_file():
            report.add(where, f'checkpoint {path} does not exist')


def _remote(path: str) -> bool:
    return '://' in path


def _differ(expected: list[str], got: list[str]) -> str:
    lacking = [name for name in expected if name not in got]
    extra = [name for name in got if name not in expected]
    parts = [f'{verb} {", ".join(map(repr, names[:3]))}{", .." if len(names) > 3 else ""}'
             for verb, names in (('without', lacking), ('with', extra)) if names]
    return ', '.join(parts) or 'in another order'
