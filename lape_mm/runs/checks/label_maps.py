"""Checks of segmentation label maps."""
from __future__ import annotations

import os
from inspect import signature

import numpy as np
from PIL import Image

from lape_mm.wording import some

from .classes import Source, check_heads, class_names
from .report import Report

SAMPLED_MAPS = 50


def check_label_maps(report: Report, source: Source, cls: type) -> None:
    """Checks that each image has a label map, and a sample of their ids against the classes."""
    defaults = signature(cls).parameters

    def setting(name, otherwise):
        default = defaults[name].default if name in defaults else otherwise
        return source.cfg.get(name, default)

    names = class_names(source, cls)
    if names is not None:
        check_heads(report, source, len(names))
    maps, folder = source.folders.get('seg_map_path'), source.folders.get('img_path')
    if not maps or folder is None or source.ann_file:
        return
    suffix, map_suffix = setting('img_suffix', '.jpg'), setting('seg_map_suffix', '.png')
    images, labelled = _stems(folder, suffix), _stems(maps, map_suffix)
    if not images:
        report.add(source.where, f'{folder} holds no *{suffix}')
    elif lacking := sorted(set(images) - set(labelled)):
        report.add(source.where, f'{len(lacking)} of {len(images)} images have no *{map_suffix} in '
                   f'{maps}: {some(lacking)}')
    elif names is not None:
        # a subset of the classes is picked from the ids of all of them
        count = max(len(names), len(getattr(cls, 'METAINFO', {}).get('classes', ())))
        check_ids(report, source, sorted(labelled[stem] for stem in images), count,
                  bool(setting('reduce_zero_label', False)), setting('ignore_index', 255))


def check_ids(report: Report, source: Source, files: list[str], count: int, reduced: bool,
              ignored: int) -> None:
    """Reports ids beyond the classes, and label maps without any class."""
    first, last = (1, count) if reduced else (0, count - 1)
    allowed = {0, *range(first, last + 1), ignored, 255}
    seen: set[int] = set()
    setting = f'reduce_zero_label={reduced} and {count} classes'
    for file in files[::max(1, len(files) // SAMPLED_MAPS)][:SAMPLED_MAPS]:
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
            report.add(source.where, f'label map {file} holds id {some(beyond)}, which is beyond '
                       f'{setting}', remedy)
            return
        seen |= values
    if not seen & set(range(first, last + 1)) - {ignored, 255}:
        report.add(source.where, f'the sampled label maps (ids {some(sorted(seen))}) are entirely '
                   f'ignored with {setting}',
                   f'try --cfg-options {{where}}.reduce_zero_label={not reduced}')


def _stems(folder: str, suffix: str) -> dict[str, str]:
    """Path below the folder, without suffix -> file; as mmseg pairs images and label maps."""
    paths = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in names)
    return {os.path.relpath(path, folder).removesuffix(suffix): path for path in paths
            if path.endswith(suffix)}
