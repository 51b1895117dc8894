"""Runs ONNX files from tools/export_onnx.py. Needs numpy, Pillow and onnxruntime, but no torch.

    from lape_mm.runtime import Model

    model = Model('mask_rcnn.onnx')
    found = model('photo.jpg')
    for label, score, box in zip(found.labels, found.scores, found.boxes):
        print(found.names[label], score, box)
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from os import PathLike
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageOps

PILLOW = {'pillow bicubic': Image.Resampling.BICUBIC, 'pillow bilinear': Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Prediction:
    """What a model finds in an image. Fields that its task does not have are None.

    Attributes:
        names: class names, indexed by label.
        labels: (N,), each object's class; for a classifier all classes, the most probable first.
        scores: (N,), 0..1, one per label.
        boxes: (N, 4), x1, y1, x2, y2 in pixels of the image.
        masks: (N, H, W), bool.
        label_map: (H, W), the class of each pixel.
    """

    names: tuple[str, ...]
    labels: NDArray | None = None
    scores: NDArray | None = None
    boxes: NDArray | None = None
    masks: NDArray | None = None
    label_map: NDArray | None = None


class Model:
    """A classifier, detector or segmenter in an ONNX file; call it with an image.

    The image is a path, a Pillow image, or an RGB uint8 array (H, W, 3), of any size. It is
    prepared as in the config's test pipeline. Boxes, masks and label maps refer to the image as
    given, after EXIF rotation.

    Args:
        file: the file's path or content.
        options: ``onnxruntime.SessionOptions``, for example to set the number of threads.

    Raises:
        ValueError: tools/export_onnx.py did not write the file, or the image cannot be read.
    """

    def __init__(self, file: str | PathLike | bytes, options: Any = None):
        self.session = onnxruntime.InferenceSession(
            file if isinstance(file, bytes) else str(file), options,
            providers=['CPUExecutionProvider'])
        written = self.session.get_modelmeta().custom_metadata_map
        outputs = [output.name for output in self.session.get_outputs()]
        if not {'task', 'img_size', 'mean'} <= set(written) or 'map0' in outputs:
            raise ValueError(f'{"the content" if isinstance(file, bytes) else file}: expected a '
                             'file that tools/export_onnx.py of this version has written')
        self.notes: dict = {key: json.loads(value) for key, value in written.items()}
        self.task: str = self.notes['task']
        self.img_size: tuple[int, int] = tuple(self.notes['img_size'])
        self.names = tuple(self.notes.get('names') or ())

    def __call__(self, image: str | PathLike | Image.Image | NDArray) -> Prediction:
        run = dict(classifier=self.classify, detector=self.detect, segmenter=self.segment)
        return run[self.task](read_image(image))

    def classify(self, picture: Image.Image) -> Prediction:
        """Resizes, crops the centre, and sorts the classes by probability."""
        (height, width), (h, w) = self.img_size, picture.size[::-1]
        part = self.notes.get('crop_pct', 1.)
        if self.notes.get('keep_ratio'):
            factor = max(height / h, width / w) / part
            size = max(int(h * factor + 1e-6), height), max(int(w * factor + 1e-6), width)
        else:
            size = round(height / part), round(width / part)
        top, left = round((size[0] - height) / 2), round((size[1] - width) / 2)
        pixels = self.resize(picture, size)[top:top + height, left:left + width]
        logits, = self.run(pixels)
        odds = np.exp(logits - logits.max())
        labels = np.argsort(-odds, kind='stable')
        return Prediction(class_names(self.names, labels), labels, (odds / odds.sum())[labels])

    def detect(self, picture: Image.Image) -> Prediction:
        """Fits a picture to the exported size, and maps boxes and masks back to the picture."""
        height, width = picture.size[::-1]
        size = fit((height, width), self.img_size) if self.notes.get('keep_ratio') \
            else self.img_size
        boxes, scores, labels, *masks = self.run(self.resize(picture, size))
        scale = np.array([size[1] / width, size[0] / height] * 2, np.float32)
        boxes = np.clip(boxes / scale, 0, np.array([width, height] * 2, np.float32))
        kept = (scores > 0) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)  # not those in padding
        boxes, labels = boxes[kept], labels[kept]
        return Prediction(
            class_names(self.names, labels), labels, scores[kept], boxes,
            paste(masks[0][kept], boxes, (height, width),
                  self.notes.get('mask_threshold', .5)) if masks else None)

    def segment(self, picture: Image.Image) -> Prediction:
        """Resizes as the config does, and averages the logits of overlapping windows."""
        full = picture.size[::-1]
        size = scale = self.notes.get('scale') or full
        if self.notes.get('keep_ratio'):  # scale is the shorter and the longer side
            size = fit(full, scale[::1 if full[0] <= full[1] else -1])
        pixels = self.resize(picture, size)
        logits: Any = None
        count = np.zeros(size, np.float32)
        for rows, columns in windows(size, self.img_size,
                                     self.notes.get('stride') or self.img_size):
            part = pixels[rows, columns]
            found, = self.run(part)
            if logits is None:
                logits = np.zeros((len(found), *size), np.float32)
            logits[:, rows, columns] += found[:, :part.shape[0], :part.shape[1]]
            count[rows, columns] += 1
        label_map = np.argmax([stretch(Image.fromarray(plane), full)
                               for plane in logits / count], axis=0)
        return Prediction(class_names(self.names, label_map), label_map=label_map)

    def resize(self, picture: Image.Image, size: Sequence[int]) -> NDArray:
        """The picture's RGB pixels (*size, 3), resized with the config's interpolation."""
        if picture.size[::-1] == tuple(size):
            return np.asarray(picture)
        name = self.notes.get('interpolation', 'bilinear')
        if name in PILLOW:
            return np.asarray(picture.resize((size[1], size[0]), PILLOW[name]))
        return stretch(picture, size)

    def run(self, pixels: NDArray) -> list[NDArray]:
        """Runs the network on RGB pixels (H, W, 3), padded at the bottom and on the right."""
        if self.notes.get('channels', 'BGR') == 'BGR':
            pixels = pixels[..., ::-1]
        mean = np.array(self.notes['mean'] or [0.] * 3, np.float32)
        canvas = np.empty((*self.img_size, 3), np.float32)
        canvas[:] = mean[::-1] if self.notes['swaps_channels'] else mean
        canvas[:pixels.shape[0], :pixels.shape[1]] = pixels
        image = np.ascontiguousarray(canvas.transpose(2, 0, 1))[None]
        return [output[0] for output in self.session.run(None, {'image': image})]


def read_image(image: str | PathLike | Image.Image | NDArray) -> Image.Image:
    """Reads a path, a Pillow image, or an RGB uint8 array (H, W, 3) as an upright RGB picture."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise ValueError(f'image: expected an RGB array (H, W, 3) of uint8, got '
                             f'{image.shape} of {image.dtype}')
        return Image.fromarray(np.ascontiguousarray(image))
    try:
        picture = image if isinstance(image, Image.Image) else Image.open(image)
        picture = ImageOps.exif_transpose(picture)
        if picture.mode.startswith('I'):  # 16 bits, which convert would clip
            picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
        return picture.convert('RGB')
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f'{image}: cannot be read as an image ({error})') from error


