"""Do class folders, lists of labels and CIFAR's files agree with the config's classes?"""
from __future__ import annotations

import os
from typing import Any

from mmengine.fileio import list_from_file

from .classes import Found, check_heads, class_names, heads


def check_class_folders(report, source, cls: type) -> Found | None:
    """Folders as classes, or labels of a list, against names and heads."""
    if source.cfg.get('with_label', True) is False:
        return None
    folder = source.folders.get('img_path', source.root)
    names = class_names(source, cls)
    if source.ann_file:
        try:
            top = max((int(line.rsplit(' ', 1)[1]) for line in list_from_file(source.ann_file)
                       if line.strip()), default=-1)
        except (IndexError, ValueError):
            report.add(source.where, f'{source.ann_file}: expected lines of an image and a label')
            return None
        if names is not None:
            check_heads(report, source, len(names), f'{len(names)} classes')
        elif wrong := [path for path, count in heads(report.cfg.model) if count <= top]:
            report.add(source.where, f'{source.ann_file} holds label {top}', 'pass --cfg-options '
                       + ' '.join(f'{path}.num_classes={top + 1}' for path in wrong))
        return None
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
    check_heads(report, source, len(found), f'{len(found)} class folders')
    return Found('class folders', found)


def check_batches(report, source, cls: Any) -> None:
    """Files of a dataset that may not fetch them, as far as its class lists them, and heads."""
    if hasattr(cls, 'base_folder'):  # CIFAR: one file that is missing refuses both splits
        for name, _ in (*cls.train_list, *cls.test_list):
            path = os.path.join(source.root, cls.base_folder, name)
            if not os.path.isfile(path):
                report.add(source.where, f'{path} does not exist',
                           report.path_remedy(path, 'data_root'))
                return
    if names := class_names(source, cls):
        check_heads(report, source, len(names), f'{len(names)} classes')
