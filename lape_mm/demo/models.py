"""Opens models that take an image and return a `lape_mm.runtime.Prediction`."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lape_mm.runs.errors import RunError
from lape_mm.runtime import Model, Prediction, class_names, read_image
from lape_mm.wording import short

Predict = Callable[[Any], Prediction]


def open_models(words: Sequence[str], joinings: Sequence[str] = ()) -> dict[str, Predict]:
    """Opens ONNX files, or a config and checkpoints; returns models by path, or raises RunError.

    ``joinings`` holds none, one for all checkpoints, or one for each.
    """
    if all(word.endswith('.onnx') for word in words):
        try:
            return {short(word): Model(word) for word in words}
        except Exception as error:  # onnxruntime has several kinds
            raise RunError(f'{words[0]}: cannot be read as a model: {error}') from error
    config, *checkpoints = words
    if not config.endswith('.py') or not checkpoints:
        raise RunError(f'{" ".join(words)}: expected MODEL.onnx ..., or CONFIG.py CHECKPOINT ...')
    chosen: list[str | None] = [*joinings] or [None]
    if len(chosen) == 1:
        chosen *= len(checkpoints)
    if len(chosen) != len(checkpoints):
        raise RunError(f'--joining {" ".join(joinings)}: expected one, or one per checkpoint')
    return {short(checkpoint): TorchModel(config, checkpoint, joining)
            for checkpoint, joining in zip(checkpoints, chosen)}


class TorchModel:
    """Runs a checkpoint of an mmpretrain, mmdet or mmseg config, on a GPU if there is one."""

    def __init__(self, config: str, checkpoint: str, joining: str | None):
        import torch
        from mmengine.dataset import Compose

        from lape_mm.runs.config import load_config, walk
        from lape_mm.runs.export import load_trained
        from lape_mm.runs.images import test_steps
        self.cfg = load_config(config, joining=joining)
        self.model: Any
        self.model, self.names = load_trained(self.cfg, checkpoint)
        self.model.to('cuda' if torch.cuda.is_available() else 'cpu')
        steps, self.bgr = test_steps(self.cfg)
        loader = self.cfg.get('test_dataloader') or self.cfg.val_dataloader
        pack = next(node for _, node in walk(loader)
                    if str(node.get('type')).split('.')[-1].startswith('Pack'))
        self.pipeline = Compose([*steps, dict(type=pack['type'])])

    def __call__(self, image: Any) -> Prediction:
        """Predicts on a path, a Pillow image or an RGB array, like `lape_mm.runtime.Model`."""
        import torch
        pixels = np.asarray(read_image(image))
        height, width = pixels.shape[:2]
        sample = self.pipeline(dict(
            img=np.ascontiguousarray(pixels[..., ::-1]) if self.bgr else pixels, img_path='',
            img_id=0, img_shape=(height, width), ori_shape=(height, width), seg_fields=[],
            height=height, width=width))
        with torch.no_grad():
            found, = self.model.test_step({key: [value] for key, value in sample.items()})
        found = found.cpu()
        if 'pred_sem_seg' in found:
            label_map = found.pred_sem_seg.data[0].numpy()
            return Prediction(class_names(self.names, label_map), label_map=label_map)
        if 'pred_instances' in found:
            found = found.pred_instances.numpy()
            return Prediction(class_names(self.names, found.labels), found.labels, found.scores,
                              found.bboxes, found.get('masks'))
        scores = found.pred_score.numpy()
        labels = np.argsort(-scores, kind='stable')
        return Prediction(class_names(self.names, labels), labels, scores[labels])