def class_names(names: Sequence[str], labels: NDArray) -> tuple[str, ...]:
    """The names, and numbers for labels without one."""
    return (*names, *map(str, range(len(names), int(labels.max(initial=0)) + 1)))


def fit(size: Sequence[int], into: Sequence[int]) -> tuple[int, int]:
    """The largest size that fits into ``into`` and keeps the aspect ratio; rounds like mmcv."""
    factor = min(into[0] / size[0], into[1] / size[1])
    return max(int(size[0] * factor + .5), 1), max(int(size[1] * factor + .5), 1)


def windows(size: Sequence[int], window: Sequence[int], stride: Sequence[int]) \
        -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the windows that cover an image; the last ones end at its edge."""
    starts = [sorted({max(min(start, side - edge), 0)
                      for start in range(0, max(side - edge, 0) + step, step)})
              for side, edge, step in zip(size, window, stride)]
    for top, left in product(*starts):
        yield slice(top, min(top + window[0], size[0])), slice(left, min(left + window[1], size[1]))


def stretch(image: Image.Image, size: Sequence[int]) -> NDArray:
    """Resizes an image to (h, w), bilinear without antialiasing, as OpenCV and PyTorch do."""
    return np.asarray(image.transform(
        (size[1], size[0]), Image.Transform.AFFINE,
        (image.width / size[1], 0, 0, 0, image.height / size[0], 0), Image.Resampling.BILINEAR))


def paste(masks: NDArray, boxes: NDArray, size: Sequence[int], threshold: float = .5) -> NDArray:
    """Pastes mask probabilities (N, h, w) into their boxes, as mmdet does: bool masks (N, H, W)."""
    pasted = np.zeros((len(masks), *size), bool)
    for mask, box, out in zip(masks, boxes, pasted):
        parts, weights = [], []
        for axis, (cells, side) in enumerate(zip(mask.shape, size)):
            low, high = box[1 - axis], box[3 - axis]
            first, last = max(int(low) - 1, 0), min(int(np.ceil(high)) + 1, side)
            place = (np.arange(first, last) + .5 - low) / (high - low) * cells - .5
            parts.append(slice(first, last))
            weights.append(np.maximum(1 - np.abs(place[:, None] - np.arange(cells)), 0))
        out[tuple(parts)] = weights[0] @ mask @ weights[1].T >= threshold
    return pasted
