"""Which classes a config's data and its heads have."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS

from ..config import walk

# those whose classes are the data set's; an edge or a semantic branch has others
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head',
               'data_preprocessor')


@dataclass
class Found:
    """The classes of a dataset, in the order of their labels.

    Attributes:
        kind: 'class folders' or 'annotated classes'.
        names: label -> name.
    """

    kind: str
    names: list[str]


def dataset_class(kind, scope: str | None) -> type | None:
    """The class that a dataset's ``type`` names, None for an unknown one."""
    if isinstance(kind, type) or kind is None:
        return kind
    with DATASETS.switch_scope_and_registry(scope) as registry:
        return registry.get(kind)


def downloads(cls: type | None) -> bool:
    """Whether a dataset knows how to fetch its files, as mmpretrain's CIFAR does."""
    return cls is not None and 'download' in signature(cls).parameters


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


def check_heads(report, source, count: int, what: str) -> None:
    """Reports the heads that are not made for ``count`` classes."""
    if wrong := [path for path, classes in heads(report.cfg.model) if classes != count]:
        now = sorted({classes for path, classes in heads(report.cfg.model) if path in wrong})
        report.add(source.where, f'{what}, but the model is made for '
                   f'{" or ".join(map(str, now))} classes',
                   'pass --cfg-options ' + ' '.join(f'{path}.num_classes={count}'
                                                    for path in wrong))


def named_classes(source) -> Any:
    """The classes that a dataset's settings name: a list, the path of a file, or None."""
    return (source.cfg.get('metainfo') or {}).get('classes') or source.cfg.get('classes')


def check_named(report, source) -> bool:
    """Whether the classes that a dataset names can be read, or are somewhere else altogether."""
    named = named_classes(source)
    if not isinstance(named, str) or '://' in named or os.path.isfile(os.path.expanduser(named)):
        return True
    report.add(source.where, f'classes is the text {named!r}, which is no file; expected a list of '
               f'names, or a file of them', f'a single class takes a comma: ({named!r},)')
    return False


def class_names(source, cls: type) -> list[str] | None:
    """The classes that the config expects: of its metainfo, else of the dataset's class."""
    names = named_classes(source)
    if isinstance(names, str):
        names = None if '://' in names else list_from_file(os.path.expanduser(names))
    if names is None:
        names = getattr(cls, 'METAINFO', {}).get('classes')
    return None if names is None else list(names)


def brackets(names: list[str], most: int = 8) -> str:
    """Names as --cfg-options takes them."""
    return '[' + ','.join(names[:most]) + (',..' if len(names) > most else '') + ']'
