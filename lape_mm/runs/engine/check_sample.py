"""Checks that an image is whole and agrees with its annotation."""
from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset

# A JPEG marker is FF and its kind. Inside a scan, FF 00 is a data byte and FF D0-D7 are restarts.
MARKER = re.compile(rb'\xff([\xc0-\xcf\xd9-\xfe])')
END, SCAN = 0xd9, 0xda
PNG_END = b'\0\0\0\0IEND'  # the last chunk: length 0 and its kind


def check_whole(path: str | None) -> None:
    """Raises ValueError for a truncated JPEG or PNG file, whose rest decoders fill with grey.

    Bytes after the image, such as the film of a motion photo, are fine.
    """
    if path is None or not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] == b'\xff\xd8' and not jpeg_is_whole(data) \
                or data[:4] == b'\x89PNG' and data.find(PNG_END) < 0:
            raise ValueError(f'{path}: the file is truncated')


def jpeg_is_whole(data) -> bool:
    """Whether a JPEG has an end marker after a scan.

    Jumps from segment to segment, because an embedded thumbnail has its own end marker.
    """
    place, scanned = 2, False
    while found := MARKER.search(data, place):
        kind = found[1][0]
        if kind == END:
            return scanned
        scanned = scanned or kind == SCAN
        place = found.end() + int.from_bytes(data[found.end():found.end() + 2], 'big')
    return False


class CheckLoaded:
    """A transform that follows the loading transforms and raises ValueError for a bad sample.

    Args:
        classes: number of classes in label maps; None skips the check of labels.
        ignored: label of pixels without a class.
    """

    def __init__(self, classes: int | None = None, ignored: int = 255):
        self.classes, self.ignored = classes, ignored

    def __call__(self, results: Mapping) -> Mapping:
        path = results.get('img_path')
        shape: Any = results.get('ori_shape')
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
        if self.classes is not None:
            wrong = labels[(labels >= self.classes) & (labels != self.ignored)]
            if len(wrong):
                raise ValueError(f'{map_path}: label {wrong[0]} in the map, expected 0 to '
                                 f'{self.classes - 1} or {self.ignored} (ignored)')
        return results


def inner_datasets(dataset: Dataset) -> Iterator[Any]:
    """Yields the data sets inside RepeatDataset, ConcatDataset and other wrappers."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner == [None]:
        yield dataset
        return
    for one in inner:
        yield from inner_datasets(one)


def check_loaded(dataset: Dataset) -> None:
    """Inserts `CheckLoaded` after the last loading transform of each pipeline."""
    for one in inner_datasets(dataset):
        transforms = getattr(getattr(one, 'pipeline', None), 'transforms', [])
        names = [type(transform).__name__ for transform in transforms]
        loading = [place for place, name in enumerate(names) if name.startswith('Load')]
        if loading and 'CheckLoaded' not in names:
            # only mmseg's classes are those of the label map; a detector's may differ
            maps = any(base.__name__ == 'BaseSegDataset' for base in type(one).__mro__)
            classes = one.metainfo.get('classes') if maps else None
            transforms.insert(loading[-1] + 1, CheckLoaded(
                len(classes) if classes else None, getattr(one, 'ignore_index', 255)))
