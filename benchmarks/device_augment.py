"""The random steps of mmpretrain's pipelines, for whole batches on the device of the images.

Every image has draws of its own, made with numpy from the settings of the config's transforms; only
the pixels are computed here, those of RandomErasing by a generator that numpy's seeds. What differs
from the pipeline: images are resampled by torch's ``grid_sample`` (its bicubic kernel has a =
-0.75, Pillow's -0.5; nothing is antialiased; at the edge of a crop it sees the pixels outside), and
the random numbers are others.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import TRANSFORMS
from torch import Tensor
from torchvision.transforms.v2 import functional as TV

Step = Callable[[Tensor, np.random.Generator], Tensor]


def resample(images: Tensor, maps: np.ndarray, *, size: tuple[int, int], mode: str,
             fill: Tensor | None = None) -> Tensor:
    """Each image through an affine map of its own.

    Args:
        images: (B, 3, H, W), uint8.
        maps: (B, 3, 3), from a pixel (x, y, 1) of the result to one of the image.
        size: (h, w) of the result.
        mode: 'nearest', 'bilinear' or 'bicubic'.
        fill: (3, 1, 1), the colour outside the image; None for that of its edge.

    Returns:
        (B, 3, h, w), uint8.
    """
    theta = _units(images.shape[-2:]) @ maps @ np.linalg.inv(_units(size))
    theta = torch.from_numpy(theta[:, :2]).float().to(images.device)
    grid = F.affine_grid(theta, [len(images), 3, *size], align_corners=False)
    outside = 0. if fill is None else fill
    found = F.grid_sample(images.float() - outside, grid, mode=mode, align_corners=False,
                          padding_mode='border' if fill is None else 'zeros')
    return _bytes(found + outside)


def _units(size: Sequence[int]) -> np.ndarray:
    """From pixels to grid_sample's -1..1."""
    height, width = size
    return np.array([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]])


def _bytes(images: Tensor) -> Tensor:
    return images.round().clamp(0, 255).byte()


def _colour(value, like: Tensor) -> Tensor:
    return torch.tensor(np.broadcast_to(value, 3).copy(), dtype=torch.float32,
                        device=like.device).view(3, 1, 1)


def _each(values: np.ndarray, like: Tensor) -> Tensor:
    """(B,) numbers, one an image, to (B, 1, 1, 1)."""
    return torch.from_numpy(np.asarray(values, np.float32)).to(like.device).view(-1, 1, 1, 1)


