"""Writes scenes as COCO, ADE20K and ImageNet folders.

A writer gets an empty folder and ``scenes(split)``, which yields (index, Scene). File names and ids
only depend on the index, so a longer data set just adds files.
"""
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np

from .drawing import CLASSES, STUFF, SUPERSAMPLING, Scene

# with gaps, as in COCO, so that code which takes an id for an index fails here
COCO_CATEGORY_IDS = (1, 2, 4, 7, 8, 13)
COCO_CLASSES = CLASSES
COCO_PALETTE = ((220, 20, 60), (0, 130, 255), (255, 180, 0), (0, 200, 90), (170, 60, 230),
                (0, 215, 215))

# label 0 is unlabelled, label k is ADE_CLASSES[k - 1] (reduce_zero_label=True)
ADE_CLASSES = CLASSES + STUFF

# not ids of ImageNet, so that nobody mistakes these folders for a part of it
IMAGENET_WNIDS = tuple(f'n9000000{number}' for number in range(1, len(CLASSES) + 1))

Scenes = Callable[[str], Iterator[tuple[int, Scene]]]
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95)


def write_coco(folder: Path, scenes: Scenes) -> None:
    """``annotations/instances_{train,val}2017.json`` with polygons, ``{train,val}2017/*.jpg``."""
    (folder / 'annotations').mkdir()
    categories = [dict(supercategory='shape', id=number, name=name)
                  for number, name in zip(COCO_CATEGORY_IDS, COCO_CLASSES)]
    for odd, split in enumerate(('val', 'train')):
        (folder / f'{split}2017').mkdir()
        images, annotations = [], []
        for index, scene in scenes(split):
            image_id = 2 * (index + 1) + odd
            name = f'{image_id:012d}.jpg'
            _write(folder / f'{split}2017' / name, scene.image[..., ::-1], _JPEG)
            height, width = scene.image.shape[:2]
            images.append(dict(license=1, file_name=name, height=height, width=width, id=image_id))
            for number, label in enumerate(scene.labels, 1):
                annotations.append(dict(
                    **_instance(scene.owner == number), iscrowd=0, image_id=image_id,
                    category_id=COCO_CATEGORY_IDS[label], id=100 * image_id + number))
        (folder / 'annotations' / f'instances_{split}2017.json').write_text(json.dumps(dict(
            info=dict(description='Scenes of plain shapes drawn by lape_mm', version='1.0'),
            licenses=[dict(id=1, name='Apache License 2.0',
                           url='https://www.apache.org/licenses/LICENSE-2.0')],
            images=images, annotations=annotations, categories=categories)))


def _instance(mask: np.ndarray) -> dict:
    """``segmentation``, ``area`` and ``bbox`` (x, y, width, height) of a supersampled mask."""
    curves = [(curve + 0.5) / SUPERSAMPLING for curve in outlines(mask)]
    points = np.concatenate(curves)
    box = *points.min(axis=0), *np.ptp(points, axis=0)
    return dict(segmentation=[_rounded(curve.ravel()) for curve in curves],
                area=round(np.count_nonzero(mask) / SUPERSAMPLING ** 2, 4), bbox=_rounded(box))


def _rounded(numbers) -> list[float]:
    return [round(float(number), 2) for number in numbers]


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Polygons, (N, 2) of (x, y) pixel centres, whose union is ``mask`` without specks.

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
    largest = max(map(cv2.contourArea, parts))
    parts = [cv2.approxPolyDP(part, 1.0, True)[:, 0] for part in parts
             if cv2.contourArea(part) >= min(largest, 2 * SUPERSAMPLING ** 2)]
    return [part for part in parts if len(part) >= 3]


def write_ade(folder: Path, scenes: Scenes) -> None:
    """``images/{training,validation}/*.jpg``, ``annotations/../*.png``, and ``classes.txt``."""
    for split, name in (('train', 'training'), ('val', 'validation')):
        images, annotations = folder / 'images' / name, folder / 'annotations' / name
        images.mkdir(parents=True)
        annotations.mkdir(parents=True)
        for index, scene in scenes(split):
            stem = f'ADE_{split}_{index + 1:08d}'
            _write(images / f'{stem}.jpg', scene.image[..., ::-1], _JPEG)
            _write(annotations / f'{stem}.png', scene.label_map(), ())
    (folder / 'classes.txt').write_text('\n'.join((*ADE_CLASSES, '')))


def write_imagenet(folder: Path, scenes: Scenes) -> None:
    """``{train,val}/<wnid>/*.JPEG``."""
    for split in ('train', 'val'):
        for wnid in IMAGENET_WNIDS:
            (folder / split / wnid).mkdir(parents=True)
        for index, scene in scenes(split):
            wnid = IMAGENET_WNIDS[scene.labels[0]]
            name = f'{wnid}_{index}' if split == 'train' else f'val_{index + 1:08d}'
            _write(folder / split / wnid / f'{name}.JPEG', scene.image[..., ::-1], _JPEG)


WRITERS = dict(coco=write_coco, ade=write_ade, imagenet=write_imagenet)


def _write(path: Path, image: np.ndarray, options: tuple) -> None:
    # cv2.imwrite raises nothing when the disk is full
    encoded = cv2.imencode(path.suffix.lower(), np.ascontiguousarray(image), options)[1]
    path.write_bytes(encoded.tobytes())
