"""The built-in data set: small scenes of plain shapes, drawn once into a folder.

A scene shows one to four objects (``CLASSES``) that only their outlines tell apart, over a textured
ground and sky. A model learns the set within minutes on a CPU; a broken model does not.

A config names its data in one dict, and the tools call ``prepare(**cfg.scenes)``::

    scenes = dict(layout='coco', root='data/scenes/coco', seed=0)

By hand: ``python -m lape_mm.datasets.scenes coco data/scenes/coco``.

Text configs cannot import, so they repeat the classes and palettes of ``layouts.py`` as
``metainfo``: for ``CocoDataset`` ('coco'), for ``BaseSegDataset`` with ``reduce_zero_label=True``
('ade'), and for ``ImageNet`` or ``CustomDataset`` ('imagenet').
"""
from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .drawing import CLASSES, Scene, draw_scene
from .layouts import WRITERS

FORMAT = 1  # raise it when the same settings would draw other files
LAYOUTS = tuple(WRITERS)
RECORD = 'scenes.json'
SPLITS = ('train', 'val')

DEFAULTS: dict[str, dict] = dict.fromkeys(('coco', 'ade'), dict(
    image_size=(160, 160), num_train=320, num_val=80, objects=(1, 4), size_range=(.22, .6),
    spread=(.08, .92), turn=180., distractors=(1, 4), seed=0))
# a classifier's picture shows one object: large, near the middle, roughly upright
DEFAULTS['imagenet'] = dict(
    image_size=(64, 64), num_train=1500, num_val=300, objects=(1, 1), size_range=(.7, 1.),
    spread=(.42, .58), turn=20., distractors=(1, 3), seed=0)
# smallest and largest allowed value
BOUNDS: dict[str, tuple[float, float]] = dict(
    image_size=(32, math.inf), num_train=(len(CLASSES), math.inf), num_val=(len(CLASSES), math.inf),
    objects=(1, 20), size_range=(0, 1), spread=(0, 1), turn=(0, 180), distractors=(0, 50),
    seed=(0, math.inf))


def prepare(layout: str, root: str | os.PathLike, *, image_size: int | Sequence[int] | None = None,
            num_train: int | None = None, num_val: int | None = None,
            objects: Sequence[int] | None = None, size_range: Sequence[float] | None = None,
            spread: Sequence[float] | None = None, turn: float | None = None,
            distractors: Sequence[int] | None = None, seed: int = 0,
            log: Callable[[str], None] = print,
            track: Callable[[range], Iterable[int]] = iter) -> Path:
    """Draws the data set into ``root`` unless it is there already, and logs one line.

    The set is drawn into a temporary folder that is then renamed, so ``root`` is never incomplete.
    If several processes draw at once, the first one wins and the others use its folder. Equal
    settings give equal bytes on one machine. Picture i of a split depends neither on the counts nor
    on other pictures.

    Args:
        layout: 'coco', 'ade' or 'imagenet'; the others default to its entry in ``DEFAULTS``.
        root: folder of the data set; its parents are made.
        image_size: pixels, one number or (height, width).
        num_train, num_val: number of pictures, at least one a class.
        objects: (least, most) objects a picture; (1, 1) in 'imagenet'.
        size_range: (least, most) diameter of an object over the shorter side of the picture.
        spread: (least, most) position of an object's centre along both sides, 0 to 1.
        turn: largest rotation of an object either way, in degrees.
        distractors: (least, most) shapes of no class a picture.
        seed: of the random stream.
        log: receives the line.
        track: yields the numbers of a split's pictures and may show progress.

    Returns:
        the absolute path of the folder.

    Raises:
        ValueError: bad argument, or ``root`` holds scenes drawn with other settings.
        FileExistsError: ``root`` is a file, or a folder of something else.
    """
    settings = check_settings(layout, dict(
        image_size=image_size, num_train=num_train, num_val=num_val, objects=objects,
        size_range=size_range, spread=spread, turn=turn, distractors=distractors, seed=seed))
    folder = Path(root).expanduser().resolve()
    what = f'{layout} set ({settings["num_train"]} train, {settings["num_val"]} val)'
    if is_drawn(folder, settings):
        log(f'scenes: {folder} already holds this {what}')
        return folder
    start = time.perf_counter()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix='.', dir=folder.parent) as parent:
        draft = Path(parent, folder.name)
        draft.mkdir()
        WRITERS[layout](draft, lambda split: draw_split(split, settings, track))
        (draft / RECORD).write_text(json.dumps(settings, indent=2) + '\n')
        try:
            draft.rename(folder)
        except OSError:
            if not is_drawn(folder, settings):  # no other process has drawn it meanwhile
                raise
    log(f'scenes: drew the {what} into {folder} in {time.perf_counter() - start:.1f} s')
    return folder


