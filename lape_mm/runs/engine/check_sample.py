"""Checks that an image is whole and agrees with its annotation."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

# A JPEG marker is FF and its kind. Inside a scan, FF 00 is a data byte and FF D0-D7 are restarts.
MARKER = re.compile(rb'\xff([\xc0-\xcf\xd9-\xfe])')
END, SCAN = 0xd9, 0xda
PNG_END = b'\0\0\0\0IEND'  # the last chunk: length 0 and its kind


def check_whole(path: str | None) -> None:
    """Raises ValueError for a truncated JPEG or PNG file. Decoders would fill its rest with grey.

    Bytes after the image, such as a motion photo's video, are fine. Pillow would have to decode the
    image once more to find out, which takes half as long as loading it.
    """
    if path is None or not Path(path).is_file():
        return
    data = Path(path).read_bytes()
    if data[:2] == b'\xff\xd8' and not jpeg_is_whole(data) \
            or data[:4] == b'\x89PNG' and PNG_END not in data:
        raise ValueError(f'{path}: the file is truncated')


def jpeg_is_whole(data: bytes) -> bool:
    """Whether a JPEG has an end marker after a scan; a thumbnail's own end does not count."""
    place, scanned = 2, False
    while found := MARKER.search(data, place):
        kind = found[1][0]
        if kind == END:
            return scanned
        scanned = scanned or kind == SCAN
        place = found.end() + int.from_bytes(data[found.end():found.end() + 2], 'big')
    return False


def check_sample(results: Mapping, classes: int | None = None, ignored: int = 255) -> Mapping:
    """A transform: raises ValueError for a bad sample. ``classes``: number of label-map classes."""
    path, shape = results.get('img_path'), results.get('ori_shape')
    labels, map_path = results.get('gt_seg_map'), results.get('seg_map_path')
    size = results.get('height'), results.get('width')
    check_whole(path)
    if shape is not None and None not in size and tuple(shape[:2]) != size:
        raise ValueError(
            f'{path}: the image has {shape[0]} x {shape[1]} pixels (height x width), its '
            f'annotation says {size[0]} x {size[1]}'
            + (': is it rotated by EXIF?' if tuple(shape[:2]) == size[::-1] else ''))
    if labels is None:
        return results
    check_whole(map_path)
    if labels.shape != tuple((labels.shape if shape is None else shape)[:2]):
        raise ValueError(f'{map_path}: expected one channel as large as the image, '
                         f'got the shape {labels.shape} and {shape}')
    if classes is not None:
        wrong = labels[(labels >= classes) & (labels != ignored)]
        if len(wrong):
            raise ValueError(f'{map_path}: label {wrong[0]} in the map, expected 0 to '
                             f'{classes - 1} or {ignored} (ignored)')
    return results


def inner_datasets(dataset: Dataset) -> Iterator[Any]:
    """Yields the data sets inside RepeatDataset, ConcatDataset and other wrappers."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner == [None]:
        yield dataset
        return
    for one in inner:
        yield from inner_datasets(one)


def insert_check(dataset: Dataset) -> None:
    """Inserts `check_sample` after the last loading transform of each pipeline."""
    for one in inner_datasets(dataset):
        transforms = getattr(getattr(one, 'pipeline', None), 'transforms', [])
        loading = [place for place, transform in enumerate(transforms)
                   if type(transform).__name__.startswith('Load')]
        if loading:
            # only mmseg's classes are those of the label map; a detector's may differ
            maps = any(base.__name__ == 'BaseSegDataset' for base in type(one).__mro__)
            classes = one.metainfo.get('classes') if maps else None
            transforms.insert(loading[-1] + 1, partial(
                check_sample, classes=len(classes) if classes else None,
                ignored=getattr(one, 'ignore_index', 255)))
