"""Trains models with DeiT's distillation token, which mmpretrain can only evaluate."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmpretrain.models.classifiers import ImageClassifier
from mmpretrain.models.heads import DeiTClsHead
from torch import Tensor, nn

from lape_mm.checkpoints.files import CheckpointError
from lape_mm.registry import MODELS


def names_weights(classifier: Mapping) -> bool:
    """Whether a config names weights for the whole classifier, not only for its backbone."""
    start = classifier.get('init_cfg') or []
    return bool(classifier.get('pretrained') or classifier.get('checkpoint_path') or any(
        one.get('checkpoint') for one in ([start] if isinstance(start, Mapping) else start)))


@MODELS.register_module()
class DistilledClsHead(DeiTClsHead):
    """A linear layer for the pooled vector and one for the distillation token.

    The first learns the true labels, the second those that a teacher predicts, or the true labels
    without a teacher. Predictions average both scores. Takes the arguments of DeiTClsHead.
    """

    def loss(self, feats: tuple, data_samples: Sequence, teacher: Tensor | None = None) \
            -> dict[str, Tensor]:
        """Returns the two losses of DeiT's hard distillation (DeiT, equation 3).

        ``feats`` ends with a pair: pooled vector and token, (B, C) each. ``data_samples`` hold
        labels, or scores if batch augmentation mixed them; ``teacher`` holds scores (B, classes).
        """
        pooled, token = self.pre_logits(feats)
        scores, token_scores = self.layers.head(pooled), self.layers.head_dist(token)
        labels = self._get_loss(scores, data_samples)['loss']
        if teacher is None:
            teacher_loss = self._get_loss(token_scores, data_samples)['loss']
        else:
            teacher_loss = F.cross_entropy(token_scores, teacher.argmax(dim=1))
        return dict(loss_labels=labels / 2, loss_teacher=teacher_loss / 2)

    def forward(self, feats: tuple) -> Tensor:
        """Returns the average of the two layers' scores, (B, classes); ``feats`` as in `loss`."""
        pooled, token = self.pre_logits(feats)
        return (self.layers.head(pooled) + self.layers.head_dist(token)) / 2


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """mmpretrain's ImageClassifier with a teacher, for hard distillation (DeiT, ICML 2021).

    Args:
        teacher: a classifier's config, such as ``dict(type='TimmClassifier',
            model_name='regnety_160', pretrained=True)``, or a module, or None. A config is built at
            the first iteration with the weights that it names. The teacher sees the student's
            batch, is frozen, and stays out of checkpoints and weight averages.
        kwargs: see ImageClassifier; the head must be a `DistilledClsHead`.
    """

    def __init__(self, *, teacher: dict | nn.Module | None = None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(self.head, DistilledClsHead):
            raise ValueError(f'head={type(self.head).__name__}: DistilledClassifier expected '
                             'lape_mm.DistilledClsHead')
        self._teacher: list[Any] = [teacher]  # a list hides it from state dicts, averages and DDP

    def init_weights(self) -> None:
        """Initialises the student; CheckpointError if the teacher's config names no weights."""
        teacher, = self._teacher
        if isinstance(teacher, Mapping) and not names_weights(teacher):
            raise CheckpointError(
                f'teacher={dict(teacher)!r:.300} names no weights for the whole classifier: '
                "set pretrained, checkpoint_path or init_cfg=dict(type='Pretrained', "
                'checkpoint=..), whichever its type takes, or teacher=None')
        super().init_weights()

    def loss(self, inputs: Tensor, data_samples: Sequence) -> dict[str, Tensor]:
        """Returns the losses of `DistilledClsHead` for images (B, 3, H, W) and their labels."""
        teacher, scores = self._teacher[0], None
        if isinstance(teacher, Mapping):
            self._teacher[0] = teacher = MODELS.build(teacher)
            # without init_cfg the weights are loaded already, and timm would re-initialise them
            if teacher.init_cfg:
                teacher.init_weights()
        if teacher is not None:
            with torch.no_grad():
                scores = teacher.eval().requires_grad_(False).to(inputs.device)(inputs)
        return self.head.loss(self.extract_feat(inputs), data_samples, teacher=scores)
