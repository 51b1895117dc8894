"""Do classes, annotations and heads agree? What otherwise ends in zero AP or nan mIoU."""
from __future__ import annotations

import json
import mmap
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

from ..config import walk

SAMPLED_MAPS = 50
READ_WHOLE = 64 * 2 ** 20  # bytes of an annotation file up to which it is parsed; COCO's is larger
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


def check(report, source, cls: type | None) -> Found | None:
    """Checks one dataset whose paths exist.

    Args:
        report: `preflight.Report`, which takes the problems.
        source: `preflight.Source`.
        cls: its class.
    """
    if cls is None:
        return None
    family = {base.__name__ for base in cls.__mro__}
    if 'CocoDataset' in family:
        return check_coco(report, source, cls)
    if 'BaseSegDataset' in family:
        return check_label_maps(report, source, cls)
    if 'CustomDataset' in family:
        return check_class_folders(report, source, cls)
    return None


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


def check_coco(report, source, cls: type) -> Found | None:
    """COCO categories against the expected classes, and those against the heads."""
    names = class_names(source, cls)
    try:
        categories, image = read_coco(source.ann_file)
    except (OSError, ValueError) as error:
        report.add(source.where, f'{source.ann_file} is no COCO annotation file: {error}')
        return None
    if names is None:
        return None
    listed = [category['name'] for category in categories]
    lacking = [name for name in names if name not in listed]
    if lacking:
        unused = [name for name in listed if name not in names]
        report.add(
            source.where,
            f'{source.ann_file} has no category {_some(lacking)} of the {len(names)} classes that '
            f'the config expects' + (f'; it has {_some(unused)} instead' if unused else ''),
            'name its own classes with --cfg-options {where}.metainfo.classes='
            + _brackets(listed))
        return None
    check_heads(report, source, len(names), f'{len(names)} classes')
    folder = source.folders.get('img', source.root)
    if image is not None and not os.path.isfile(os.path.join(folder, image)):
        report.add(source.where, f'{source.ann_file} lists {image}, which is not in {folder}',
                   report.path_remedy(folder, 'data_prefix.img'))
    if os.path.getsize(source.ann_file) <= READ_WHOLE:
        check_objects(report, source, names)
    used = [name for name in listed if name in names]
    if used != names:
        report.add(source.where, f'{source.ann_file} has its categories in another order than the '
                   'config its classes, and mmdet numbers them as the file does, so that names '
                   'would be mixed up', f'the file has {_brackets(used, len(used))}: write '
                   'the classes of the config in this order, unless it is the file that differs '
                   'from the others')
    return Found('annotated classes', used)


def check_objects(report, source, names: list[str]) -> None:
    """Annotations of no image or category, whether there are any, and which are left out."""
    with open(source.ann_file, encoding='utf-8') as file:
        content = json.load(file)
    objects = content.get('annotations') or []
    if not content.get('images') or not objects:
        report.add(source.where, f'{source.ann_file}: no image is left to train or evaluate on: it '
                   f'lists {len(content.get("images") or [])} images and {len(objects)} objects')
    for key, listed in (('category_id', 'categories'), ('image_id', 'images')):
        known = {entry['id'] for entry in content.get(listed) or []}
        wrong = [entry for entry in objects if entry.get(key) not in known]
        if wrong:
            report.add(source.where, f'{source.ann_file}: {len(wrong)} of {len(objects)} objects '
                       f'have a {key} that {listed} do not list, first {key} {wrong[0].get(key)} '
                       f'of object {wrong[0].get("id")}')
    if report.found:
        return
    kinds = {entry['id']: entry['name'] for entry in content['categories']}
    if left := [kinds[entry['category_id']] for entry in objects
                if kinds[entry['category_id']] not in names]:
        report.warn(source.where, f'{len(left)} of {len(objects)} objects are left out, of '
                    f'classes that the config does not name: {_some(sorted(set(left)))}')
    filtered = (source.cfg.get('filter_cfg') or {}).get('filter_empty_gt')
    if filtered and not source.cfg.get('test_mode'):
        seen = {entry['image_id'] for entry in objects if kinds[entry['category_id']] in names}
        if empty := sum(image['id'] not in seen for image in content['images']):
            report.warn(source.where, f'{empty} of {len(content["images"])} images have no object '
                        'and are left out (filter_cfg.filter_empty_gt)')
    if lacking := [image for image in content['images']
                   if not {'width', 'height'} <= image.keys()]:
        report.add(source.where, f'{source.ann_file}: {len(lacking)} of {len(content["images"])} '
                   f'images have no width or height, first {lacking[0].get("file_name")}')
        return
    smallest = (source.cfg.get('filter_cfg') or {}).get('min_size', 0)
    if not source.cfg.get('test_mode') and (small := sum(
            min(image['width'], image['height']) < smallest for image in content['images'])):
        report.warn(source.where, f'{small} of {len(content["images"])} images are left out, whose '
                    f'shorter side is below filter_cfg.min_size={smallest}')