def scene(split: str, index: int, settings: dict) -> Scene:
    """Draws picture ``index`` of 'train' or 'val'; ``settings`` are those of `read_settings`."""
    layout = settings['layout']
    rng = np.random.default_rng([settings['seed'], LAYOUTS.index(layout), SPLITS.index(split),
                                 index])
    # the lowest object goes through the classes in turn, so each class occurs in a small set
    return draw_scene(
        rng, first_label=index % len(CLASSES), min_visible=.6 if layout == 'imagenet' else .5,
        **{name: settings[name] for name in (
            'image_size', 'objects', 'size_range', 'spread', 'turn', 'distractors')})


def draw_split(split: str, settings: dict, track: Callable[[range], Iterable[int]]) \
        -> Iterator[tuple[int, Scene]]:
    """Yields (index, Scene) of one split."""
    for index in track(range(settings[f'num_{split}'])):
        yield index, scene(split, index, settings)


def read_settings(root: str | os.PathLike) -> dict:
    """The settings that the set in ``root`` was drawn with.

    Raises:
        FileExistsError: ``root`` has no readable ``scenes.json``.
    """
    try:
        return dict(json.loads((Path(root) / RECORD).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise FileExistsError(f'{root} exists, but {RECORD} is missing or unreadable: name another '
                              'folder, or empty this one') from error


def is_drawn(folder: Path, settings: dict) -> bool:
    """Whether ``folder`` is this data set (True) or free (False); raises for anything else."""
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return False
    found = read_settings(folder)
    other = [f'{name} is {found.get(name)!r} there, {value!r} here'
             for name, value in settings.items() if found.get(name) != value]
    if other:
        raise ValueError(f'{folder} holds scenes drawn with other settings: {"; ".join(other)}: '
                         'name another folder, or delete this one to draw it again')
    return True


def check_settings(layout: str, given: dict[str, Any]) -> dict[str, Any]:
    """All settings, checked, with lists for tuples as JSON returns them."""
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, got {layout!r}')
    settings: dict[str, Any] = dict(format=FORMAT, layout=layout)
    for name, default in DEFAULTS[layout].items():
        value = default if given[name] is None else given[name]
        if name == 'image_size' and isinstance(value, int):
            value = value, value
        pair = isinstance(default, tuple)
        kind = type(default[0] if pair else default)
        low, high = BOUNDS[name]
        values = [*value] if pair and isinstance(value, (list, tuple)) else [value]
        good = len(values) == 1 + pair and all(
            isinstance(one, (int, kind)) and not isinstance(one, bool) and low <= one <= high
            for one in values)
        if not good or name != 'image_size' and values != sorted(values):
            wanted = f'two ascending {kind.__name__}s' if pair else f'one {kind.__name__}'
            raise ValueError(f'{name} must be {wanted} from {low} to {high}, got {value!r}')
        values = [kind(one) for one in values]
        settings[name] = values if pair else values[0]
    if settings['size_range'][0] < (least := 10 / min(settings['image_size'])):
        raise ValueError(f'size_range must begin at {least:.3g} (10 pixels) or more, got '
                         f'{settings["size_range"]}')
    if layout == 'imagenet' and settings['objects'] != [1, 1]:
        raise ValueError(f"objects must be (1, 1) in layout 'imagenet', got {settings['objects']}")
    return settings


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`, with its most used settings."""
    parser = argparse.ArgumentParser(
        prog='python -m lape_mm.datasets.scenes', argument_default=argparse.SUPPRESS,
        description='Draw the built-in data set into a folder, once.')
    parser.add_argument('layout', choices=LAYOUTS)
    parser.add_argument('root', help='folder of the data set')
    parser.add_argument('--image-size', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'))
    for name in ('--num-train', '--num-val', '--seed'):
        parser.add_argument(name, type=int)
    try:
        prepare(**vars(parser.parse_args(argv)))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
