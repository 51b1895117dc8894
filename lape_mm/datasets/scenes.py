"""The built-in data set: small scenes of plain shapes, drawn once into a folder.

A scene shows one to four objects (``CLASSES``), which differ only in outline, over a textured
ground and sky. A model learns the set within minutes on a CPU; a broken model does not.

A config names its data in one dict, and the tools call ``prepare(**cfg.scenes)``::

    scenes = dict(layout='coco', root='data/scenes/coco', seed=0)

By hand: ``python -m lape_mm.datasets.scenes coco data/scenes/coco``.

Text configs cannot import, so they repeat the classes in ``metainfo``: for ``CocoDataset``
('coco'), ``BaseSegDataset`` with ``reduce_zero_label=True`` ('ade'), and ``ImageNet`` ('imagenet').
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

import cv2
import numpy as np

from .drawing import CLASSES, STUFF, SUPERSAMPLING, Scene, draw_scene

FORMAT = 1  # raise this when the same settings draw different files
RECORD = 'scenes.json'
SPLITS = ('train', 'val')
LEAST_SIDE = 32  # pixels

# arguments of `draw_scene`. A plain ViT must learn the shapes within minutes: objects are large,
# central and upright; a classifier's picture shows one
SCENES: dict[str, dict] = dict(
    coco=dict(objects=(1, 4), size_range=(.22, .6), spread=(.08, .92), turn=180.,
              distractors=(1, 4), min_visible=.5),
    ade=dict(objects=(1, 2), size_range=(.55, .95), spread=(.35, .65), turn=5.,
             distractors=(1, 4), min_visible=.5),
    imagenet=dict(objects=(1, 1), size_range=(.7, 1.), spread=(.42, .58), turn=20.,
                  distractors=(1, 3), min_visible=.6))
LAYOUTS = tuple(SCENES)
# side in pixels, numbers of pictures
USUAL = {layout: dict(image_size=160, num_train=320, num_val=80) for layout in LAYOUTS}
USUAL['imagenet'] = dict(image_size=64, num_train=1500, num_val=300)

# with gaps, as in COCO, so that code which takes an id for an index fails here
COCO_CATEGORY_IDS = (1, 2, 4, 7, 8, 13)
# label 0 is unlabelled, label k is ADE_CLASSES[k - 1] (reduce_zero_label=True)
ADE_CLASSES = CLASSES + STUFF
# not ImageNet's ids, so that nobody mistakes these folders for ImageNet's
IMAGENET_WNIDS = tuple(f'n9000000{number}' for number in range(1, len(CLASSES) + 1))

Scenes = Callable[[str], Iterator[tuple[int, Scene]]]


def prepare(layout: str, root: str | os.PathLike, *, image_size: int | Sequence[int] | None = None,
            num_train: int | None = None, num_val: int | None = None, seed: int = 0,
            track: Callable[[range], Iterable[int]] = iter) -> Path:
    """Draws the data set into ``root`` unless it is there already, and prints one line.

    ``root`` is never incomplete: the set is drawn into a temporary folder, then renamed. If several
    processes draw at once, the first wins and the others use its folder. Equal settings give equal
    bytes on one machine, and picture i of a split does not depend on the numbers of pictures.

    Args:
        layout: 'coco', 'ade' or 'imagenet'; sizes and numbers default to its ``USUAL``.
        root: folder of the data set; its absolute path is returned.
        image_size: pixels, one number or (height, width).
        num_train, num_val: numbers of pictures.
        track: wraps the range of a split's picture indices, for example to show progress.

    Raises:
        ValueError: an argument is bad, or ``root`` has scenes drawn with other settings.
        FileExistsError: ``root`` is a file, or a folder with something else.
    """
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be one of {", ".join(LAYOUTS)}, got {layout!r}')
    settings: dict[str, Any] = dict(format=FORMAT, layout=layout, **USUAL[layout], seed=seed)
    given = dict(image_size=image_size, num_train=num_train, num_val=num_val)
    settings.update((name, value) for name, value in given.items() if value is not None)
    size, *counts = (settings[name] for name in given)
    settings['image_size'] = sides = [*size] if isinstance(size, Sequence) else [size, size]
    if min(sides) < LEAST_SIDE or min(counts) < len(CLASSES):
        raise ValueError(f'expected an image_size of {LEAST_SIDE} or more, num_train and num_val '
                         f'of {len(CLASSES)} or more, got {sides} and {counts}')
    folder = Path(root).expanduser().resolve()
    what = '{} set ({} train, {} val)'.format(layout, *counts)
    if is_drawn(folder, settings):
        print(f'scenes: {folder} already holds this {what}')
        return folder
    start = time.perf_counter()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix='.', dir=folder.parent) as parent:
        draft = Path(parent, folder.name)
        draft.mkdir()
        WRITERS[layout](draft, lambda split: (
            (index, scene(split, index, settings))
            for index in track(range(settings[f'num_{split}']))))
        (draft / RECORD).write_text(json.dumps(settings, indent=2) + '\n')
        try:
            draft.rename(folder)
        except OSError:
            if not is_drawn(folder, settings):  # else another process has drawn it meanwhile
                raise
    print(f'scenes: drew the {what} into {folder} in {time.perf_counter() - start:.1f} s')
    return folder


def is_drawn(folder: Path, settings: dict) -> bool:
    """True if ``folder`` is this data set, False if it is free; raises for anything else."""
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return False
    try:
        found = dict(json.loads((folder / RECORD).read_text()))
    except (OSError, ValueError) as error:
        raise FileExistsError(f'{folder} exists, but {RECORD} is missing or unreadable: name '
                              'another folder, or empty this one') from error
    if other := [f'{name} is {found.get(name)!r} there, {value!r} here'
                 for name, value in settings.items() if found.get(name) != value]:
        raise ValueError(f'{folder} holds scenes drawn with other settings: {"; ".join(other)}: '
                         'name another folder, or delete this one to draw it again')
    return True


def scene(split: str, index: int, settings: dict) -> Scene:
    """Draws picture ``index`` of 'train' or 'val', with the settings of ``scenes.json``."""
    layout = settings['layout']
    rng = np.random.default_rng([settings['seed'], LAYOUTS.index(layout), SPLITS.index(split),
                                 index])
    # the lowest object cycles through the classes, so each class occurs even in a small set
    return draw_scene(rng, image_size=settings['image_size'], first_label=index % len(CLASSES),
                      **SCENES[layout])


# Writers get an empty folder and a function: split -> (index, Scene) pairs. File names and ids
# depend only on the index, so a larger data set just adds files.

def write_coco(folder: Path, scenes: Scenes) -> None:
    """Writes ``annotations/instances_{train,val}2017.json`` and ``{train,val}2017/*.jpg``."""
    (folder / 'annotations').mkdir()
    categories = [dict(supercategory='shape', id=number, name=name)
                  for number, name in zip(COCO_CATEGORY_IDS, CLASSES)]
    for odd, split in enumerate(('val', 'train')):
        images, annotations = [], []
        for index, scene in scenes(split):
            image_id = 2 * (index + 1) + odd
            name = f'{image_id:012d}.jpg'
            write_image(folder / f'{split}2017' / name, scene.image[..., ::-1])
            height, width = scene.image.shape[:2]
            images.append(dict(license=1, file_name=name, height=height, width=width, id=image_id))
            annotations += [
                dict(**instance(scene.owner == number), iscrowd=0, image_id=image_id,
                     category_id=COCO_CATEGORY_IDS[label], id=100 * image_id + number)
                for number, label in enumerate(scene.labels, 1)]
        (folder / 'annotations' / f'instances_{split}2017.json').write_text(json.dumps(dict(
            info=dict(description='Scenes of plain shapes drawn by lape_mm', version='1.0'),
            licenses=[dict(id=1, name='Apache License 2.0',
                           url='https://www.apache.org/licenses/LICENSE-2.0')],
            images=images, annotations=annotations, categories=categories)))


def instance(mask: np.ndarray) -> dict:
    """``segmentation``, ``area`` and ``bbox`` (x, y, width, height) of a supersampled mask."""
    curves = [(curve + 0.5) / SUPERSAMPLING for curve in outlines(mask)]
    points = np.concatenate(curves)
    box = np.concatenate([points.min(axis=0), np.ptp(points, axis=0)])
    return dict(segmentation=[curve.ravel().round(2).tolist() for curve in curves],
                area=round(np.count_nonzero(mask) / SUPERSAMPLING ** 2, 4),
                bbox=box.round(2).tolist())


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Polygons (N, 2) of pixel centres (x, y); their union is ``mask`` without specks.

    COCO unites the polygons of an instance and has no holes. A part with a hole is therefore cut
    through the hole; both halves keep the column of the cut, so no gap remains.
    """
    curves, tree = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    holes = [curve for curve, (_, _, _, parent) in zip(curves, tree[0]) if parent >= 0]
    holes = [hole for hole in holes if cv2.contourArea(hole) >= SUPERSAMPLING ** 2]
    if holes:
        left, _, width, _ = cv2.boundingRect(max(holes, key=cv2.contourArea))
        cut = left + width // 2
        first, second = mask.copy(), mask.copy()
        first[:, cut + 1:] = False
        second[:, :cut] = False
        return outlines(first) + outlines(second)
    parts = [curve for curve, (_, _, _, parent) in zip(curves, tree[0]) if parent < 0]
    least = min(max(map(cv2.contourArea, parts)), 2 * SUPERSAMPLING ** 2)
    parts = [cv2.approxPolyDP(part, 1.0, True)[:, 0] for part in parts
             if cv2.contourArea(part) >= least]
    return [part for part in parts if len(part) >= 3]


def write_ade(folder: Path, scenes: Scenes) -> None:
    """Writes ``images/{training,validation}/*.jpg``, ``annotations/../*.png``, ``classes.txt``."""
    for split, name in (('train', 'training'), ('val', 'validation')):
        for index, scene in scenes(split):
            stem = f'{name}/ADE_{split}_{index + 1:08d}'
            write_image(folder / f'images/{stem}.jpg', scene.image[..., ::-1])
            write_image(folder / f'annotations/{stem}.png', scene.label_map())
    (folder / 'classes.txt').write_text('\n'.join((*ADE_CLASSES, '')))


def write_imagenet(folder: Path, scenes: Scenes) -> None:
    """Writes ``{train,val}/<wnid>/*.JPEG``."""
    for split in SPLITS:
        for index, scene in scenes(split):
            wnid = IMAGENET_WNIDS[scene.labels[0]]
            name = f'{wnid}_{index}' if split == 'train' else f'val_{index + 1:08d}'
            write_image(folder / split / wnid / f'{name}.JPEG', scene.image[..., ::-1])


def write_image(path: Path, image: np.ndarray) -> None:
    """Writes an image; cv2.imwrite raises nothing when the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(path.suffix.lower(), np.ascontiguousarray(image))[1]
    path.write_bytes(encoded.tobytes())


WRITERS = dict(coco=write_coco, ade=write_ade, imagenet=write_imagenet)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `prepare`, with its main settings."""
    parser = argparse.ArgumentParser(
        prog='python -m lape_mm.datasets.scenes',
        description='Draw the built-in data set into a folder, once.')
    parser.add_argument('layout', choices=LAYOUTS)
    parser.add_argument('root', help='folder of the data set')
    parser.add_argument('--num-train', type=int)
    parser.add_argument('--num-val', type=int)
    try:
        prepare(**vars(parser.parse_args(argv)))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == '__main__':
    main()
