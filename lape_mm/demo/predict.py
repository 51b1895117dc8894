"""tools/predict.py: images, folders and videos in; pictures, videos and JSON out."""
from __future__ import annotations

import json
import os
from argparse import Namespace
from collections import Counter
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
    """Writes a picture or video for each input, and predictions.json.

    Args:
        args: model (a list, see `open_models`), inputs (a list of files and folders), out (a
            folder), score, joining, trust_checkpoint.

    Raises:
        RunError: an input is missing or of no known kind; no image could be read.
    """
    apply_trust(args)
    paths = [path for word in args.inputs for path in find(Path(word))]
    (_, model), = open_models(args.model, args.joining or []).items()
    root = os.path.commonpath([path.resolve().parent for path in paths])
    names = [path.resolve().relative_to(root) for path in paths]
    stems = Counter(name.with_suffix('') for name in names)  # a.jpg and a.png share one
    out, entries, failed = Path(args.out), [], 0
    for path, name in progress(list(zip(paths, names)), 'predicting'):
        stem = name.with_suffix('')
        target = out / (stem if stems[stem] == 1 else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        run = film if path.suffix.lower() in VIDEOS else still
        try:
            entries += run(model, path, name, target, args.score)
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
    found = [path] if path.is_file() else sorted(
        one for one in path.rglob('*') if one.suffix.lower() in kinds)
    if not found or found == [path] and path.suffix.lower() not in kinds:
        raise RunError(f'{path}: expected an image, a video, or a folder with some '
                       f'({", ".join(kinds)})')
    return found


def still(model: Predict, path: Path, name: Path, target: Path, score: float) -> list[dict]:
    """Predicts an image, writes TARGET.jpg, and returns its entries."""
    picture = read_image(path)
    found = model(picture)
    drawn = Path(f'{target}.jpg')
    if drawn.resolve() == path.resolve():
        raise RunError(f'--out {target.parent}: the picture would replace {path}')
    draw(picture, found, score).save(drawn, quality=92)
    if found.label_map is not None:
        Image.fromarray(found.label_map.astype(np.uint8 if found.label_map.max() < 256 else
                                               np.uint16)).save(f'{target}_labels.png')
    return list(results(found, name, score))


def film(model: Predict, path: Path, name: Path, target: Path, score: float) -> list[dict]:
    """Predicts a video frame by frame, writes TARGET.mp4, and returns its entries."""
    import cv2
    reader = cv2.VideoCapture(str(path))
    size = (int(reader.get(cv2.CAP_PROP_FRAME_WIDTH)),
            int(reader.get(cv2.CAP_PROP_FRAME_HEIGHT)))
    if not reader.isOpened() or 0 in size:
        raise ValueError(f'{path}: cannot be read as a video')
    writer = cv2.VideoWriter(f'{target}.mp4', cv2.VideoWriter.fourcc(*'mp4v'),
                             reader.get(cv2.CAP_PROP_FPS) or 25, size)
    entries: list[dict] = []
    while (frame := reader.read()[1]) is not None:
        picture = Image.fromarray(np.ascontiguousarray(frame[..., ::-1]))
        found = model(picture)
        writer.write(np.asarray(draw(picture, found, score).resize(size))[..., ::-1])
        number = int(reader.get(cv2.CAP_PROP_POS_FRAMES)) - 1
        entries += ({**one, 'frame': number} for one in results(found, name, score))
    writer.release()
    return entries


def results(found: Prediction, name: Path, score: float) -> Iterator[dict]:
    """Entries of an image: COCO results for a detector, the best classes of a classifier.

    ``image_id`` is the file's name below the folder of all inputs, or the number that it is. A
    segmenter's entry has the share of each class; its label map is in NAME_labels.png.
    """
    image = int(str(name.with_suffix(''))) if str(name.with_suffix('')).isdigit() else \
        name.as_posix()
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
                entry['segmentation'] = run_lengths(found.masks[index])
            yield entry


def run_lengths(mask: np.ndarray) -> dict:
    """A mask, (H, W), as COCO's uncompressed run lengths: down the columns, zeros first."""
    flat = np.concatenate([[False], mask.flatten('F'), [not mask[-1, -1]]])
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return dict(size=list(mask.shape), counts=np.diff(np.concatenate([[0], edges])).tolist())
