"""The data sets of a config: paths, labels, and the classes that the heads are made for."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS
from PIL import Image

from lape_mm.wording import first_line, some

from ..config import walk
from ..errors import Report
from .settings import DATASET, accepted, resolve

# heads whose classes are the data set's; edge and semantic branches have others
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head',
               'data_preprocessor')
LARGEST = 2 ** 27  # bytes; larger annotation files, such as COCO's 450 MB, are not read
SAMPLED_MAPS = 50


@dataclass
class Source:
    """One data set of a config, without its wrappers."""

    where: str  # its dotted path in the config, such as train_dataloader.dataset
    cfg: Mapping
    cls: Any  # None if the type is unknown
    root: str  # data_root, or ''
    ann_file: str  # path of the annotation file, or ''
    folders: dict[str, str]  # name in data_prefix -> folder

    def setting(self, name: str) -> Any:
        """A setting of the data set, or its default."""
        return self.cfg.get(name, getattr(accepted(self.cls)[0].get(name), 'default', None))

    def classes(self) -> list[str] | None:
        """The classes that the config expects: those of its metainfo, or the data set's own."""
        names: Any = (self.cfg.get('metainfo') or {}).get('classes') or self.cfg.get('classes')
        if isinstance(names, str):
            if not os.path.isfile(path := os.path.expanduser(names)):
                raise ValueError(f'classes={names!r}: expected a list of names, or the path of a '
                                 f'file of names; a single class takes a comma: ({names!r},)')
            names = list_from_file(path)
        names = names or getattr(self.cls, 'METAINFO', {}).get('classes')
        return None if names is None else list(names)


def sources(cfg: Mapping, part: str, scope: str | None = None) -> Iterator[Source]:
    """Yields the data sets of the 'train', 'val' or 'test' loader, without their wrappers."""
    loader = f'{part}_dataloader'
    for where, dataset in walk({loader: cfg.get(loader)}):
        if not re.fullmatch(DATASET, where) or {'dataset', 'datasets'} & set(dataset):
            continue
        root = os.path.expanduser(dataset.get('data_root') or '')
        prefix: Any = dataset.get('data_prefix') or dataset.get('split') or {}
        if isinstance(prefix, str):  # mmpretrain
            prefix = {'img_path': prefix}
        ann_file = dataset.get('ann_file') or ''
        if not ann_file and 'split' in dataset:  # mmpretrain's ImageNet
            listed = os.path.join('meta', f'{dataset["split"]}.txt')
            ann_file = listed if os.path.isfile(os.path.join(root, listed)) else ''
        yield Source(
            where, dataset, resolve(dataset.get('type'), DATASETS, scope), root,
            os.path.join(root, ann_file) if ann_file else '',
            {name: os.path.join(root, path) for name, path in prefix.items()
             if isinstance(path, str)})


def heads(model: Mapping) -> Iterator[tuple[str, int]]:
    """Yields path and class count of every head (and of mmpretrain's preprocessor)."""
    for path, node in walk(dict(model=model)):
        count = node.get('num_classes')
        *outer, name = path.split('.')
        # cascades list their heads; some listed auxiliary heads see edges instead of classes
        if name.isdigit() and outer[-1] != 'auxiliary_head':
            name = outer[-1]
        if isinstance(count, int) and name in CLASS_HEADS:
            yield path, count


def check_heads(report: Report, source: Source, names: list[str] | None) -> None:
    """Reports heads whose class count differs from ``names``; with None, checks nothing."""
    count = len(names or ())
    wrong = {path: classes for path, classes in heads(report.cfg.model) if classes != count}
    if wrong and names is not None:
        report.add(source.where, f'{count} classes, but the model is made for '
                   f'{" or ".join(map(str, sorted(set(wrong.values()))))} classes',
                   'pass --cfg-options ' + ' '.join(f'{path}.num_classes={count}'
                                                    for path in wrong))


