"""Draws one scene: shapes and textures over a background.

The caller passes the random generator. Colours and textures do not depend on the class, so only the
outline shows an object's class. Outlines are drawn at ``SUPERSAMPLING`` times the picture's size,
which gives anti-aliased edges and exact visible parts.
"""
import math
from dataclasses import dataclass

import cv2
import numpy as np

CLASSES = ('disc', 'square', 'triangle', 'star', 'ring', 'cross')
STUFF = ('ground', 'sky')
SUPERSAMPLING = 4

# Ranges of the mean over the channels. A plain ViT learns many times slower if objects may be
# darker than their background.
OBJECT_LIGHT, BACK_LIGHT = (155, 230), (20, 100)
_TRIES = 25
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class Scene:
    """One picture and its ground truth; S = ``SUPERSAMPLING``."""

    image: np.ndarray  # (H, W, 3) uint8, RGB
    labels: tuple[int, ...]  # indices into CLASSES, from the lowest object to the topmost
    owner: np.ndarray  # (H * S, W * S) uint8: k where labels[k - 1] is visible, else 0
    # (H, W) uint8: k for STUFF[k - 1], also below objects and distractors; 0 on the horizon
    stuff: np.ndarray

    def label_map(self) -> np.ndarray:
        """Label map (H, W) uint8: 0 is unlabelled, ``CLASSES`` and ``STUFF`` follow from 1 on."""
        shares = [_shrink(self.owner == k) for k in range(len(self.labels) + 1)]
        top = np.argmax(shares, axis=0)
        stuff = np.where(self.stuff > 0, self.stuff + len(CLASSES), 0)
        names = np.array([0, *self.labels]) + 1
        return np.where(top == 0, stuff, names[top]).astype(np.uint8)


def draw_scene(rng: np.random.Generator, *, image_size: tuple[int, int], first_label: int,
               objects: tuple[int, int], size_range: tuple[float, float],
               spread: tuple[float, float], turn: float, distractors: tuple[int, int],
               min_visible: float) -> Scene:
    """Draws one scene; ``scenes.SCENES`` has the arguments of each layout.

    The lowest object's class is ``first_label``. An object is left out if ``_TRIES`` tries find no
    place for it that keeps a share ``min_visible`` of every object in sight.
    """
    height, width = image_size
    canvas, stuff, back_colors = _background(rng, image_size)
    for _ in range(rng.integers(distractors[0], distractors[1] + 1)):
        outline, diameter = _distractor(rng, min(image_size))
        center = rng.uniform(0, 1, 2) * (width, height)
        mask = _rasterise(_place(rng, outline, center, diameter, 180), image_size)
        _paint(rng, canvas, mask, _colors(rng, back_colors, (30, 230), least=55))

    labels: list[int] = []
    areas: list[float] = []
    owner = np.zeros((height * SUPERSAMPLING, width * SUPERSAMPLING), np.uint8)
    used = list(back_colors)
    for number in range(rng.integers(objects[0], objects[1] + 1)):
        label = int(rng.integers(len(CLASSES))) if number else first_label
        mask, area = _find_place(rng, label, owner, areas, size_range, spread, turn, min_visible)
        if mask is None:
            continue
        colors = _colors(rng, used, OBJECT_LIGHT, least=95)
        _paint(rng, canvas, mask, colors)
        labels.append(label)
        areas.append(area)
        used.append(colors[0])
        owner[mask] = len(labels)

    canvas *= rng.uniform(0.75, 1.15) * rng.uniform(0.94, 1.06, 3).astype(np.float32)
    canvas += rng.normal(0, rng.uniform(2, 7), canvas.shape).astype(np.float32)
    image = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    return Scene(image=image, labels=tuple(labels), owner=owner, stuff=stuff)


def _find_place(rng, label, owner, areas, size_range, spread, turn, min_visible):
    """Places a new object so that others stay visible; returns its mask (or None) and full area."""
    height, width = (side // SUPERSAMPLING for side in owner.shape)
    seen = np.bincount(owner.ravel(), minlength=len(areas) + 1)[1:]
    for attempt in range(_TRIES + (not areas)):
        last_resort = attempt == _TRIES  # the picture has no object yet
        diameter = rng.uniform(*size_range) * min(height, width)
        center = rng.uniform(*((0.45, 0.55) if last_resort else spread), 2) * (width, height)
        outline = _place(rng, _outline(rng, CLASSES[label]), center, diameter, turn)
        area = _area(outline) * SUPERSAMPLING ** 2
        mask = _rasterise(outline, (height, width))
        covered = np.bincount(owner[mask], minlength=len(areas) + 1)[1:]
        # stricter than min_visible, since later objects may cover more
        inside = np.count_nonzero(mask) >= (1 + min_visible) / 2 * area
        if last_resort or inside and np.all(seen - covered >= min_visible * np.array(areas)):
            return mask, area
    return None, 0.


# -- outlines: lists of (N, 2) closed curves in a unit circle, filled by the even-odd rule --------

def _polar(angles, radii) -> np.ndarray:
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)


