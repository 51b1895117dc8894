"""The data sets of a config, and the classes of its data and its heads."""
from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.fileio import list_from_file

from ..config import walk
from .report import Report
from .settings import DATASET

# heads whose classes are the data set's; edge and semantic branches have others
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head',
               'data_preprocessor')


@dataclass
class Source:
    """One data set of a config, below all wrappers.

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


def sources(cfg: Mapping, part: str) -> Iterator[Source]:
    """The data sets of a loader, below RepeatDataset, ConcatDataset and the like.

    Args:
        cfg: of the run.
        part: 'train', 'val' or 'test'.
    """
    loader = f'{part}_dataloader'
    for where, dataset in walk({loader: cfg.get(loader)}):
        if not re.fullmatch(DATASET, where) or {'dataset', 'datasets'} & set(dataset):
            continue
        root = os.path.expanduser(dataset.get('data_root') or '')
        prefix: Any = dataset.get('data_prefix') or {}
        if isinstance(prefix, str):  # mmpretrain
            prefix = {'img_path': prefix}
        ann_file = dataset.get('ann_file') or ''
        if split := dataset.get('split'):  # mmpretrain's ImageNet
            prefix = prefix or {'img_path': split}
            listed = os.path.join('meta', f'{split}.txt')
            if not ann_file and os.path.isfile(os.path.join(root, listed)):
                ann_file = listed
        yield Source(
            where=where, cfg=dataset, root=root,
            ann_file=os.path.join(root, ann_file) if ann_file else '',
            folders={name: os.path.join(root, path) for name, path in prefix.items()
                     if isinstance(path, str)})


def heads(model: Mapping) -> Iterator[tuple[str, int]]:
    """Path and number of classes of every head (and of mmpretrain's preprocessor)."""
    for path, node in walk(dict(model=model)):
        count = node.get('num_classes')
        *outer, name = path.split('.')
        # cascades list their heads; of listed auxiliary heads some see edges instead of classes
        if name.isdigit() and outer[-1] != 'auxiliary_head':
            name = outer[-1]
        if isinstance(count, int) and name in CLASS_HEADS:
            yield path, count


def check_heads(report: Report, source: Source, count: int, what: str = 'classes') -> None:
    """Reports heads with another number of classes than ``count``."""
    wrong = {path: classes for path, classes in heads(report.cfg.model) if classes != count}
    if wrong:
        report.add(source.where, f'{count} {what}, but the model is made for '
                   f'{" or ".join(map(str, sorted(set(wrong.values()))))} classes',
                   'pass --cfg-options ' + ' '.join(f'{path}.num_classes={count}'
                                                    for path in wrong))


def class_names(source: Source, cls: type) -> list[str] | None:
    """The classes that the config expects, from its metainfo or else from the data set's class.

    Raises:
        ValueError: the classes are a string, but not the path of a file.
    """
    names: Any = (source.cfg.get('metainfo') or {}).get('classes') or source.cfg.get('classes')
    if isinstance(names, str) and '://' not in names:
        if not os.path.isfile(path := os.path.expanduser(names)):
            raise ValueError(f'classes={names!r}: expected a list of names, or the path of a file '
                             f'of names; a single class takes a comma: ({names!r},)')
        return list_from_file(path)
    if names is None or isinstance(names, str):
        names = getattr(cls, 'METAINFO', {}).get('classes')
    return None if names is None else list(names)


def brackets(names: list[str], most: int = 8) -> str:
    """Names as --cfg-options takes them."""
    return '[' + ','.join(names[:most]) + (',..' if len(names) > most else '') + ']'
