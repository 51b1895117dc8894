"""Images of a folder, as a config's model gets them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import TRANSFORMS, init_default_scope
from torch import Tensor, nn

from lape_mm.export.graph import normalisation
from lape_mm.wording import first_line

from .config import walk
from .errors import RunError

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp')


def find_images(folder: str, most: int | None = None) -> list[Path]:
    """The first images below a folder, of its subfolders in turn; RunError if there are none."""
    folders: dict[Path, list[Path]] = {}
    for path in sorted(Path(folder).rglob('*')):
        if path.suffix.lower() in SUFFIXES:
            folders.setdefault(path.parent, []).append(path)
    # else class folders would give images of the first class alone
    turns = [(turn, index, path) for index, paths in enumerate(folders.values())
             for turn, path in enumerate(paths)]
    if not turns:
        raise RunError(f'--images {folder}: holds no image ({", ".join(SUFFIXES)})')
    return [path for _, _, path in sorted(turns)[:most]]


def read_image(path: Path) -> np.ndarray:
    """(H, W, 3), BGR, uint8; RunError if it cannot be read."""
    image = cv2.imread(str(path))
    if image is None:
        raise RunError(f'{path}: cannot be read as an image')
    return image


def test_steps(cfg: Config) -> tuple[list[Mapping], bool]:
    """The transforms of the config's test pipeline that need an image alone.

    Returns:
        them, and whether the pipeline loads images itself, which OpenMMLab does in BGR; a data
        set that hands them over (CIFAR-100) does in RGB.

    Raises:
        RunError: the config tests on nothing.
    """
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    steps = next((node['pipeline'] for _, node in walk(loader)
                  if isinstance(node.get('pipeline'), list)), None)
    if steps is None:
        raise RunError('the config has no test_dataloader with a pipeline, which says how its '
                       'model gets images')
    return [step for step in steps if not any(word in str(step['type']) for word in (
        'Annotations', 'Pack', 'LoadImage'))], \
        any('LoadImage' in str(step['type']) for step in steps)


def transform(cfg: Config, steps: Sequence[Mapping], image: np.ndarray, path: str) -> np.ndarray:
    """An image (H, W, 3) after the steps of a pipeline; RunError, with its path, if one fails."""
    init_default_scope(cfg.default_scope)
    shape = image.shape[:2]
    sample: Any = dict(img=image, img_path=path, img_id=0, img_shape=shape, ori_shape=shape,
                       seg_fields=[], height=shape[0], width=shape[1])
    try:
        for step in steps:
            sample = TRANSFORMS.build(step)(sample)
    except Exception as error:  # a pipeline is anybody's code
        raise RunError(f"{path}: the config's test pipeline fails on it "
                       f'({first_line(error)})') from error
    return np.ascontiguousarray(sample['img'])


def turns_channels(cfg: Config) -> bool:
    """Whether the test pipeline reverses the channels, tried on an image of one colour.

    Raises:
        RunError: a step fails on that image, or makes another colour of it.
    """
    colour = np.array([10, 90, 200], np.uint8)
    plain = np.broadcast_to(colour, (256, 256, 3)).copy()
    found = transform(cfg, test_steps(cfg)[0], plain, 'a plain image')
    middle = found[found.shape[0] // 2, found.shape[1] // 2].astype(int)
    for order in (colour, colour[::-1]):
        if np.abs(middle - order).max() <= 2:
            return order is not colour
    raise RunError(f"the config's test pipeline makes {middle.tolist()} of the colour "
                   f'{colour.tolist()}: what the file has to do to an image is not known')


def load_images(cfg: Config, model: nn.Module, paths: list[Path], size: tuple[int, int]) \
        -> tuple[list[Tensor], list[np.ndarray]]:
    """Images through the config's test pipeline and its model's preprocessor.

    Args:
        cfg: gives the pipeline; annotations are left out of it.
        model: whose ``data_preprocessor`` normalises, a model of a toolbox.
        size: (h, w) in pixels that all are resized to at the end, so that maps can be averaged.

    Returns:
        (3, h, w) each, as the backbone gets them, and the same as pictures (h, w, 3), 0..1, RGB.
    """
    steps, bgr = test_steps(cfg)
    mean, std, turned = normalisation(model.data_preprocessor)
    images, pictures = [], []
    for path in paths:
        pixels = read_image(path) if bgr else np.ascontiguousarray(read_image(path)[..., ::-1])
        found = torch.from_numpy(transform(cfg, steps, pixels, str(path)))
        image = fit(found.permute(2, 0, 1), size)
        image = image.flip(0) if turned else image
        # without that switch the pipeline has made RGB already, as in all configs of this package
        pictures.append(image.permute(1, 2, 0).clamp(0, 255).numpy() / 255)
        images.append(image if mean is None or std is None else (image - mean) / std)
    return images, pictures


def fit(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(channels, H, W) of any type to (channels, *size) in float32."""
    if tuple(image.shape[-2:]) == tuple(size):
        return image.float()
    return F.interpolate(image[None].float(), size=size, mode='bilinear', align_corners=False,
                         antialias=True)[0]