def _polygon(count: int, start: float = 0., radii=1.) -> np.ndarray:
    return _polar(np.arange(count) * (2 * math.pi / count) + start, radii)


def _outline(rng: np.random.Generator, name: str) -> list[np.ndarray]:
    up = -math.pi / 2
    if name == 'cross':
        arm = rng.uniform(0.26, 0.34)
        corner = np.array([[1, -arm], [1, arm], [arm, arm]])
        quarter = np.array([[0, 1], [-1, 0]])
        return [np.concatenate([corner @ np.linalg.matrix_power(quarter, k) for k in range(4)])]
    if name == 'ring':
        return [_polygon(48), _polygon(48) * rng.uniform(.48, .6)]
    if name == 'star':
        return [_polygon(10, up, np.tile([1., rng.uniform(.36, .44)], 5))]
    corners, start = dict(disc=(48, 0.), square=(4, math.pi / 4), triangle=(3, up))[name]
    return [_polygon(corners, start)]


def _distractor(rng: np.random.Generator, shorter: int) -> tuple[list[np.ndarray], float]:
    """Outline of a shape that belongs to no class, and its diameter in pixels."""
    kind = rng.choice(('line', 'bar', 'blob', 'arc'))
    if kind in ('line', 'bar'):
        length = rng.uniform(0.3, 1.2) if kind == 'line' else rng.uniform(0.25, 0.5)
        thin = rng.uniform(1.0, 2.5) / (length * shorter) if kind == 'line' else rng.uniform(.1, .2)
        return [np.array([[-1, -thin], [1, -thin], [1, thin], [-1, thin]])], length * shorter
    if kind == 'blob':
        angles = np.arange(64) * (2 * math.pi / 64)
        waves = [rng.uniform(0.15, 0.3) * np.sin(lobes * angles + rng.uniform(0, 6.3))
                 for lobes in (2, 3)]
        radii = 1 + (waves[0] + waves[1])
        return [_polar(angles, radii / radii.max())], rng.uniform(0.12, 0.35) * shorter
    angles = np.linspace(0, rng.uniform(1.6, 3.2), 24)
    inner = rng.uniform(0.7, 0.85)
    arc = np.concatenate([_polar(angles, 1.0), _polar(angles[::-1], inner)])
    return [arc], rng.uniform(0.25, 0.6) * shorter


def _place(rng, outline, center, diameter, turn) -> list[np.ndarray]:
    """The outline in pixels: squeezed, turned, scaled and moved."""
    angle = math.radians(rng.uniform(-turn, turn))
    squeeze = rng.uniform(0.85, 1.0)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return [curve * (1, squeeze) @ turn * (diameter / 2) + center for curve in outline]


def _area(outline: list[np.ndarray]) -> float:
    """Area of the first curve without the holes, in square pixels."""
    first, *holes = (abs(cv2.contourArea(curve.astype(np.float32))) for curve in outline)
    return first - sum(holes)


def _rasterise(outline: list[np.ndarray], image_size: tuple[int, int]) -> np.ndarray:
    """The outline filled, as a supersampled mask (H * S, W * S) bool."""
    mask = np.zeros([side * SUPERSAMPLING for side in image_size], np.uint8)
    scale = SUPERSAMPLING * 2 ** _SUBPIXEL_BITS
    half = 2 ** (_SUBPIXEL_BITS - 1)
    curves = [np.rint(curve * scale - half).astype(np.int32) for curve in outline]
    cv2.fillPoly(mask, curves, 1, shift=_SUBPIXEL_BITS)
    return mask.astype(bool)


