"""The data sets of a config: paths, labels, and the classes that the heads are made for."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from mmengine.fileio import list_from_file
from mmengine.registry import DATASETS
from PIL import Image

from lape_mm.wording import first_line, some

from ..config import walk
from .report import Report
from .settings import DATASET
from .signatures import accepted, resolve

# heads whose classes are the data set's; edge and semantic branches have others
CLASS_HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head',
               'data_preprocessor')
LARGEST = 2 ** 27  # larger annotation files are not read, in bytes; COCO's has 450 MB
# keys that mmdet reads of each entry
NEEDED = {'images': ('id', 'width', 'height', 'file_name'), 'categories': ('id', 'name'),
          'annotations': ('id', 'image_id', 'category_id')}
SAMPLED_MAPS = 50


@dataclass
class Source:
    """One data set of a config, without its wrappers.

    Attributes:
        where: its dotted path in the config, such as ``train_dataloader.dataset``.
        cfg: its dict.
        cls: its class, None for an unknown one.
        root: its data_root, '' for none.
        ann_file: path of the annotation file, '' for none.
        folders: name in data_prefix -> folder.
    """

    where: str
    cfg: Mapping
    cls: Any
    root: str
    ann_file: str
    folders: dict[str, str]

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A setting of the config, or its default."""
        default = signature(self.cls).parameters.get(name)
        return self.cfg.get(name, otherwise if default is None else default.default)

    def classes(self) -> list[str] | None:
        """The classes that the config expects: those of its metainfo, or the data set's own.

        Raises:
            ValueError: the classes are a string, but not the path of a file.
        """
        names: Any = (self.cfg.get('metainfo') or {}).get('classes') or self.cfg.get('classes')
        if isinstance(names, str):
            if not os.path.isfile(path := os.path.expanduser(names)):
                raise ValueError(f'classes={names!r}: expected a list of names, or the path of a '
                                 f'file of names; a single class takes a comma: ({names!r},)')
            names = list_from_file(path)
        names = names or getattr(self.cls, 'METAINFO', {}).get('classes')
        return None if names is None else list(names)


