"""Checks of COCO annotation files."""
from __future__ import annotations

import json
import mmap
import os
import re
from typing import Any

from lape_mm.wording import some

from .classes import Source, brackets, check_heads, class_names
from .report import Report

READ_WHOLE = 64 * 2 ** 20  # bytes of an annotation file up to which it is parsed; COCO's is larger
BRACKET = re.compile(rb'\]')
ID, NUMBER = (int, float, str), (int, float)
# what mmdet looks up in each entry of a list
NEEDED: dict[str, dict[str, Any]] = {
    'images': {'id': ID, 'width': NUMBER, 'height': NUMBER}, 'categories': {'id': ID, 'name': str},
    'annotations': {'id': ID, 'image_id': ID, 'category_id': ID}}


def check_coco(report: Report, source: Source, cls: type) -> list[str] | None:
    """Checks COCO's categories against the config's classes, and those against the heads.

    Returns:
        the expected classes in the order of the file; None if they are unknown.
    """
    names = class_names(source, cls)
    try:
        categories, image = read_coco(source.ann_file)
    except (OSError, ValueError) as error:
        report.add(source.where, f'{source.ann_file} is not a COCO annotation file: {error}')
        return None
    if names is None:
        return None
    listed = [category['name'] for category in categories]
    if lacking := [name for name in names if name not in listed]:
        unused = [name for name in listed if name not in names]
        report.add(
            source.where,
            f'{source.ann_file} has no category {some(lacking)} of the {len(names)} classes that '
            f'the config expects' + (f'; it has {some(unused)} instead' if unused else ''),
            'name its own classes with --cfg-options {where}.metainfo.classes=' + brackets(listed))
        return None
    if 'CocoPanopticDataset' in {base.__name__ for base in cls.__mro__}:
        # boxes are drawn around things; its first file_name may be that of a map
        if things := [entry for entry in categories if entry['name'] in names
                      and entry.get('isthing')]:
            check_heads(report, source, len(things), 'classes of things')
    else:
        check_heads(report, source, len(names))
        folder = source.folders.get('img', source.root)
        if image is not None and not os.path.isfile(os.path.join(folder, image)):
            report.add(source.where, f'{source.ann_file} lists {image}, which is not in {folder}',
                       report.path_remedy(folder, 'data_prefix.img'))
        if os.path.getsize(source.ann_file) <= READ_WHOLE:
            check_objects(report, source, names)
    used = [name for name in listed if name in names]
    if used != names:
        report.add(source.where, f'{source.ann_file} lists its categories in another order than '
                   "the config's classes. mmdet numbers classes in the file's order, so names "
                   'would be mixed up', 'write the classes of the config in the order of the '
                   f'file, {brackets(used, len(used))}, unless this file differs from the others')
    return used


def check_objects(report: Report, source: Source, names: list[str]) -> None:
    """Reports objects of unknown images or categories, and warns of what mmdet leaves out."""
    with open(source.ann_file, encoding='utf-8') as file:
        content = json.load(file)
    if not well_formed(report, source, content) \
            or source.where.startswith('test_') and 'annotations' not in content:
        return  # as image_info_test-dev2017.json, whose results COCO's server evaluates
    images, objects = content.get('images') or [], content.get('annotations') or []
    if not images or not objects:
        report.add(source.where, f'{source.ann_file} lists {len(images)} images and {len(objects)} '
                   'objects: there is nothing to train or evaluate on')
        return
    kinds = {entry['id']: entry['name'] for entry in content['categories']}
    known = {'category_id': kinds, 'image_id': {image['id'] for image in images}}
    for key, ids in known.items():
        if wrong := [entry for entry in objects if entry[key] not in ids]:
            report.add(source.where, f'{source.ann_file}: {len(wrong)} of {len(objects)} objects '
                       f'have a {key} that the file does not list, first {key} {wrong[0][key]} of '
                       f'object {wrong[0]["id"]}')
            return
    used = [entry for entry in objects if kinds[entry['category_id']] in names]
    if left := len(objects) - len(used):
        others = {kinds[entry['category_id']] for entry in objects} - set(names)
        report.warn(source.where, f'{left} of {len(objects)} objects are left out, because the '
                    f'config does not name their classes: {some(sorted(others))}')
    if source.cfg.get('test_mode'):
        return
    filters = source.cfg.get('filter_cfg') or {}
    seen, smallest = {entry['image_id'] for entry in used}, filters.get('min_size', 0)
    if filters.get('filter_empty_gt') and (
            empty := sum(image['id'] not in seen for image in images)):
        report.warn(source.where, f'{empty} of {len(images)} images have no object and are left '
                    'out (filter_cfg.filter_empty_gt)')
    if small := sum(min(image['width'], image['height']) < smallest for image in images):
        report.warn(source.where, f'{small} of {len(images)} images are left out, because their '
                    f'shorter side is below filter_cfg.min_size={smallest}')


def well_formed(report: Report, source: Source, content) -> bool:
    """Whether the entries of a file have what mmdet looks up; reports those that do not."""
    lists: dict[str, Any] = {}
    if isinstance(content, dict):
        lists = {key: content.get(key) or [] for key in NEEDED}
    if not lists or not all(isinstance(entries, list) for entries in lists.values()):
        report.add(source.where, f'{source.ann_file}: expected a dict of images, annotations and '
                   'categories, a list each')
        return False
    for listed, keys in NEEDED.items():
        for key, kind in keys.items():
            if wrong := [entry for entry in lists[listed] if not isinstance(entry, dict)
                         or not isinstance(entry.get(key), kind)]:
                report.add(source.where, f'{source.ann_file}: {len(wrong)} of '
                           f'{len(lists[listed])} entries of {listed} lack {key}; the first is '
                           f'{wrong[0]!r:.200}')
                return False
    return True


def read_coco(path: str) -> tuple[list[dict], str | None]:
    """Categories and the first image's name, without parsing hundreds of megabytes.

    Raises:
        ValueError: the file has no list of categories.
    """
    decoder = json.JSONDecoder()
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        named = re.search(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', data)
        image = json.loads(named[1]) if named else None
        for match in re.finditer(rb'"categories"\s*:\s*(?=\[)', data):
            for end in BRACKET.finditer(data, match.end()):
                text = data[match.end():end.end()].decode('utf-8', 'replace')
                try:
                    categories, _ = decoder.raw_decode(text)
                except ValueError:  # a list within a category: go on to the next bracket
                    continue
                if all(isinstance(entry, dict) and 'name' in entry for entry in categories):
                    return categories, image
                break
    raise ValueError('it has no list of categories')
