"""Draws predictions on images, with Pillow alone."""
from __future__ import annotations

from colorsys import hsv_to_rgb

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lape_mm.runtime import Prediction

OPAQUE = .5  # of masks and label maps
MOST = 5  # classes of a classifier that are written
SMALL = 512  # pixels; smaller pictures are enlarged, or labels would hide what they name


def colour(label: int) -> tuple[int, int, int]:
    """A colour for each label, far from those of its neighbours."""
    red, green, blue = hsv_to_rgb(label * .618034 % 1, .75, .95 if label % 2 else .75)
    return int(255 * red), int(255 * green), int(255 * blue)


def draw(picture: Image.Image, found: Prediction, score: float = .3) -> Image.Image:
    """A copy of an RGB picture with what was found, enlarged if it is small.

    Args:
        picture: the image that the model was given.
        found: its prediction.
        score: objects below this are left out.
    """
    pixels = np.asarray(picture.convert('RGB')).astype(np.float32)
    scale = max(1, SMALL // max(picture.size))
    font = ImageFont.load_default(size=max(12, round(scale * min(picture.size) / 30)))
    if found.label_map is not None:
        labels = [int(label) for label in np.unique(found.label_map)]
        table = np.array([colour(label) for label in range(max(labels) + 1)], np.float32)
        pixels += OPAQUE * (table[found.label_map] - pixels)
        return legend(to_image(pixels, scale),
                      [(found.names[label], colour(label)) for label in labels], font)
    assert found.labels is not None and found.scores is not None
    if found.boxes is None:
        lines = [f'{found.names[label]} {value:.2f}' for label, value in
                 zip(found.labels[:MOST], found.scores[:MOST])]
        return legend(to_image(pixels, scale), [(line, colour(label)) for line, label in
                                         zip(lines, found.labels.tolist())], font)
    shown = [index for index in np.argsort(found.scores) if found.scores[index] >= score]
    for index in shown if found.masks is not None else ():
        inside = found.masks[index]  # type: ignore[index]
        pixels[inside] += OPAQUE * (np.array(colour(int(found.labels[index]))) - pixels[inside])
    image = to_image(pixels, scale)
    pen = ImageDraw.Draw(image)
    for index in shown:
        label = int(found.labels[index])
        left, top, right, bottom = (scale * found.boxes[index]).tolist()
        pen.rectangle((left, top, right, bottom), outline=colour(label),
                      width=max(1, round(min(image.size) / 200)))
        write(pen, (left, top), f'{found.names[label]} {found.scores[index]:.2f}', colour(label),
              font)
    return image


def to_image(pixels: np.ndarray, scale: int) -> Image.Image:
    """(H, W, 3), 0..255, as a picture ``scale`` times as large."""
    image = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
    return image.resize((scale * image.width, scale * image.height))


def write(pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str,
          fill: tuple[int, int, int], font) -> float:
    """Writes white text on a colour; returns its lower edge."""
    left, top, right, bottom = pen.textbbox(place, text, font=font)
    pen.rectangle((left - 2, top - 2, right + 2, bottom + 2), fill=fill)
    pen.text(place, text, fill='white', font=font, stroke_width=1, stroke_fill='black')
    return bottom + 2


def legend(image: Image.Image, entries: list[tuple[str, tuple[int, int, int]]], font) \
        -> Image.Image:
    """Writes names on their colours into the upper left corner."""
    pen, top = ImageDraw.Draw(image), 4.
    for text, fill in entries:
        top = write(pen, (4, top), text, fill, font) + 4
    return image
