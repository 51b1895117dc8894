"""Pictures of predictions, for the three toolboxes alike."""
from __future__ import annotations

import math
import os
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import VISUALIZERS
from mmengine.structures import BaseDataElement

LEAST_SIDE = 320  # pixels of a drawn image's shorter side: below, labels cannot be read
# each toolbox's hook, and the argument that makes it draw
DRAWS = {'mmdet': ('DetVisualizationHook', 'draw'), 'mmseg': ('SegVisualizationHook', 'draw'),
         'mmpretrain': ('VisualizationHook', 'enable')}


def draw_tested(cfg: Config, folder: str) -> None:
    """Makes a test draw every image, ground truth beside or below the prediction.

    Args:
        cfg: edited in place.
        folder: where pictures go; mmseg puts them into ``vis_data/vis_image`` below it.
    """
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


class EnlargedDrawing:
    """Mixin of a toolbox's visualizer: small images grow before boxes and labels are drawn."""

    def add_datasample(self, name: str, image: np.ndarray,
                       data_sample: BaseDataElement | None = None, *args, **kwargs) -> None:
        """As in the toolbox; ``image`` is (H, W, 3) and ``data_sample`` belongs to it."""
        factor = math.ceil(LEAST_SIDE / min(image.shape[:2]))
        if factor > 1:
            image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
            data_sample = None if data_sample is None else enlarge(data_sample, factor)
        drawing: Any = super()
        drawing.add_datasample(name, image, data_sample, *args, **kwargs)


def enlarging(kind: str | type) -> str | type:
    """A visualizer class with `EnlargedDrawing`, for mmdet's and mmseg's; others as they are.

    mmpretrain's hook has ``rescale_factor`` for that.
    """
    with VISUALIZERS.switch_scope_and_registry(None) as registry:
        base = registry.get(kind) if isinstance(kind, str) else kind
    if base is None or not hasattr(base, 'dataset_meta') or hasattr(base, 'visualize_cls'):
        return kind
    return type(base.__name__, (EnlargedDrawing, base), {})


def enlarge(sample: BaseDataElement, factor: int) -> BaseDataElement:
    """A copy of a data sample with boxes, masks and label maps ``factor`` times as large."""
    sample = sample.cpu().clone()
    for name, value in sample.items():
        if 'bboxes' in value:
            value.bboxes = getattr(value.bboxes, 'tensor', value.bboxes) * factor
        if 'masks' in value:
            masks = value.masks
            value.masks = repeat(masks.to_ndarray() if hasattr(masks, 'to_ndarray') else masks,
                                 factor)
        if name.endswith('sem_seg'):
            sample.set_field(type(value)(data=repeat(value.data, factor)), name)
    return sample


def repeat(maps: Any, factor: int) -> torch.Tensor:
    """(N, H, W) -> (N, factor * H, factor * W), each value in a square."""
    maps = torch.as_tensor(maps)
    return maps.repeat_interleave(factor, -2).repeat_interleave(factor, -1)
