"""Checks of class folders, lists of labels and CIFAR's files."""
from __future__ import annotations

import os
from typing import Any

from mmengine.fileio import list_from_file

from .classes import Source, check_heads, class_names, heads
from .report import Report


def check_class_folders(report: Report, source: Source, cls: type) -> list[str] | None:
    """Checks folders, or the labels of a list, against the config's classes and heads.

    Returns:
        the names of the folders; None if there are none, or if labels come from elsewhere.
    """
    if source.cfg.get('with_label', True) is False:
        return None
    names = class_names(source, cls)
    if source.ann_file:
        check_list(report, source, names)
        return None
    folder = source.folders.get('img_path', source.root)
    found = sorted(entry.name for entry in os.scandir(folder)
                   if entry.is_dir() and not entry.name.startswith('.'))
    if not found:
        report.add(source.where, f'{folder} holds no class folders')
        return None
    if names is not None and len(names) != len(found):
        report.add(source.where, f'{folder} has {len(found)} class folders, but the config names '
                   f'{len(names)} classes', 'use type=CustomDataset, which takes the folders, or '
                   '--cfg-options {where}.metainfo.classes=[..]')
        return None
    check_heads(report, source, len(found), 'class folders')
    return found


def check_list(report: Report, source: Source, names: list[str] | None) -> None:
    """Checks a file of lines 'image label' against the heads."""
    try:
        top = max((int(line.rsplit(' ', 1)[1]) for line in list_from_file(source.ann_file)
                   if line.strip()), default=-1)
    except (IndexError, ValueError):
        report.add(source.where, f'{source.ann_file}: expected lines of an image and a label')
        return
    if names is not None:
        check_heads(report, source, len(names))
    elif wrong := [path for path, count in heads(report.cfg.model) if count <= top]:
        report.add(source.where, f'{source.ann_file} holds label {top}', 'pass --cfg-options '
                   + ' '.join(f'{path}.num_classes={top + 1}' for path in wrong))


def check_batches(report: Report, source: Source, cls: Any) -> None:
    """Checks the files of a data set with ``download=False``, such as CIFAR, and the heads."""
    if hasattr(cls, 'base_folder'):  # CIFAR: a missing file makes both splits fail
        for name, _ in (*cls.train_list, *cls.test_list):
            path = os.path.join(source.root, cls.base_folder, name)
            if not os.path.isfile(path):
                report.add(source.where, f'{path} does not exist',
                           report.path_remedy(path, 'data_root'))
                return
    if names := getattr(cls, 'METAINFO', {}).get('classes'):
        check_heads(report, source, len(names))
