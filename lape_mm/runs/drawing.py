"""Draws ground truth and predictions, for all three toolboxes."""
from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from PIL import Image, ImageOps

from lape_mm.runs.engine.check_sample import inner_datasets

from .images import read_image

LEAST_SIDE = 320  # shorter side of a drawn image in pixels, so that labels can be read
TILES = 12  # pictures on a sheet
# each toolbox's hook, and the argument that makes it draw
DRAWS = {'mmdet': ('DetVisualizationHook', 'draw'), 'mmseg': ('SegVisualizationHook', 'draw'),
         'mmpretrain': ('VisualizationHook', 'enable')}


def draw_tested(cfg: Config, folder: str) -> None:
    """Makes a test draw all images into a folder, ground truth left of or above the prediction."""
    folder, (kind, switch) = os.path.abspath(folder), DRAWS[cfg.default_scope]
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hook = hooks.setdefault('visualization', ConfigDict(type=kind))
    hook[switch] = True
    if cfg.default_scope == 'mmdet':
        hook.test_out_dir = folder
    elif cfg.default_scope == 'mmseg':
        cfg.visualizer.save_dir = folder
    else:
        hook.update(out_dir=folder, interval=1)


def draw_truth(runner: Runner) -> str:
    """Draws some training images with their ground truth on a sheet; returns its path."""
    dataset = next(inner_datasets(runner.train_loop.dataloader.dataset))
    steps = [step for step in dataset.pipeline.transforms if type(step).__name__.startswith(
        ('LoadImage', 'LoadAnnotations', 'Pack'))]
    chosen = np.unique(np.linspace(0, len(dataset) - 1, TILES).astype(int)).tolist()
    tile, path = LEAST_SIDE + 8, f'{runner.work_dir}/truth.jpg'
    sheet = Image.new('RGB', (4 * tile, -(-len(chosen) // 4) * tile), 'white')
    for place, index in enumerate(chosen):
        packed = dataset.get_data_info(index)
        try:
            for step in steps:
                packed = step(packed)
        except Exception:  # a broken image: the run names it when it reads it
            continue
        picture = draw(runner.visualizer, packed['inputs'].numpy().transpose(1, 2, 0),
                       packed['data_samples'], draw_pred=False)
        sheet.paste(ImageOps.contain(Image.fromarray(picture[..., ::-1]), (LEAST_SIDE,) * 2),
                    (place % 4 * tile, place // 4 * tile))
    sheet.save(path)
    return path


def draw(visualizer: Any, image: np.ndarray, sample: BaseDataElement, **options) -> np.ndarray:
    """Draws truth and prediction of an image; image and result are (H, W, 3), BGR, uint8."""
    rgb = np.ascontiguousarray(image[..., ::-1])
    with TemporaryDirectory() as folder:
        out = f'{folder}/drawn.png'
        if hasattr(visualizer, 'visualize_cls'):
            visualizer.visualize_cls(rgb, sample, resize=LEAST_SIDE, out_file=out, **options)
        else:
            visualizer.add_datasample('drawn', rgb, sample, out_file=out, **options)
        return read_image(Path(out))


def draw_large(add: Callable, name: str, image: np.ndarray, data_sample: BaseDataElement, *args,
               **kwargs) -> None:
    """Calls ``add`` (``add_datasample``) with a small image (H, W, 3) and its sample enlarged."""
    factor = max(1, math.ceil(LEAST_SIDE / min(image.shape[:2])))
    image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
    add(name, image, enlarge(data_sample, factor), *args, **kwargs)


def enlarge(sample: BaseDataElement, factor: int) -> BaseDataElement:
    """A copy of a data sample with boxes, masks and label maps ``factor`` times as large."""
    def repeat(maps: Any) -> torch.Tensor:
        maps = torch.as_tensor(maps.to_ndarray() if hasattr(maps, 'to_ndarray') else maps)
        return maps.repeat_interleave(factor, -2).repeat_interleave(factor, -1)

    sample = sample.cpu()
    for name, value in sample.items():
        if 'bboxes' in value:
            value.bboxes = getattr(value.bboxes, 'tensor', value.bboxes) * factor
        if 'masks' in value:
            value.masks = repeat(value.masks)
        if name.endswith('sem_seg'):
            sample.set_field(type(value)(data=repeat(value.data)), name)
    return sample