def sources(cfg: Mapping, part: str, scope: str | None = None) -> Iterator[Source]:
    """The data sets of a loader, without wrappers such as RepeatDataset or ConcatDataset.

    Args:
        cfg: of the run.
        part: 'train', 'val' or 'test'.
        scope: the toolbox in which types are looked up.
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
            where, dataset, resolve(dataset.get('type'), DATASETS, scope), root,
            os.path.join(root, ann_file) if ann_file else '',
            {name: os.path.join(root, path) for name, path in prefix.items()
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


def check_source(report: Report, source: Source) -> list[str] | None:
    """Checks one data set: its paths, then its labels.

    Returns:
        its classes in label order, if files list them.
    """
    family = {base.__name__ for base in getattr(source.cls, '__mro__', ())}
    if '://' in source.root + source.ann_file:
        return None
    try:
        if family and 'download' in accepted(source.cls).parameters:  # CIFAR fetches its files
            if names := source.classes():
                check_heads(report, source, len(names))
        elif paths_exist(report, source):
            if 'CocoDataset' in family and 'CocoPanopticDataset' not in family:
                return check_coco(report, source)
            if 'BaseSegDataset' in family:
                check_label_maps(report, source)
            elif 'CustomDataset' in family and source.cfg.get('with_label', True):
                return check_class_folders(report, source)
    except (TypeError, ValueError) as error:
        report.add(source.where, str(error))
    return None


def paths_exist(report: Report, source: Source) -> bool:
    """Whether all folders and files of a data set exist; reports those that do not."""
    wanted = [(f'annotation file {source.ann_file}', source.ann_file, 'ann_file'),
              *((f'folder {folder} ({name})', folder, f'data_prefix.{name}')
                for name, folder in source.folders.items())]
    if source.root and not os.path.isdir(source.root):
        wanted = [(f'data folder {source.root}', source.root, 'data_root')]
    lacking = [one for one in wanted
               if one[1] and '://' not in one[1] and not os.path.exists(one[1])]
    for what, path, key in lacking:
        report.add(source.where, f'{what} does not exist', report.path_remedy(path, key))
    return not lacking


def read_coco(path: str) -> dict[str, list[dict]] | None:
    """Images, categories and annotations of a file; None if the file is larger than `LARGEST`.

    Raises:
        ValueError: this is no COCO annotation file, or an entry lacks a key that mmdet reads.
    """
    if os.path.getsize(path) > LARGEST:
        return None
    try:
        with open(path, encoding='utf-8') as file:
            content = json.load(file)
        found = {listed: list(content.get(listed) or []) for listed in NEEDED}
        for listed, keys in NEEDED.items():
            for key in keys:
                # LVIS has addresses of its images in place of names
                if wrong := [entry for entry in found[listed] if key not in entry
                             and not (key == 'file_name' and 'coco_url' in entry)]:
                    raise ValueError(f'{len(wrong)} of {len(found[listed])} entries of {listed} '
                                     f'lack {key}; the first is {wrong[0]!r:.200}')
        if not found['categories']:
            raise ValueError('it has no categories')
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f'{path} is not a COCO annotation file: {first_line(error)}') from error
    return found


def check_coco(report: Report, source: Source) -> list[str] | None:
    """Compares COCO's categories with the config's classes and heads, then checks the objects."""
    names, content, path = source.classes(), read_coco(source.ann_file), source.ann_file
    if names is not None:
        check_heads(report, source, len(names))
    if names is None or content is None:
        return None
    listed = [category['name'] for category in content['categories']]
    used = [name for name in listed if name in names]
    if lacking := [name for name in names if name not in listed]:
        unused = [name for name in listed if name not in names]
        report.add(
            source.where, f'{path} lacks {len(lacking)} of the config\'s {len(names)} classes: '
            f'{some(lacking)}' + (f'. It has {some(unused)}' if unused else ''),
            'to train on its classes: --cfg-options {where}.metainfo.classes=['
            + ','.join(listed[:8]) + (',..]' if len(listed) > 8 else ']'))
        return None
    images, objects = content['images'], content['annotations']
    folder = source.folders.get('img', source.root)
    if images and not os.path.exists(os.path.join(folder, images[0].get('file_name', ''))):
        report.add(source.where, f'{path} lists {images[0]["file_name"]}, which is not in {folder}',
                   report.path_remedy(folder, 'data_prefix.img'))
    # image_info_test-dev2017.json has no objects: COCO's server evaluates its results
    if not images or not objects and not source.where.startswith('test_'):
        report.add(source.where, f'{path} lists {len(images)} images and {len(objects)} objects: '
                   'there is nothing to train or evaluate on')
    kinds = {category['id']: category['name'] for category in content['categories']}
    known = {'category_id': kinds, 'image_id': {image['id'] for image in images}}
    for key, ids in known.items():
        if wrong := [entry for entry in objects if entry[key] not in ids]:
            report.add(source.where, f'{path}: {len(wrong)} of {len(objects)} objects have an '
                       f'unlisted {key}, for example {wrong[0][key]} in object {wrong[0]["id"]}')
            return None
    if left := [kind for entry in objects if (kind := kinds[entry['category_id']]) not in names]:
        report.warn(source.where, f'{len(left)} of {len(objects)} objects are left out, because '
                    f'the config does not name their classes: {some(sorted(set(left)))}')
    if not source.cfg.get('test_mode'):
        filters = source.cfg.get('filter_cfg') or {}
        least, seen = filters.get('min_size', 0), {
            entry['image_id'] for entry in objects if kinds[entry['category_id']] in names}
        bare = sum(image['id'] not in seen for image in images) * bool(
            filters.get('filter_empty_gt'))
        small = sum(min(image['width'], image['height']) < least for image in images)
        if bare or small:
            report.warn(source.where, f'of {len(images)} images, {bare} without objects and '
                        f'{small} below {least} pixels are left out (filter_cfg)')
    if used != names:
        report.add(source.where, f'{path} lists its categories in another order than the config\'s '
                   "classes. mmdet numbers classes in the file's order, so names would be mixed up",
                   f"order the config's classes as in the file: [{','.join(used)}]; or mend the "
                   'file, if it is the odd one out')
    return used


def check_label_maps(report: Report, source: Source) -> None:
    """Checks that each image has a label map, and that a sample of the maps has valid ids."""
    names = source.classes()
    if names is None:
        return
    check_heads(report, source, len(names))
    maps, folder = source.folders.get('seg_map_path'), source.folders.get('img_path')
    if not maps or folder is None or source.ann_file:
        return
    suffix = source.setting('img_suffix', '.jpg')
    map_suffix = source.setting('seg_map_suffix', '.png')
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
    """Relative path without suffix -> file, the key by which mmseg pairs images and label maps."""
    paths = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in names)
    return {os.path.relpath(path, folder).removesuffix(suffix): path for path in paths
            if path.endswith(suffix)}


def check_ids(report: Report, source: Source, files: list[str], count: int) -> None:
    """Reports ids without a class, and label maps in which every id is ignored."""
    reduced = bool(source.setting('reduce_zero_label', False))
    ignored = {source.setting('ignore_index', 255), 255}
    classes = set(range(reduced, count + reduced))
    seen: set[int] = set()
    setting = f'reduce_zero_label={reduced} and {count} classes'
    for file in files:
        try:
            with Image.open(file) as picture:
                ids = np.asarray(picture)
        except OSError as error:
            report.add(source.where, f'label map {file} cannot be read: {error}')
            return
        if ids.ndim != 2:
            report.add(source.where, f'label map {file} is a colour picture, expected one channel '
                       'of class ids')
            return
        values = set(np.unique(ids).tolist())
        if beyond := sorted(values - classes - ignored - {0}):
            text = (f'label map {file} has id {some(beyond)}; with {setting}, expected '
                    f'{min(classes)}..{max(classes)}, or {"0 or " if reduced else ""}255 for '
                    'ignored')
            report.add(source.where, text, '' if reduced or beyond != [count] else
                       'ids that start at 1 need --cfg-options {where}.reduce_zero_label=True')
            return
        seen |= values
    if not seen & classes - ignored:
        report.add(source.where, 'every sampled label map has only ignored ids '
                   f'({some(sorted(seen))}) with {setting}',
                   f'try --cfg-options {{where}}.reduce_zero_label={not reduced}')


def check_class_folders(report: Report, source: Source) -> list[str] | None:
    """Compares class folders, or a list of labels, with the config's classes and heads."""
    names = source.classes()
    if source.ann_file:
        try:
            labels = [int(line.rsplit(' ', 1)[1]) for line in list_from_file(source.ann_file)
                      if line.strip()]
        except (IndexError, ValueError) as error:
            raise ValueError(
                f'{source.ann_file}: expected an image and its label on each line') from error
        top = max(labels, default=-1)
        if names is not None:
            check_heads(report, source, len(names))
        elif any(count <= top for _, count in heads(report.cfg.model)):
            check_heads(report, source, top + 1, f'labels in {source.ann_file}')
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
        check_heads(report, source, len(found), 'class folders')
        return found
    return None