def _shrink(mask: np.ndarray) -> np.ndarray:
    """The share of each pixel that a supersampled mask covers, (H, W) float32."""
    height, width = (side // SUPERSAMPLING for side in mask.shape)
    return cv2.resize(mask.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)


def _paint(rng, canvas: np.ndarray, mask: np.ndarray, colors: np.ndarray) -> None:
    canvas += _shrink(mask)[..., None] * (_texture(rng, canvas.shape[:2], colors) - canvas)


# -- colours and textures -------------------------------------------------------------------------

def _color(rng, light) -> np.ndarray:
    """A colour (3,) of any hue, whose channels have a mean in the range ``light``."""
    color = rng.uniform(15, 245, 3)
    return np.clip(color + rng.uniform(*light) - color.mean(), 10, 245)


def _colors(rng, avoid, light, *, least: float) -> np.ndarray:
    """Two related colours (2, 3); if possible, the first is ``least`` away from all ``avoid``."""
    best, best_distance = np.zeros(3), -1.0
    for _ in range(_TRIES):
        color = _color(rng, light)
        distance = min(float(np.linalg.norm(color - other)) for other in avoid)
        if distance > best_distance:
            best, best_distance = color, distance
        if distance >= least:
            break
    away = best - np.mean(avoid, axis=0)
    other = best + rng.uniform(0.15, 0.45) * away + rng.uniform(-35, 35, 3)
    return np.stack([best, np.clip(other, 0, 255)]).astype(np.float32)


def _noise(rng, image_size, cells: float) -> np.ndarray:
    """Smooth noise (H, W) in 0..1 with about ``cells`` bumps along the longer side."""
    height, width = image_size
    step = max(image_size) / cells
    grid = rng.uniform(0, 1, (math.ceil(height / step) + 2, math.ceil(width / step) + 2))
    return np.clip(cv2.resize(grid.astype(np.float32), (width, height),
                              interpolation=cv2.INTER_CUBIC), 0, 1)


def _turned_axes(image_size, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Pixel coordinates (H, W) along two axes that are turned by ``angle``."""
    y, x = np.mgrid[:image_size[0], :image_size[1]].astype(np.float32)
    return math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x


def _texture(rng, image_size, colors) -> np.ndarray:
    """A texture (H, W, 3) that mixes two colours in one of six ways."""
    kind = rng.choice(('solid', 'stripes', 'checker', 'dots', 'noise', 'gradient'))
    along, across = _turned_axes(image_size, rng.uniform(0, 2 * math.pi))
    if kind == 'solid':
        return np.broadcast_to(colors[0], (*image_size, 3))
    if kind == 'noise':
        mix = _noise(rng, image_size, rng.uniform(8, 24))
    elif kind == 'gradient':
        mix = 0.5 + 0.5 * np.sin(along / rng.uniform(0.15, 0.4) / min(image_size))
    else:
        # 5 to 12 pixels in a picture of 160 pixels
        period = rng.uniform(0.032, 0.075) * min(image_size) / (2 * math.pi)
        wave = np.sin(along / period)
        if kind == 'checker':
            wave = wave * np.sin(across / period)
        elif kind == 'dots':
            wave = (wave + np.sin(across / period) - 0.7) / 1.3
        mix = np.clip(0.5 + 2 * wave, 0, 1)
    return colors[0] + mix[..., None].astype(np.float32) * (colors[1] - colors[0])


def _background(rng, image_size):
    """Canvas (H, W, 3) float32, stuff (H, W) uint8, and the mean colours of ground and sky."""
    height, width = image_size
    ground_color, sky_color = _color(rng, BACK_LIGHT), _color(rng, BACK_LIGHT)
    y, x = np.mgrid[:height, :width].astype(np.float32)

    clouds = _noise(rng, image_size, rng.uniform(2, 5)) - 0.5
    sky = sky_color + (clouds * rng.uniform(20, 60))[..., None] * rng.uniform(0.6, 1, 3)
    sky += ((y / height - 0.5) * rng.uniform(-50, 50))[..., None]

    period = rng.uniform(0.05, 0.12) * min(image_size) / (2 * math.pi)
    along, across = _turned_axes(image_size, rng.uniform(0, math.pi))
    kind = rng.choice(('grid', 'rows', 'gravel'))
    if kind == 'grid':
        pattern = np.maximum(np.sin(along / period), np.sin(across / period)) ** 5
    elif kind == 'rows':
        pattern = np.sin(along / period + 3 * _noise(rng, image_size, 6))
    else:
        pattern = 2.5 * (_noise(rng, image_size, rng.uniform(28, 50)) - 0.5)
    patches = _noise(rng, image_size, rng.uniform(2, 6)) - 0.5
    ground = (ground_color + (pattern * rng.uniform(12, 26))[..., None]
              + (patches * rng.uniform(15, 50))[..., None] * rng.uniform(0.6, 1, 3))

    level = rng.uniform(0.25, 0.75) * height + math.tan(rng.uniform(-0.35, 0.35)) * (x - width / 2)
    seam = rng.uniform(0.006, 0.02) * height
    share = np.clip(0.5 + (y - level) / (2 * seam), 0, 1)
    canvas = sky + share[..., None] * (ground - sky)
    stuff = np.where(share >= 1, 1, np.where(share <= 0, 2, 0)).astype(np.uint8)
    return canvas.astype(np.float32), stuff, [ground_color, sky_color]
