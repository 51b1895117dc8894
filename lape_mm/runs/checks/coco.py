"""Do COCO's categories, images and objects agree with the config's classes?"""
from __future__ import annotations

import json
import mmap
import os
import re
from typing import Any

from lape_mm.wording import some

from .classes import Found, brackets, check_heads, class_names

READ_WHOLE = 64 * 2 ** 20  # bytes of an annotation file up to which it is parsed; COCO's is larger
IDS = (int, float, str)


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
            f'{source.ann_file} has no category {some(lacking)} of the {len(names)} classes that '
            f'the config expects' + (f'; it has {some(unused)} instead' if unused else ''),
            'name its own classes with --cfg-options {where}.metainfo.classes='
            + brackets(listed))
        return None
    panoptic = 'CocoPanopticDataset' in {base.__name__ for base in cls.__mro__}
    if not panoptic:
        check_heads(report, source, len(names), f'{len(names)} classes')
    elif things := [entry for entry in categories if entry['name'] in names
                    and entry.get('isthing')]:  # what boxes are drawn around
        check_heads(report, source, len(things), f'{len(things)} classes of things')
    folder = source.folders.get('img', source.root)
    # a panoptic file names the maps of its segments, too
    places = [folder, source.folders.get('seg', folder)] if panoptic else [folder]
    if image is not None and not any(os.path.isfile(os.path.join(place, image))
                                     for place in places):
        report.add(source.where, f'{source.ann_file} lists {image}, which is not in {folder}',
                   report.path_remedy(folder, 'data_prefix.img'))
    if os.path.getsize(source.ann_file) <= READ_WHOLE:
        check_objects(report, source, names, panoptic)
    used = [name for name in listed if name in names]
    if used != names:
        report.add(source.where, f'{source.ann_file} has its categories in another order than the '
                   'config its classes, and mmdet numbers them as the file does, so that names '
                   'would be mixed up', f'the file has {brackets(used, len(used))}: write '
                   'the classes of the config in this order, unless it is the file that differs '
                   'from the others')
    return Found('annotated classes', used)


def check_objects(report, source, names: list[str], panoptic: bool) -> None:
    """Annotations of no image or category, whether there are any, and which are left out."""
    with open(source.ann_file, encoding='utf-8') as file:
        content = json.load(file)
    if not well_formed(report, source, content, panoptic):
        return
    objects = content.get('annotations') or []
    if panoptic:  # an annotation is of an image, its segments are the objects
        objects = [dict(segment, image_id=entry.get('image_id'))
                   for entry in objects for segment in entry['segments_info']]
    if not content.get('images') or not objects and not formats_only(report, source):
        report.add(source.where, f'{source.ann_file}: no image is left to train or evaluate on: it '
                   f'lists {len(content.get("images") or [])} images and {len(objects)} objects',
                   '' if 'annotations' in content else 'without annotations, results can only be '
                   'written, with --cfg-options test_evaluator.format_only=True')
    for key, listed in (('category_id', 'categories'), ('image_id', 'images')):
        known = {entry['id'] for entry in content.get(listed) or []}
        wrong = [entry for entry in objects
                 if not isinstance(entry.get(key), IDS) or entry[key] not in known]
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
                    f'classes that the config does not name: {some(sorted(set(left)))}')
    filtered = (source.cfg.get('filter_cfg') or {}).get('filter_empty_gt')
    if filtered and not source.cfg.get('test_mode'):
        counted = {entry['id'] for entry in content['categories'] if entry['name'] in names
                   and (entry['isthing'] if panoptic else True)}
        seen = {entry['image_id'] for entry in objects if entry['category_id'] in counted}
        if empty := sum(image['id'] not in seen for image in content['images']):
            report.warn(source.where, f'{empty} of {len(content["images"])} images have no object '
                        'and are left out (filter_cfg.filter_empty_gt)')
    if lacking := [image for image in content['images']
                   if not all(isinstance(image.get(side), (int, float))
                              for side in ('width', 'height'))]:
        report.add(source.where, f'{source.ann_file}: {len(lacking)} of {len(content["images"])} '
                   f'images have no width or height, first {lacking[0].get("file_name")}')
        return
    smallest = (source.cfg.get('filter_cfg') or {}).get('min_size', 0)
    if not source.cfg.get('test_mode') and (small := sum(
            min(image['width'], image['height']) < smallest for image in content['images'])):
        report.warn(source.where, f'{small} of {len(content["images"])} images are left out, whose '
                    f'shorter side is below filter_cfg.min_size={smallest}')


def well_formed(report, source, content, panoptic: bool) -> bool:
    """Whether the entries of a file have what mmdet looks them up by; reports those that do not."""
    wanted: dict[str, dict[str, Any]] = {
        'images': {'id': IDS}, 'categories': {'id': IDS, 'name': str},
        'annotations': {'id': IDS}}
    if panoptic:
        wanted['categories']['isthing'] = int
        wanted['annotations'] = {'segments_info': list}
    if not isinstance(content, dict):
        report.add(source.where, f'{source.ann_file}: it holds a {type(content).__name__}, '
                   'expected a dict of images, annotations and categories')
        return False
    good = True
    for listed, keys in wanted.items():
        entries = content.get(listed) or []
        if not isinstance(entries, list):
            report.add(source.where, f'{source.ann_file}: {listed} is of type '
                       f'{type(entries).__name__}, expected a list')
            good = False
            continue
        for key, kind in keys.items():
            wrong = [entry for entry in entries
                     if not isinstance(entry, dict) or not isinstance(entry.get(key), kind)]
            if wrong:
                report.add(source.where, f'{source.ann_file}: {len(wrong)} of {len(entries)} '
                           f'entries of {listed} have no {key}, which each needs, first '
                           f'{wrong[0]!r:.200}')
                good = False
                break
    if good and panoptic:
        wrong = [segment for entry in content.get('annotations') or []
                 for segment in entry['segments_info'] if not isinstance(segment, dict)]
        if wrong:
            report.add(source.where, f'{source.ann_file}: segments_info holds {wrong[0]!r:.200}, '
                       'expected dicts')
            good = False
    return good


def formats_only(report, source) -> bool:
    """Whether results on a data set are written for someone else to evaluate, as COCO's tests."""
    evaluators = report.cfg.get(f'{source.where.split("_")[0]}_evaluator') or []
    if isinstance(evaluators, dict):
        evaluators = [evaluators]
    return bool(evaluators) and all(one.get('format_only') for one in evaluators)


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
