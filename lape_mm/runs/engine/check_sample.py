"""Checks that an image agrees with its annotation."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset

from .whole_image import check_whole


class CheckLoaded:
    """A transform that follows the loading transforms and raises ValueError for a bad sample.

    Args:
        classes: number of classes in label maps; None skips the check of labels.
        ignored: label of pixels without a class.
    """

    def __init__(self, classes: int | None = None, ignored: int = 255):
        self.classes, self.ignored = classes, ignored

    def __call__(self, results: Mapping) -> Mapping:
        path, shape = results.get('img_path'), results.get('ori_shape')
        check_whole(path)
        size = results.get('height'), results.get('width')
        if shape is not None and None not in size and tuple(shape[:2]) != size:
            raise ValueError(
                f'{path}: the image has {shape[0]} x {shape[1]} pixels (height x width), its '
                f'annotation says {size[0]} x {size[1]}'
                + (': is it rotated by EXIF?' if tuple(shape[:2]) == size[::-1] else ''))
        if results.get('gt_seg_map') is not None:
            self._check_label_map(results['gt_seg_map'], results.get('seg_map_path'), shape)
        return results

    def _check_label_map(self, labels, path, shape) -> None:
        check_whole(path)
        if labels.ndim != 2:
            raise ValueError(f'{path}: a label map has one channel, this has the shape '
                             f'{labels.shape}')
        if shape is not None and labels.shape != tuple(shape[:2]):
            raise ValueError(f'{path}: the label map has {labels.shape[0]} x {labels.shape[1]} '
                             f'pixels, its image {shape[0]} x {shape[1]}')
        if self.classes is not None:
            wrong = labels[(labels >= self.classes) & (labels != self.ignored)]
            if len(wrong):
                raise ValueError(f'{path}: label {wrong[0]} in the map, expected 0 to '
                                 f'{self.classes - 1} or {self.ignored} (ignored)')


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
