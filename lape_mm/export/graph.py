"""The exported part of a model: from raw images to logits or detections."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .detector import Detector


class Graph(nn.Module):
    """A model from its images to its post-processing, with normalisation.

    Takes float32 images (B, channels, H, W), 0..255, in the channel order in which the config's
    pipeline starts (OpenCV's BGR; RGB for CIFAR-100). Returns

        classifier   logits (B, classes)
        segmenter    logits (B, classes, H, W), resized to the image as mmseg does before argmax
        detector     boxes, scores, labels and masks, see `Detector`

    Args:
        model: of mmpretrain, mmseg or mmdet, with its ``data_preprocessor``.
        img_size: (h, w) in pixels; the padding of the data preprocessor is not exported.
        turned: whether the pipeline itself swaps RGB and BGR, as ImageNet's configs do.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(self, model: Any, img_size: Sequence[int], *, turned: bool = False):
        super().__init__()
        self.model: Any = model
        self.img_size = tuple(img_size)
        self.task = task_of(model)
        self.detector: Any = Detector(model, img_size) if self.task == 'detector' else None
        mean, std, swaps = normalisation(model.data_preprocessor)
        self.swaps_channels = swaps != turned
        self.register_buffer('mean', mean)
        self.register_buffer('std', std)

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return ['logits'] if self.detector is None else self.detector.outputs

    def normalise(self, image: Tensor) -> Tensor:
        """Images as the backbone gets them."""
        if self.swaps_channels:
            # flip is exported as a slice with a negative step
            image = torch.cat([image[:, 2:3], image[:, 1:2], image[:, 0:1]], dim=1)
        if self.mean is not None and self.std is not None:
            image = (image - self.mean) / self.std
        return image

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Images to a tuple of outputs, see the class."""
        image = self.normalise(image)
        if self.task == 'classifier':
            return (self.model(image, mode='tensor'),)
        if self.task == 'segmenter':
            return (self.model.encode_decode(image, [dict(img_shape=self.img_size)]),)
        return self.detector(self.model.extract_feat(image))


def task_of(model: nn.Module) -> str:
    """'segmenter', 'detector' or 'classifier', by the parts of the model.

    Raises:
        ValueError: it is none of these.
    """
    if hasattr(model, 'decode_head'):
        return 'segmenter'
    if hasattr(model, 'roi_head') or hasattr(model, 'bbox_head'):
        return 'detector'
    if getattr(model, 'head', None) is not None:
        return 'classifier'
    raise ValueError(f'{type(model).__name__} is no classifier, segmenter or detector')


def normalisation(preprocessor: Any) -> tuple[Tensor | None, Tensor | None, bool]:
    """Mean and std, (channels, 1, 1) or None each, and whether it swaps RGB and BGR.

    The swap is ``to_rgb`` in mmpretrain, ``channel_conversion`` in upstream mmseg and
    ``_channel_conversion`` in mmengine.
    """
    swaps = any(getattr(preprocessor, name, False)
                for name in ('to_rgb', 'channel_conversion', '_channel_conversion'))
    if not getattr(preprocessor, '_enable_normalize', False):
        return None, None, swaps
    mean, std = (part.detach().clone().reshape(-1, 1, 1)
                 for part in (preprocessor.mean, preprocessor.std))
    return mean, std, swaps
