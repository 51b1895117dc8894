"""Images of a folder, as a config's model gets them."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import TRANSFORMS, init_default_scope
from torch import Tensor, nn

from lape_mm.export.graph import normalisation

from .config import walk
from .errors import RunError

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp')


def find_images(folder: str, most: int | None = None) -> list[Path]:
    """The first images below a folder, or all of them, of different subfolders in turn.

    Raises:
        RunError: there are none.
    """
    folders: dict[Path, list[Path]] = {}
    for path in sorted(Path(folder).rglob('*')):
        if path.suffix.lower() in SUFFIXES:
            folders.setdefault(path.parent, []).append(path)
    # class folders would otherwise give images of the first class alone
    turns = [(turn, index, path) for index, paths in enumerate(folders.values())
             for turn, path in enumerate(paths)]
    if not turns:
        raise RunError(f'--images {folder}: holds no image ({", ".join(SUFFIXES)})')
    return [path for _, _, path in sorted(turns)[:most]]


def test_steps(cfg: Config) -> tuple[list[Mapping], bool]:
    """The transforms of the config's test pipeline that need an image alone.

    Returns:
        them, and whether the pipeline loads images itself, which OpenMMLab does in BGR; a data
        set that hands them over (CIFAR-100) does in RGB.

    Raises:
        RunError: the config tests on nothing.
    """
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    for _, node in walk(loader):
        if isinstance(node.get('pipeline'), list):
            break
    else:
        raise RunError('the config has no test_dataloader with a pipeline, which says how its '
                       'model gets images')
    kinds = [str(step['type']) for step in node['pipeline']]
    return [step for kind, step in zip(kinds, node['pipeline'])
            if not any(word in kind for word in ('Annotations', 'Pack', 'LoadImage'))], \
        any('LoadImage' in kind for kind in kinds)


def turns_channels(cfg: Config) -> bool:
    """Whether the test pipeline hands the channels over in another order than it begins with.

    Tried on an image of one colour, since any step may do it.

    Raises:
        RunError: a step fails on that image, or makes another colour of it.
    """
    init_default_scope(cfg.default_scope)
    colour = np.array([10, 90, 200], np.uint8)
    sample: dict = dict(img=np.broadcast_to(colour, (256, 256, 3)).copy(), img_path='', img_id=0,
                        img_shape=(256, 256), ori_shape=(256, 256), seg_fields=[], height=256,
                        width=256)
    try:
        for step in test_steps(cfg)[0]:
            sample = TRANSFORMS.build(step)(sample)
    except Exception as error:  # a pipeline is anybody's code
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(f"the config's test pipeline fails on a plain image ({first})") from error
    found = np.asarray(sample['img'])
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
        paths: files.
        size: (h, w) in pixels that all are resized to at the end, so that maps can be averaged.

    Returns:
        (3, h, w) each, as the backbone gets them, and the same as pictures (h, w, 3), 0..1, RGB.

    Raises:
        RunError: a file cannot be read, or a transform fails on it.
    """
    import cv2
    init_default_scope(cfg.default_scope)
    steps, bgr = test_steps(cfg)
    transforms: list[Callable] = [TRANSFORMS.build(step) for step in steps]
    images, pictures = [], []
    for path in paths:
        pixels = cv2.imread(str(path))
        if pixels is None:
            raise RunError(f'{path}: cannot be read as an image')
        shape = pixels.shape[:2]
        sample = dict(img=pixels if bgr else np.ascontiguousarray(pixels[..., ::-1]),
                      img_path=str(path), img_shape=shape, ori_shape=shape, img_id=0,
                      seg_fields=[], height=shape[0], width=shape[1])
        try:
            for transform in transforms:
                sample = transform(sample)
        except Exception as error:  # a pipeline is anybody's code
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RunError(f"{path}: the config's test pipeline fails on it ({first})") from error
        tensor = torch.from_numpy(np.ascontiguousarray(sample['img'])).permute(2, 0, 1).float()
        image, picture = normalise(model.data_preprocessor, fit(tensor, size))
        images.append(image)
        pictures.append(picture)
    return images, pictures


def normalise(preprocessor: Any, image: Tensor) -> tuple[Tensor, np.ndarray]:
    """A (3, H, W) image of 0..255 as a toolbox's preprocessor makes it, and its RGB picture."""
    mean, std, turned = normalisation(preprocessor)
    image = image.flip(0) if turned else image
    # without that switch the pipeline has made RGB already: the configs of this package all do
    picture = image.permute(1, 2, 0).clamp(0, 255).numpy() / 255
    if mean is not None and std is not None:
        image = (image - mean) / std
    return image, picture


def fit(image: Tensor, size: tuple[int, int]) -> Tensor:
    """(channels, H, W) of any type to (channels, *size) in float32."""
    image = image.float()
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    return F.interpolate(image[None], size=size, mode='bilinear', align_corners=False,
                         antialias=True)[0]
