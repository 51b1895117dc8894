"""The built-in data set: small scenes, drawn once into a folder in a genuine layout.

A scene shows one to four objects (``CLASSES``, told apart by outline only) of several sizes and
textures, turned, overlapping, over a textured ground and sky and among shapes of no class. It is
small enough to learn within minutes on a CPU and hard enough that a broken model does not.

A config asks for its data in one dict, and the tools call ``prepare(**cfg.scenes)``::

    scenes = dict(layout='coco', root='data/scenes/coco', seed=0)

By hand: ``python -m lape_mm.datasets.scenes coco data/scenes/coco``.

Text configs cannot import, so they repeat the classes (and palettes) that stand here:

- ``coco``: ``CocoDataset`` with ``metainfo=dict(classes=COCO_CLASSES, palette=COCO_PALETTE)``.
- ``ade``: ``BaseSegDataset`` with ``metainfo=dict(classes=ADE_CLASSES, palette=ADE_PALETTE)``,
  ``reduce_zero_label=True``. ``ADE20KDataset`` reads the files, but takes no other class names.
- ``imagenet``: ``ImageNet`` or ``CustomDataset`` with ``metainfo=dict(classes=IMAGENET_CLASSES)``.
"""
import argparse
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from .drawing import CLASSES, CONTRASTS, STUFF, Scene, draw_scene
from .layouts import (
    ADE_CLASSES,
    ADE_PALETTE,
    COCO_CATEGORY_IDS,
    COCO_CLASSES,
    COCO_PALETTE,
    IMAGENET_CLASSES,
    IMAGENET_WNIDS,
    WRITERS,
)

__all__ = ['ADE_CLASSES', 'ADE_PALETTE', 'CLASSES', 'COCO_CATEGORY_IDS', 'COCO_CLASSES',
           'COCO_PALETTE', 'DEFAULTS', 'FORMAT', 'IMAGENET_CLASSES', 'IMAGENET_WNIDS', 'LAYOUTS',
           'STUFF', 'Scene', 'prepare', 'read_settings', 'scene']

# Raised whenever the same settings would draw other files: old folders then differ.
FORMAT = 1
LAYOUTS = tuple(WRITERS)
RECORD = 'scenes.json'
SPLITS = ('train', 'val')

_SCENES = dict(image_size=(160, 160), num_train=320, num_val=80, objects=(1, 4),
               size_range=(0.22, 0.6), spread=(0.08, 0.92), turn=180, distractors=(1, 4),
               min_visible=0.5, contrast='lighter')
# A classifier's picture is of its object: larger, near the middle, more or less upright.
_PICTURES = dict(image_size=(64, 64), num_train=1500, num_val=300, objects=(1, 1),
                 size_range=(0.7, 1.0), spread=(0.42, 0.58), turn=20, distractors=(1, 3),
                 min_visible=0.6, contrast='lighter')
DEFAULTS: dict[str, dict] = dict(coco=_SCENES, ade=_SCENES, imagenet=_PICTURES)
# What a single picture depends on, besides the seed.
_PICTURE_KNOBS = ('image_size', 'objects', 'size_range', 'spread', 'turn', 'distractors',
                  'min_visible', 'contrast')