def read_coco(path: str) -> tuple[list[dict], str | None]:
    """Categories and the first image's name, without parsing hundreds of megabytes.

    Raises:
        ValueError: the file has no list of categories.
    """
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        named = re.search(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', data)
        image = json.loads(named[1]) if named else None
        decoder = json.JSONDecoder()
        for match in re.finditer(rb'"categories"\s*:\s*(?=\[)', data):
            end = data.find(b']', match.end())
            while end != -1:  # a list within a category: go on to the next bracket
                text = data[match.end():end + 1].decode('utf-8', 'replace')
                try:
                    categories, _ = decoder.raw_decode(text)
                except ValueError:
                    end = data.find(b']', end + 1)
                    continue
                if all(isinstance(entry, dict) and 'name' in entry for entry in categories):
                    return categories, image
                break
    raise ValueError('it has no list of categories')


def check_label_maps(report, source, cls: type) -> Found | None:
    """Label maps: one for each image, and a sample of their ids against classes and heads."""
    defaults = signature(cls).parameters

    def setting(name, otherwise):
        default = defaults[name].default if name in defaults else otherwise
        return source.cfg.get(name, default)

    names = class_names(source, cls)
    if names is not None:
        check_heads(report, source, len(names), f'{len(names)} classes')
    maps = source.folders.get('seg_map_path')
    if not maps or 'img_path' not in source.folders or source.ann_file:
        return None
    images = _stems(source.folders['img_path'], setting('img_suffix', '.jpg'))
    labelled = _stems(maps, setting('seg_map_suffix', '.png'))
    if not images:
        report.add(source.where, f'{source.folders["img_path"]} holds no '
                   f'*{setting("img_suffix", ".jpg")}')
        return None
    if lacking := sorted(set(images) - set(labelled)):
        report.add(source.where, f'{len(lacking)} of {len(images)} images have no '
                   f'*{setting("seg_map_suffix", ".png")} in {maps}: {_some(lacking)}')
        return None
    if names is None:
        return None
    # a subset of the classes is picked from the ids of all of them
    count = max(len(names), len(getattr(cls, 'METAINFO', {}).get('classes', ())))
    check_ids(report, source, sorted(labelled[stem] for stem in images), count,
              bool(setting('reduce_zero_label', False)), setting('ignore_index', 255))
    return None


def check_ids(report, source, files: list[str], count: int, reduced: bool, ignored: int) -> None:
    """A sample of label maps: ids within the classes, and not all of them ignored."""
    first, last = (1, count) if reduced else (0, count - 1)
    allowed = {0, *range(first, last + 1), ignored, 255}
    step = max(1, len(files) // SAMPLED_MAPS)
    seen: set[int] = set()
    setting = f'reduce_zero_label={reduced} and {count} classes'
    for file in files[::step][:SAMPLED_MAPS]:
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
        if beyond := sorted(values - allowed):
            remedy = f'expected {first}..{last}, and {"0 or " if reduced else ""}255 for ignored'
            if not reduced and beyond == [count]:
                remedy += '; ids that start at 1 need --cfg-options {where}.reduce_zero_label=True'
            report.add(source.where, f'label map {file} holds id {_some(beyond)}, which is beyond '
                       f'{setting}', remedy)
            return
        seen |= values
    if not seen & set(range(first, last + 1)) - {ignored, 255}:
        report.add(source.where, f'all of the sampled label maps (ids {_some(sorted(seen))}) are '
                   f'ignored with {setting}',
                   f'try --cfg-options {{where}}.reduce_zero_label={not reduced}')


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


def _stems(folder: str, suffix: str) -> dict[str, str]:
    """Path below the folder, without suffix -> file; as mmseg pairs images and label maps."""
    files = {}
    for here, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffix):
                path = os.path.join(here, name)
                files[os.path.relpath(path, folder)[:-len(suffix)]] = path
    return files


def _some(values: list, most: int = 3) -> str:
    shown = ', '.join(map(repr, values[:most]))
    return shown + (f' and {len(values) - most} more' if len(values) > most else '')


def _brackets(names: list[str], most: int = 8) -> str:
    return '[' + ','.join(names[:most]) + (',..' if len(names) > most else '') + ']'
