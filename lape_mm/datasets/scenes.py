"""The built-in data set: small scenes of plain shapes, drawn once into a folder.

A scene shows one to four objects (``CLASSES``), which differ only in outline, over a textured
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
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .drawing import CLASSES, Scene, draw_scene
from .layouts import WRITERS

FORMAT = 1  # raise this when the same settings draw different files
LAYOUTS = tuple(WRITERS)
RECORD = 'scenes.json'
SPLITS = ('train', 'val')

# (height, width) in pixels, numbers of pictures
DEFAULTS: dict[str, dict] = dict(
    coco=dict(image_size=(160, 160), num_train=320, num_val=80),
    ade=dict(image_size=(160, 160), num_train=320, num_val=80),
    imagenet=dict(image_size=(64, 64), num_train=1500, num_val=300))
# arguments of `draw_scene`. A plain ViT must learn the shapes within minutes: objects are large,
# central and upright; a classifier's picture shows one
SCENES: dict[str, dict] = dict(
    coco=dict(objects=(1, 4), size_range=(.22, .6), spread=(.08, .92), turn=180.,
              distractors=(1, 4), min_visible=.5),
    ade=dict(objects=(1, 2), size_range=(.55, .95), spread=(.35, .65), turn=5.,
             distractors=(1, 4), min_visible=.5),
    imagenet=dict(objects=(1, 1), size_range=(.7, 1.), spread=(.42, .58), turn=20.,
                  distractors=(1, 3), min_visible=.6))
LEAST_SIDE = 32  # pixels


def prepare(layout: str, root: str | os.PathLike, *, image_size: int | Sequence[int] | None = None,
            num_train: int | None = None, num_val: int | None = None, seed: int = 0,
            log: Callable[[str], None] = print,
            track: Callable[[range], Iterable[int]] = iter) -> Path:
    """Draws the data set into ``root`` unless it is there already, and logs one line.

    The set is drawn into a temporary folder, then renamed, so ``root`` is never incomplete. If
    several processes draw at once, the first one wins and the others use its folder. Equal
    settings give equal bytes on one machine. Picture i of a split does not depend on the counts or
    on other pictures.

    Args:
        layout: 'coco', 'ade' or 'imagenet'; sizes and counts default to its ``DEFAULTS``.
        root: folder of the data set; missing parents are created.
        image_size: pixels, one number or (height, width).
        num_train, num_val: number of pictures, at least one per class.
        seed: of the random stream.
        log: receives the line.
        track: wraps the range of a split's pictures and may show progress.

    Returns:
        the absolute path of the folder.

    Raises:
        ValueError: an argument is bad, or ``root`` has scenes drawn with other settings.
        FileExistsError: ``root`` is a file, or a folder with something else.
    """
    settings = check_settings(layout, dict(
        image_size=image_size, num_train=num_train, num_val=num_val, seed=seed))
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
            if not is_drawn(folder, settings):  # else another process has drawn it meanwhile
                raise
    log(f'scenes: drew the {what} into {folder} in {time.perf_counter() - start:.1f} s')
    return folder


def scene(split: str, index: int, settings: dict) -> Scene:
    """Draws picture ``index`` of 'train' or 'val', with `read_settings`' settings."""
    layout = settings['layout']
    rng = np.random.default_rng([settings['seed'], LAYOUTS.index(layout), SPLITS.index(split),
                                 index])
    # the lowest object cycles through the classes, so each class occurs even in a small set
    return draw_scene(rng, image_size=settings['image_size'], first_label=index % len(CLASSES),
                      **SCENES[layout])


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
    """True if ``folder`` is this data set, False if it is free; raises for anything else."""
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
    """All settings, checked; lists replace tuples, as in JSON."""
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, got {layout!r}')
    settings: dict[str, Any] = dict(format=FORMAT, layout=layout, **DEFAULTS[layout])
    settings.update((name, value) for name, value in given.items() if value is not None)
    size = settings['image_size']
    settings['image_size'] = [*size] if isinstance(size, (list, tuple)) else [size, size]
    for name, least in dict(image_size=LEAST_SIDE, num_train=len(CLASSES), num_val=len(CLASSES),
                            seed=0).items():
        sides = settings[name] if name == 'image_size' else [settings[name]]
        if len(sides) != 1 + (name == 'image_size') or not all(
                type(side) is int and side >= least for side in sides):
            raise ValueError(f'{name} must be {least} or more, got {settings[name]!r}')
    return settings


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`, with its main settings."""
    parser = argparse.ArgumentParser(
        prog='python -m lape_mm.datasets.scenes', argument_default=argparse.SUPPRESS,
        description='Draw the built-in data set into a folder, once.')
    parser.add_argument('layout', choices=LAYOUTS)
    parser.add_argument('root', help='folder of the data set')
    parser.add_argument('--image-size', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'))
    parser.add_argument('--num-train', type=int)
    parser.add_argument('--num-val', type=int)
    parser.add_argument('--seed', type=int)
    try:
        prepare(**vars(parser.parse_args(argv)))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