def check_source(report: Report, source: Source) -> list[str] | None:
    """Checks the paths and labels of a data set; returns its classes in label order, if known."""
    family = {base.__name__ for base in getattr(source.cls, '__mro__', ())}
    if '://' in source.root + source.ann_file:
        return None
    try:
        if family and 'download' in accepted(source.cls)[0]:  # CIFAR fetches its files
            check_heads(report, source, source.classes())
        elif paths_exist(report, source):
            if 'CocoDataset' in family and 'CocoPanopticDataset' not in family:
                return check_coco(report, source)
            if 'BaseSegDataset' in family:
                check_label_maps(report, source)
            elif 'CustomDataset' in family and source.cfg.get('with_label', True):
                return check_class_folders(report, source)
    except (OSError, TypeError, ValueError) as error:
        report.add(source.where, first_line(error, most=600))
    return None


def paths_exist(report: Report, source: Source) -> bool:
    """Whether all folders and files of a data set exist; reports those that do not."""
    wanted = {'ann_file': source.ann_file, **{
        f'data_prefix.{name}': folder for name, folder in source.folders.items()}}
    if source.root and not os.path.isdir(source.root):
        wanted = {'data_root': source.root}
    lacking = {key: path for key, path in wanted.items()
               if path and '://' not in path and not os.path.exists(path)}
    for key, path in lacking.items():
        what = 'annotation file' if key == 'ann_file' else 'folder'
        report.add(source.where, f'{what} {path} does not exist', path_remedy(report, path, key))
    return not lacking


def path_remedy(report: Report, path: str, key: str) -> str:
    """How to change a path: set its environment variable, or the setting ``{where}.KEY``."""
    for name, default in re.findall(r'\{\{[\'"]?\s*\$(\w+)\s*:\s*(\S*?)\s*[\'"]?\}\}',
                                    report.cfg.text):
        value = os.environ.get(name, default).rstrip('/')
        if f'{path}/'.startswith(f'{value}/'):
            state = 'now' if name in os.environ else 'not set, its default is'
            return f'set {name} to the folder of your data ({state} {value})'
    return f'point at yours with --cfg-options {{where}}.{key}=PATH'


def check_coco(report: Report, source: Source) -> list[str] | None:
    """Compares a COCO file with the config's classes and heads, then checks the file's objects."""
    names, path = source.classes(), source.ann_file
    check_heads(report, source, names)
    if names is None or os.path.getsize(path) > LARGEST:
        return None
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file)
        kinds = {category['id']: category['name'] for category in content['categories']}
        images = {image['id']: (image['width'], image['height']) for image in content['images']}
        objects = [(entry['id'], entry['image_id'], entry['category_id'])
                   for entry in content.get('annotations') or ()]
        # LVIS has URLs instead of file names
        example = next((image.get('file_name', '') for image in content['images']), '')
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{path} is not a COCO annotation file: '
                         f'{first_line(error, kind=True)}') from error
    listed = [*kinds.values()]
    used = [name for name in listed if name in names]
    if lacking := [name for name in names if name not in listed]:
        unused = [name for name in listed if name not in names]
        report.add(
            source.where, f'{path} lacks {len(lacking)} of the config\'s {len(names)} classes: '
            f'{some(lacking)}' + (f'. It has {some(unused)}' if unused else ''),
            'to train on its classes: --cfg-options {where}.metainfo.classes=['
            + ','.join(listed[:8]) + (',..]' if len(listed) > 8 else ']'))
        return None
    folder = source.folders.get('img', source.root)
    if not os.path.exists(os.path.join(folder, example)):
        report.add(source.where, f'{path} lists {example}, which is not in {folder}',
                   path_remedy(report, folder, 'data_prefix.img'))
    # image_info_test-dev2017.json has no objects: COCO's server evaluates the results
    if not images or not objects and not source.where.startswith('test_'):
        report.add(source.where, f'{path} lists {len(images)} images and {len(objects)} objects: '
                   'there is nothing to train or evaluate on')
    if wrong := [entry for entry in objects if entry[1] not in images or entry[2] not in kinds]:
        number, image, kind = wrong[0]
        report.add(source.where, f'{path}: {len(wrong)} of {len(objects)} objects have an unlisted '
                   f'image or category; object {number} has image_id={image!r}, '
                   f'category_id={kind!r}')
        return None
    if left := [kinds[kind] for _, _, kind in objects if kinds[kind] not in names]:
        report.warn(source.where, f'{len(left)} of {len(objects)} objects are left out, because '
                    f'the config does not name their classes: {some(sorted(set(left)))}')
    if used != names:
        report.add(source.where, f'{path} lists its categories in another order than the config\'s '
                   "classes. mmdet numbers classes in the file's order, so names would be mixed up",
                   f"order the config's classes as in the file: [{','.join(used)}]; or fix the "
                   'file, if it is the odd one out')
    return used


