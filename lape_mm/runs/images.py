"""Loads a folder's images as a config's model receives them."""
from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import TRANSFORMS, init_default_scope
from torch import Tensor, nn

from lape_mm.export.onnx import normalisation
from lape_mm.wording import first_line

from .config import walk
from .errors import RunError

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp')


def find_images(folder: str, most: int | None = None) -> list[Path]:
    """Up to ``most`` images below a folder, one of each subfolder in turn; RunError without any."""
    paths = sorted(path for path in Path(folder).rglob('*') if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise RunError(f'{folder}: holds no image ({", ".join(SUFFIXES)})')
    # in plain order, the first images of class folders would all be of one class
    places = {path: place for _, group in groupby(paths, lambda path: path.parent)
              for place, path in enumerate(group)}
    return sorted(paths, key=lambda path: places[path])[:most]


def read_image(path: Path) -> np.ndarray:
    """Reads an image: (H, W, 3), BGR, uint8; RunError if that fails."""
    image = cv2.imread(str(path))
    if image is None:
        raise RunError(f'{path}: cannot be read as an image')
    return image


def test_steps(cfg: Config) -> tuple[list[Mapping], bool]:
    """Those steps of the test pipeline that need only an image, and whether the image is BGR.

    OpenMMLab loads BGR; a data set of arrays (CIFAR-100) has RGB.
    """
    loader = cfg.get('test_dataloader') or cfg.get('val_dataloader')
    steps = next((node['pipeline'] for _, node in walk(loader)
                  if isinstance(node.get('pipeline'), list)), None)
    if steps is None:
        raise RunError('the config has no test_dataloader with a pipeline, which is needed to '
                       'prepare images for the model')
    return [step for step in steps if not any(word in str(step['type']) for word in (
        'Annotations', 'Pack', 'LoadImage'))], \
        any('LoadImage' in str(step['type']) for step in steps)


def transform(cfg: Config, steps: Sequence[Mapping], image: np.ndarray, path: str) -> np.ndarray:
    """Applies pipeline steps to an image (H, W, 3); RunError with its path if one fails."""
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
    """Whether the test pipeline reverses the channels, tried on an image of one colour."""
    colour = np.array([10, 90, 200], np.uint8)
    plain = np.broadcast_to(colour, (256, 256, 3)).copy()
    found = transform(cfg, test_steps(cfg)[0], plain, 'a plain image')
    middle = found[found.shape[0] // 2, found.shape[1] // 2].astype(int)
    for turned in (False, True):
        if np.abs(middle - colour[::-1 if turned else 1]).max() <= 2:
            return turned
    raise RunError(f"the config's test pipeline turns the colour {colour.tolist()} into "
                   f'{middle.tolist()}; export needs a pipeline that keeps or reverses channels')


def load_images(cfg: Config, model: nn.Module, paths: list[Path], size: tuple[int, int]) \
        -> tuple[list[Tensor], list[np.ndarray]]:
    """Images (3, h, w) as the backbone receives them, and as RGB pictures (h, w, 3), 0..1.

    All are resized to ``size`` (h, w), in pixels, so that maps can be averaged.
    """
    steps, bgr = test_steps(cfg)
    mean, std, turned = normalisation(model.data_preprocessor)
    images, pictures = [], []
    for path in paths:
        pixels = read_image(path) if bgr else np.ascontiguousarray(read_image(path)[..., ::-1])
        found = torch.from_numpy(transform(cfg, steps, pixels, str(path)))
        image = fit(found.permute(2, 0, 1), size)
        image = image.flip(0) if turned else image
        # if the preprocessor keeps the order of channels, the pipeline has made RGB
        pictures.append(image.permute(1, 2, 0).clamp(0, 255).numpy() / 255)
        images.append(image if mean is None or std is None else (image - mean) / std)
    return images, pictures


def fit(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes an image (channels, H, W) of any dtype to (channels, *size) in float32."""
    if tuple(image.shape[-2:]) == tuple(size):
        return image.float()
    return F.interpolate(image[None].float(), size=size, mode='bilinear', align_corners=False,
                         antialias=True)[0]


def jpeg(image: np.ndarray, most: int = 10 ** 6) -> str:
    """A BGR image as JPEG in base64, with at most ``most`` pixels on its longer side."""
    factor = min(1., most / max(image.shape[:2]))
    image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode('.jpg', image, (cv2.IMWRITE_JPEG_QUALITY, 88))[1]
    return base64.b64encode(encoded.tobytes()).decode()
