"""What backbones ask of their arguments and images; each error names value and what is allowed."""
from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

from timm.layers import to_2tuple
from torch import Tensor


def is_count(value, least: int = 1) -> bool:
    """Whether a value is a whole number of at least ``least``; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value) -> bool:
    """Whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value, least: int = 1) -> None:
    """Raises ValueError unless a value is a whole number of at least ``least``."""
    if not is_count(value, least):
        raise ValueError(f'{name}={value!r}: expected a whole number of at least {least}')


def check_positive(name: str, value) -> None:
    """Raises ValueError unless a value is a number above 0."""
    if not is_number(value) or not 0 < value < float('inf'):
        raise ValueError(f'{name}={value!r}: expected a number above 0')


def check_rate(name: str, value) -> None:
    """Raises ValueError unless a value is a probability below 1."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f'{name}={value!r}: expected 0 <= rate < 1')


def check_like(name: str, value, example) -> None:
    """Raises ValueError unless a value is of the kind of an example, such as its default.

    A whole number has to be at least 1, or 0 where the example is 0; another number above 0.
    """
    if isinstance(example, bool):
        if not isinstance(value, bool):
            raise ValueError(f'{name}={value!r}: expected True or False')
    elif isinstance(example, int):
        check_count(name, value, min(example, 1))
    elif isinstance(example, float):
        check_positive(name, value)


def image_sides(img_size: int | Sequence[int], patch: int) -> tuple[int, int]:
    """(h, w) in pixels.

    Raises:
        ValueError: it is neither a side nor two, or there is no whole patch in it.
    """
    sides = tuple(to_2tuple(img_size))
    if len(sides) != 2 or not all(is_count(side, patch) for side in sides):
        raise ValueError(f'img_size={img_size!r}: expected a side or (h, w), of at least {patch} '
                         'pixels, the side of a patch')
    return sides


def check_images(images: Tensor, *, channels: int, patch: int) -> None:
    """Raises ValueError unless a tensor is a batch of images that hold a patch each.

    Args:
        images: (B, channels, H, W), B may be 0.
        channels: of each image.
        patch: side of a patch, in pixels.
    """
    if images.dim() != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise ValueError(f'got images of shape {tuple(images.shape)} and {images.dtype}, expected '
                         f'(B, {channels}, H, W) of floating-point numbers')
    height, width = images.shape[2:]
    if height < patch or width < patch:
        raise ValueError(f'got images of {height} x {width} pixels, expected at least '
                         f'{patch} x {patch}, the size of a patch')
