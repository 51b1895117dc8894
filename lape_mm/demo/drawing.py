"""Draws predictions on images, with Pillow alone."""
from __future__ import annotations

from collections.abc import Iterable
from colorsys import hsv_to_rgb

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lape_mm.runtime import Prediction

OPAQUE = .5  # of masks and label maps
MOST = 5  # classes shown for a classifier
SMALL = 512  # pixels; smaller pictures are enlarged, so that labels do not hide the objects


def colour(label: int) -> tuple[int, int, int]:
    """A label's colour, which differs clearly from those of nearby labels."""
    red, green, blue = hsv_to_rgb(label * .618034 % 1, .75, .95 if label % 2 else .75)
    return int(255 * red), int(255 * green), int(255 * blue)


def draw(picture: Image.Image, found: Prediction, score: float = .3) -> Image.Image:
    """A copy of an RGB picture with the prediction drawn on it; small pictures are enlarged.

    Objects below ``score`` are left out. Names without a box go into the upper left corner.
    """
    masks: Iterable[np.ndarray] = ()
    boxes = found.boxes
    if found.label_map is not None:
        labels = np.unique(found.label_map).tolist()
        masks = (found.label_map == label for label in labels)
        texts = [found.names[label] for label in labels]
    else:
        assert found.labels is not None and found.scores is not None
        shown = np.arange(len(found.labels))[:MOST]
        if boxes is not None:
            shown = np.argsort(found.scores)
            shown = shown[found.scores[shown] >= score]
            boxes = boxes[shown]
        if found.masks is not None:
            masks = found.masks[shown]
        labels = found.labels[shown].tolist()
        texts = [f'{found.names[label]} {value:.2f}' for label, value in
                 zip(labels, found.scores[shown])]
    pixels = np.asarray(picture.convert('RGB')).astype(np.float32)
    for label, inside in zip(labels, masks):
        pixels[inside] += OPAQUE * (np.array(colour(label)) - pixels[inside])
    scale = max(1, SMALL // max(picture.size))
    image = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
    image = image.resize((scale * image.width, scale * image.height))
    font = ImageFont.load_default(size=max(12, round(min(image.size) / 30)))
    pen, place = ImageDraw.Draw(image), (4., 4.)
    for index, (label, text) in enumerate(zip(labels, texts)):
        if boxes is not None:
            corners = (scale * boxes[index]).tolist()
            pen.rectangle(corners, outline=colour(label),
                          width=max(1, round(min(image.size) / 200)))
            place = corners[0], corners[1]
        left, top, right, bottom = pen.textbbox(place, text, font=font)
        pen.rectangle((left - 2, top - 2, right + 2, bottom + 2), fill=colour(label))
        pen.text(place, text, fill='white', font=font, stroke_width=1, stroke_fill='black')
        place = 4., bottom + 6
    return image