def prepare(layout: str, root: str | os.PathLike, *,
            image_size: int | Sequence[int] | None = None,
            num_train: int | None = None, num_val: int | None = None,
            objects: Sequence[int] | None = None,
            size_range: Sequence[float] | None = None,
            spread: Sequence[float] | None = None, turn: float | None = None,
            distractors: Sequence[int] | None = None,
            min_visible: float | None = None, contrast: str | None = None,
            seed: int = 0, log: Callable[[str], None] = print,
            track: Callable[[range], Iterable[int]] = iter) -> Path:
    """Draw the data set into ``root`` unless it is there already, and say so in one line.

    The folder appears complete or not at all: it is drawn beside ``root`` and then renamed. Of
    processes that draw at the same time one wins, and the others use its folder. Equal settings
    give equal bytes on one machine; picture i of a split depends on neither the counts nor on
    other pictures.

    Args:
        layout: 'coco', 'ade' or 'imagenet'.
        root: The data set's folder; its parents are made.
        image_size: Pixels, one number or (height, width).
        num_train: Pictures to train on; at least one a class.
        num_val: Pictures to evaluate on; at least one a class.
        objects: (least, most) objects a picture; (1, 1) in 'imagenet'.
        size_range: (least, most) diameter of an object over the shorter side of the picture.
        spread: (least, most) place of an object's centre along both sides, 0 to 1.
        turn: Degrees by which an object is turned at most, either way; 180 is any direction.
        distractors: (least, most) shapes of no class a picture.
        min_visible: Share of each object that is neither covered nor outside.
        contrast: 'lighter': objects are lighter than the background (distractors are either);
            'any': either may be lighter, which takes a plain ViT many times longer to learn.
        seed: Another seed, other pictures.
        log: Receives the line.
        track: Yields the numbers of a split's pictures while it shows how far it is.

    ``None`` stands for the layout's entry in ``DEFAULTS``.

    Returns:
        The absolute path of the folder.

    Raises:
        ValueError: A bad argument, or ``root`` holds scenes drawn with other settings.
        FileExistsError: ``root`` is a file, or holds anything but a complete set of scenes.
    """
    settings = _settings(layout, image_size=image_size, num_train=num_train, num_val=num_val,
                         objects=objects, size_range=size_range, spread=spread, turn=turn,
                         distractors=distractors, min_visible=min_visible, contrast=contrast,
                         seed=seed)
    folder = Path(root).expanduser().resolve()
    counts = f'{settings["num_train"]} train, {settings["num_val"]} val'
    if _is_drawn(folder, settings):
        log(f'scenes: {folder} holds this {layout} set already ({counts})')
        return folder
    start = time.perf_counter()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f'.{folder.name}.{uuid.uuid4().hex}.draft')
    draft.mkdir()
    try:
        WRITERS[layout](draft, lambda split: _draw(split, settings, track))
        record = dict(settings, files=_count_files(draft) + 1)
        (draft / RECORD).write_text(json.dumps(record, indent=2) + '\n')
        _publish(draft, folder, settings)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    log(f'scenes: drew the {layout} set ({counts}) into {folder} '
        f'in {time.perf_counter() - start:.1f} s')
    return folder


def scene(split: str, index: int, settings: dict) -> Scene:
    """Picture ``index`` of 'train' or 'val'; ``settings`` as ``read_settings`` returns them."""
    rng = np.random.default_rng([settings['seed'], LAYOUTS.index(settings['layout']),
                                 SPLITS.index(split), index])
    # The lowest object goes through the classes in turn: each occurs, however few the pictures.
    return draw_scene(rng, first_label=index % len(CLASSES),
                      **{name: settings[name] for name in _PICTURE_KNOBS})


def read_settings(root: str | os.PathLike) -> dict:
    """What the set in ``root`` was drawn with: the settings, ``format`` and the count ``files``.

    Raises:
        FileExistsError: ``root`` holds no readable ``scenes.json``.
    """
    record = Path(root) / RECORD
    try:
        found = json.loads(record.read_text())
    except (OSError, ValueError) as error:
        found = error
    if not isinstance(found, dict):
        raise FileExistsError(f'{root} exists, but is no folder of scenes ({RECORD} is missing or '
                              'unreadable); name another folder, or empty this one')
    return found


def _draw(split: str, settings: dict, track: Callable[[range], Iterable[int]]) \
        -> Iterator[tuple[int, Scene]]:
    for index in track(range(settings[f'num_{split}'])):
        yield index, scene(split, index, settings)


def _is_drawn(folder: Path, settings: dict) -> bool:
    """Whether ``folder`` is this data set (True) or free for it (False); raises if neither."""
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return False
    found = read_settings(folder)
    other = [f'{name} is {found.get(name)!r} there, {value!r} asked for'
             for name, value in settings.items() if found.get(name) != value]
    if other:
        raise ValueError(f'{folder} holds scenes drawn with other settings: {"; ".join(other)}; '
                         'name another folder, or delete this one to have it drawn anew')
    files = _count_files(folder)
    if files < found.get('files', 0):
        raise FileExistsError(f'{folder} holds {files} of its {found["files"]} files; delete it to '
                              'have it drawn anew')
    return True


def _publish(draft: Path, folder: Path, settings: dict) -> None:
    try:
        draft.rename(folder)
    except OSError:
        # Another process may have been faster; whatever else is wrong is raised again.
        if not _is_drawn(folder, settings):
            raise