def check_label_maps(report: Report, source: Source) -> None:
    """Checks that each image has a label map, and that a sample of the maps has valid ids."""
    names = source.classes()
    check_heads(report, source, names)
    maps, folder = source.folders.get('seg_map_path'), source.folders.get('img_path')
    suffix, map_suffix = source.setting('img_suffix'), source.setting('seg_map_suffix')
    if not (names and maps and folder and suffix and map_suffix) or source.ann_file:
        return
    images, labelled = stems(folder, suffix), stems(maps, map_suffix)
    if not images:
        report.add(source.where, f'no *{suffix} in {folder}')
    elif lacking := sorted(set(images) - set(labelled)):
        report.add(source.where, f'{len(lacking)} of {len(images)} images have no *{map_suffix} in '
                   f'{maps}: {some(lacking)}')
    else:
        # a config may use some of the classes, but the ids count all of them
        count = max(len(names), len(getattr(source.cls, 'METAINFO', {}).get('classes', ())))
        files = [labelled[stem] for stem in sorted(images)]
        check_ids(report, source, files[::max(1, len(files) // SAMPLED_MAPS)], count)


def stems(folder: str, suffix: str) -> dict[str, str]:
    """Maps relative paths without suffix (mmseg pairs images and label maps by them) to files."""
    paths = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in names)
    return {os.path.relpath(path, folder).removesuffix(suffix): path for path in paths
            if path.endswith(suffix)}


def check_ids(report: Report, source: Source, files: list[str], count: int) -> None:
    """Reports label ids without a class, or if all maps hold only ignored ids."""
    reduced = bool(source.setting('reduce_zero_label'))
    ignored = {source.setting('ignore_index'), 255}
    classes = set(range(reduced, count + reduced))
    seen: dict[int, str] = {}  # id -> a file that has it
    for file in files:
        with Image.open(file) as picture:
            ids = np.asarray(picture)
        if ids.ndim != 2:
            raise ValueError(f'label map {file} is a colour picture, expected one channel of '
                             'class ids')
        seen |= dict.fromkeys(np.unique(ids).tolist(), file)
    setting = f'with reduce_zero_label={reduced} and {count} classes'
    if beyond := sorted({*seen} - classes - ignored - {0}):
        report.add(source.where, f'label map {seen[beyond[0]]} has id {some(beyond)}; {setting}, '
                   f'expected {min(classes)}..{max(classes)}, or {"0 or " if reduced else ""}255 '
                   'for ignored', '' if reduced or beyond != [count] else
                   'ids that start at 1 need --cfg-options {where}.reduce_zero_label=True')
    elif not {*seen} & classes - ignored:
        report.add(source.where, f'every sampled label map has only ignored ids '
                   f'({some(sorted(seen))}) {setting}',
                   f'try --cfg-options {{where}}.reduce_zero_label={not reduced}')


def check_class_folders(report: Report, source: Source) -> list[str] | None:
    """Compares class folders with the config's classes and heads; returns the folders' names."""
    names = source.classes()
    if source.ann_file:
        check_heads(report, source, names)
        return None
    folder = source.folders.get('img_path', source.root)
    found = sorted(entry.name for entry in os.scandir(folder)
                   if entry.is_dir() and not entry.name.startswith('.'))
    if not found:
        report.add(source.where, f'no class folders in {folder}')
    elif names is not None and len(names) != len(found):
        report.add(source.where, f'{folder} has {len(found)} class folders, but the config names '
                   f'{len(names)} classes', 'use type=CustomDataset, which takes the folders, or '
                   '--cfg-options {where}.metainfo.classes=[..]')
    else:
        check_heads(report, source, found)
        return found
    return None
