"""tools/predict.py: images, folders and videos in; pictures, videos and JSON out."""
from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lape_mm.runs.arguments import apply_trust
from lape_mm.runs.errors import RunError
from lape_mm.runs.progress import progress
from lape_mm.runtime import Prediction, read_image
from lape_mm.wording import short

from .drawing import MOST, draw
from .models import Predict, open_models

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm')


def predict(args: Namespace) -> None:
    """Writes a picture or video for each input of tools/predict.py, and predictions.json."""
    apply_trust(args)
    paths = [path.resolve() for word in args.inputs for path in find(Path(word))]
    (_, model), = open_models(args.model, args.joining or []).items()
    root = os.path.commonpath([path.parent for path in paths])
    out, failed = Path(args.out).resolve(), 0
    entries: list[dict] = []
    if str(out) == root:
        raise RunError(f'--out {args.out}: the pictures would replace the inputs')
    for path in progress(paths, 'predicting'):
        name = path.relative_to(root)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        run = film if path.suffix.lower() in VIDEOS else still
        try:
            entries += run(model, path, name, out / name, args.score)
        except ValueError as error:
            failed += 1
            print(f'left out: {error}')
    if failed == len(paths):
        raise RunError('none of the inputs could be read')
    (out / 'predictions.json').write_text(json.dumps(entries, indent=1) + '\n')
    print(f'{len(paths) - failed} of {len(paths)} inputs, {len(entries)} entries: '
          f'{short(out / "predictions.json")}')


def find(path: Path) -> list[Path]:
    """A file, or the images and videos below a folder; RunError if there are none."""
    kinds = (*IMAGES, *VIDEOS)
    found = [one for one in sorted([path] if path.is_file() else path.rglob('*'))
             if one.suffix.lower() in kinds]
    if not found:
        raise RunError(f'{path}: expected an image, a video, or a folder with some '
                       f'({", ".join(kinds)})')
    return found


def still(model: Predict, path: Path, name: Path, target: Path, score: float) -> Iterator[dict]:
    """Runs the model on an image, draws the result into ``target``, and yields JSON entries."""
    picture = read_image(path)
    found = model(picture)
    draw(picture, found, score).save(target, quality=92)
    if found.label_map is not None:
        kind = np.uint8 if found.label_map.max() < 256 else np.uint16
        Image.fromarray(found.label_map.astype(kind)).save(f'{target}_labels.png')
    yield from results(found, name, score)


def film(model: Predict, path: Path, name: Path, target: Path, score: float) -> Iterator[dict]:
    """Like `still`, for each frame of a video; draws into an .mp4 file named after ``target``."""
    import cv2
    from mmcv import VideoReader
    reader = VideoReader(str(path))
    if not reader.opened or 0 in reader.resolution:
        raise ValueError(f'{path}: cannot be read as a video')
    writer = cv2.VideoWriter(f'{target}'.removesuffix('.mp4') + '.mp4',
                             cv2.VideoWriter.fourcc(*'mp4v'), reader.fps or 25, reader.resolution)
    for number, frame in enumerate(reader):
        picture = Image.fromarray(np.ascontiguousarray(frame[..., ::-1]))
        found = model(picture)
        writer.write(np.asarray(draw(picture, found, score).resize(reader.resolution))[..., ::-1])
        yield from ({**one, 'frame': number} for one in results(found, name, score))
    writer.release()


def results(found: Prediction, name: Path, score: float) -> Iterator[dict]:
    """JSON entries of an image: COCO results for a detector, the best classes for a classifier.

    ``image_id`` is the file's path below the inputs' common folder, or a number if its stem is one.
    A segmenter's entry has the share of each class; its label map is in FILE_labels.png.
    """
    stem = str(name.with_suffix(''))
    image = int(stem) if stem.isdigit() else name.as_posix()
    if found.label_map is not None:
        labels, counts = np.unique(found.label_map, return_counts=True)
        yield dict(image_id=image, shares={found.names[label]: round(count / counts.sum(), 4)
                                           for label, count in zip(labels, counts.tolist())})
        return
    assert found.labels is not None and found.scores is not None
    for index, label in enumerate(found.labels.tolist()):
        entry = dict(image_id=image, category_id=label, category=found.names[label],
                     score=round(float(found.scores[index]), 5))
        if found.boxes is None:
            if index < MOST:
                yield entry
        elif entry['score'] >= score:
            left, top, right, bottom = found.boxes[index].tolist()
            entry['bbox'] = [round(side, 2) for side in (left, top, right - left, bottom - top)]
            if found.masks is not None:
                from pycocotools.mask import encode
                coded = encode(np.asfortranarray(found.masks[index], np.uint8))
                entry['segmentation'] = dict(coded, counts=coded['counts'].decode())
            yield entry