def _count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob('*'))


def _settings(layout: str, *, seed: int, **given) -> dict:
    """All settings, checked, as json gives them back."""
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, got {layout!r}')
    chosen = {name: default if given[name] is None else given[name]
              for name, default in DEFAULTS[layout].items()}
    size = chosen['image_size']
    size = [size, size] if _is_int(size) else size
    _check('image_size', size, _is_pair(size, _is_int) and min(size) >= 32,
           'one or two whole numbers of pixels (height, width), at least 32')
    for name in ('num_train', 'num_val'):
        _check(name, chosen[name], _is_int(chosen[name]) and chosen[name] >= len(CLASSES),
               f'a whole number, at least one for each of the {len(CLASSES)} classes')
    most = 1 if layout == 'imagenet' else 20
    for name, low, high in (('objects', 1, most), ('distractors', 0, 50)):
        pair = chosen[name]
        _check(name, pair, _is_pair(pair, _is_int) and low <= pair[0] <= pair[1] <= high,
               f'two whole numbers (least, most) from {low} to {high} in layout {layout!r}')
    pair, least = chosen['size_range'], 10 / min(size)
    _check('size_range', pair, _is_pair(pair, _is_number) and least <= pair[0] <= pair[1] <= 1,
           f'two numbers (least, most) from {least:.3g} (10 pixels here) to 1')
    pair = chosen['spread']
    _check('spread', pair, _is_pair(pair, _is_number) and 0 <= pair[0] <= 0.5 <= pair[1] <= 1,
           'two numbers (least, most) from 0 to 1, around 0.5')
    turn = chosen['turn']
    _check('turn', turn, _is_number(turn) and 0 <= turn <= 180, 'degrees from 0 to 180')
    share = chosen['min_visible']
    _check('min_visible', share, _is_number(share) and 0.1 <= share <= 0.9,
           'a number from 0.1 to 0.9')
    contrast = chosen['contrast']
    _check('contrast', contrast, contrast in CONTRASTS, f'one of {", ".join(CONTRASTS)}')
    _check('seed', seed, _is_int(seed) and seed >= 0, 'a whole number, at least 0')
    return dict(format=FORMAT, layout=layout, image_size=list(size),
                num_train=chosen['num_train'], num_val=chosen['num_val'],
                objects=list(chosen['objects']), size_range=_floats(chosen['size_range']),
                spread=_floats(chosen['spread']), turn=float(turn),
                distractors=list(chosen['distractors']), min_visible=float(share),
                contrast=contrast, seed=seed)


def _floats(numbers: Sequence[float]) -> list[float]:
    return [float(number) for number in numbers]


def _check(name: str, value, good: bool, allowed: str) -> None:
    if not good:
        raise ValueError(f'{name} must be {allowed}, got {value!r}')


def _is_int(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value) -> bool:
    return _is_int(value) or isinstance(value, float)


def _is_pair(value, kind: Callable[[object], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(kind, value))


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of ``prepare``."""
    parser = argparse.ArgumentParser(
        prog='python -m lape_mm.datasets.scenes', argument_default=argparse.SUPPRESS,
        description='Draw the built-in data set into a folder, once.')
    parser.add_argument('layout', choices=LAYOUTS)
    parser.add_argument('root', help='folder of the data set')
    parser.add_argument('--image-size', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'))
    parser.add_argument('--num-train', type=int)
    parser.add_argument('--num-val', type=int)
    parser.add_argument('--objects', type=int, nargs=2, metavar=('LEAST', 'MOST'))
    parser.add_argument('--size-range', type=float, nargs=2, metavar=('LEAST', 'MOST'),
                        help='diameters over the shorter side of the picture')
    parser.add_argument('--spread', type=float, nargs=2, metavar=('LEAST', 'MOST'),
                        help='centres of objects, 0 to 1')
    parser.add_argument('--turn', type=float, metavar='DEGREES')
    parser.add_argument('--distractors', type=int, nargs=2, metavar=('LEAST', 'MOST'))
    parser.add_argument('--min-visible', type=float)
    parser.add_argument('--contrast', choices=CONTRASTS)
    parser.add_argument('--seed', type=int)
    arguments = parser.parse_args(argv)
    try:
        prepare(**vars(arguments))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