def _apply(images: Tensor, chosen: np.ndarray, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``change`` of those images that a mask (B,) chooses, the others as they are."""
    if chosen.any():
        index = torch.from_numpy(chosen.nonzero()[0]).to(images.device)
        images = images.index_copy(0, index, change(images[index]))
    return images


def flip(step, colours) -> Step:
    """RandomFlip, horizontal."""
    if step.direction != 'horizontal' or not isinstance(step.prob, float):
        raise ValueError(f'RandomFlip on the device: direction={step.direction!r}, '
                         "expected 'horizontal' and one prob")
    return lambda images, rng: _apply(images, rng.random(len(images)) < step.prob,
                                      lambda some: some.flip(-1))


def crop(step, colours) -> Step:
    """RandomResizedCrop; the whole image where ten attempts do not fit."""
    low, high = step.crop_ratio_range
    flattest, steepest = np.log(step.aspect_ratio_range)

    def run(images: Tensor, rng: np.random.Generator) -> Tensor:
        (height, width), count = images.shape[-2:], len(images)
        area = rng.uniform(low, high, (count, step.max_attempts)) * height * width
        ratio = np.exp(rng.uniform(flattest, steepest, area.shape))
        w, h = np.round(np.sqrt(area * ratio)), np.round(np.sqrt(area / ratio))
        fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
        first = np.arange(count), fits.argmax(1)
        w, h = np.where(fits.any(1), (w[first], h[first]), [[width], [height]])
        x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
        maps = np.zeros((count, 3, 3))
        maps[:, 0, 0], maps[:, 1, 1] = w / step.scale[1], h / step.scale[0]
        maps[:, 0, 2] = x + maps[:, 0, 0] / 2 - .5
        maps[:, 1, 2] = y + maps[:, 1, 1] / 2 - .5
        maps[:, 2, 2] = 1
        return resample(images, maps, size=tuple(step.scale), mode=step.interpolation)
    return run


def choice(step, colours) -> Step:
    """RandomChoice among steps that lead to one size."""
    branches = [[BUILDERS[type(inner).__name__](inner, colours) for inner in branch.transforms]
                for branch in step.transforms]

    def run(images: Tensor, rng: np.random.Generator) -> Tensor:
        drawn, result = rng.choice(len(branches), len(images), p=step.prob), images
        for number, branch in enumerate(branches):
            index = torch.from_numpy((drawn == number).nonzero()[0]).to(images.device)
            if len(index):
                some = images[index]
                for inner in branch:
                    some = inner(some, rng)
                if result is images:
                    result = some.new_empty(len(images), *some.shape[1:])
                result[index] = some
        return result
    return run


def erase(step, colours) -> Step:
    """RandomErasing, with one colour or noise."""
    flattest, steepest = np.log(step.aspect_range)

    def run(images: Tensor, rng: np.random.Generator) -> Tensor:
        (height, width), count = images.shape[-2:], len(images)
        area = rng.uniform(step.min_area_ratio, step.max_area_ratio, count) * height * width
        ratio = np.exp(rng.uniform(flattest, steepest, count))
        h = np.minimum(np.round(np.sqrt(area * ratio)), height)
        w = np.minimum(np.round(np.sqrt(area / ratio)), width)
        top = rng.integers(0, np.maximum(height - h, 1))
        left = rng.integers(0, np.maximum(width - w, 1))
        h[rng.random(count) >= step.erase_prob] = 0
        rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
        y, x = rows.view(1, 1, -1, 1), columns.view(1, 1, 1, -1)
        first_y, end_y, first_x, end_x = (_each(value, images)
                                          for value in (top, top + h, left, left + w))
        inside = (y >= first_y) & (y < end_y) & (x >= first_x) & (x < end_x)
        colour = _colour(colours(step.fill_color), images)
        if step.mode == 'const':
            filling = colour.expand_as(images)
        else:
            # torch's own generator is another one in a resumed run, between two iterations
            own = torch.Generator(images.device).manual_seed(int(rng.integers(2 ** 63 - 1)))
            draw = torch.rand if step.fill_std is None else torch.randn
            noise = draw(images.shape, generator=own, device=images.device)
            filling = noise * 256 - .5 if step.fill_std is None else \
                colour + _colour(colours(step.fill_std), images) * noise
        return torch.where(inside, _bytes(filling), images)
    return run


def warp(step, magnitude: np.ndarray, images: Tensor, colours) -> Tensor:
    """Shear, Translate and Rotate by so much an image, about the points that mmcv takes."""
    height, width = images.shape[-2:]
    maps = np.tile(np.eye(3), (len(images), 1, 1))
    kind, upright = type(step).__name__, getattr(step, 'direction', '') == 'vertical'
    if kind == 'Rotate':
        angle, centre = np.radians(magnitude), np.array([(width - 1) / 2, (height - 1) / 2])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        maps[:, :2, :2] = turn.transpose(2, 0, 1)
        maps[:, :2, 2] = centre - maps[:, :2, :2] @ centre
    elif kind == 'Shear':
        maps[:, int(upright), int(not upright)] = magnitude
    else:
        maps[:, int(upright), 2] = magnitude * (height if upright else width)
    return resample(images, np.linalg.inv(maps), size=(height, width), mode=step.interpolation,
                    fill=_colour(colours(step.pad_val), images))


def tone(step, magnitude: np.ndarray, images: Tensor, colours) -> Tensor:
    """The other operations of RandAugment, which leave pixels where they are."""
    kind = type(step).__name__
    if kind in PLAIN:
        return PLAIN[kind](images)
    if kind == 'Posterize':
        kept = (256 - 2 ** (8 - np.ceil(magnitude))).astype(np.uint8)
        return images & torch.from_numpy(kept).to(images.device).view(-1, 1, 1, 1)
    values, amount = images.float(), _each(magnitude, images)
    if kind == 'Solarize':
        return _bytes(torch.where(values < amount, values, 255 - values))
    if kind == 'SolarizeAdd':
        return _bytes(torch.where(values < step.thr, values + amount, values))
    return _bytes(torch.lerp(LESS[kind](values), values, 1 + amount))


def _blurred(values: Tensor) -> Tensor:
    kernel = torch.ones(3, 1, 3, 3, device=values.device)
    kernel[:, :, 1, 1] = 5
    return F.conv2d(F.pad(values, (1, 1, 1, 1), 'reflect'), kernel / 13, groups=3)


# what an image is blended with
LESS = {
    'ColorTransform': TV.rgb_to_grayscale,
    'Contrast': lambda values: TV.rgb_to_grayscale(values).mean((-2, -1), keepdim=True).round(),
    'Brightness': torch.zeros_like,
    'Sharpness': _blurred,
}
PLAIN = {'AutoContrast': TV.autocontrast, 'Equalize': TV.equalize, 'Invert': TV.invert}
WARPS = ('Rotate', 'Shear', 'Translate')
TONES = (*PLAIN, *LESS, 'Posterize', 'Solarize', 'SolarizeAdd')


def rand_augment(step, colours) -> Step:
    """RandAugment: operations, magnitudes and signs are drawn image by image."""
    if unknown := sorted({type(op).__name__ for op in step.transforms} - {*WARPS, *TONES}):
        raise ValueError(f'RandAugment on the device knows no {unknown[0]!r}: expected '
                         f'{[*WARPS, *TONES]}')

    def run(images: Tensor, rng: np.random.Generator) -> Tensor:
        for _ in range(step.num_policies):
            drawn = rng.integers(len(step.transforms), size=len(images))
            for number, op in enumerate(step.transforms):
                chosen = (drawn == number) & (rng.random(len(images)) <= op.prob)
                magnitude = magnitudes(op, int(chosen.sum()), rng)
                change = warp if type(op).__name__ in WARPS else tone
                images = _apply(images, chosen, partial(change, op, magnitude, colours=colours))
        return images
    return run


def magnitudes(op, count: int, rng: np.random.Generator) -> np.ndarray:
    """Signed magnitudes of an operation, as mmpretrain's BaseAugTransform draws them."""
    level = np.full(count, float(op.magnitude_level))
    if op.magnitude_std == 'inf':
        level = rng.uniform(0, level)
    elif op.magnitude_std > 0:
        level = rng.normal(level, op.magnitude_std).clip(0, op.total_level)
    first, last = op.magnitude_range or (0, 0)
    values = level / op.total_level * (last - first) + first
    signed = type(op).__name__ in (*WARPS, *LESS)
    return np.where(signed & (rng.random(count) < op.random_negative_prob), -values, values)


BUILDERS = {'RandomFlip': flip, 'RandomResizedCrop': crop, 'RandomChoice': choice,
            'RandAugment': rand_augment, 'RandomErasing': erase}
LOADING = ('LoadImageFromFile', 'Resize', 'ResizeEdge', 'CenterCrop')
PACKING = ('NumpyToPIL', 'PILToNumpy', 'PackInputs')


def split_pipeline(pipeline: Sequence[Mapping]) -> tuple[list[Mapping], list[Step]]:
    """A training pipeline as what runs once an image, and what runs on batches of images.

    Raises:
        ValueError: for a step that is not known here, or a resize that follows a random step.
    """
    kept, steps = [], []
    for number, settings in enumerate(pipeline):
        kind = settings['type']
        if kind in BUILDERS:
            later = pipeline[number + 1:]
            turned = sum(bool(other.get('to_rgb') or other.get('to_bgr')) for other in later) % 2
            # the images kept have the channel order of the pipeline's end
            colours = _reversed if turned else _same
            steps.append(BUILDERS[kind](TRANSFORMS.build(dict(settings)), colours))
        elif kind in PACKING or kind in LOADING and not steps:
            kept.append(settings)
        else:
            raise ValueError(f'no {kind!r} {"after a random step " if steps else ""}on the '
                             f'device: expected {[*LOADING, *BUILDERS, *PACKING]}, in that order')
    return kept, steps


def _same(value):
    return value


def _reversed(value):
    return list(value)[::-1] if isinstance(value, Sequence) else value
