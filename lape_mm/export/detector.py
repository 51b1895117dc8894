"""Rewrites the heads of mmdet's Mask R-CNN and Faster R-CNN with operators that ONNX has."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

# mmdet limits a box's growth: |log(16 / 1000)|
MAX_GROWTH = abs(math.log(16 / 1000))
# part of the model -> the only mmdet class that is rewritten below; mask parts may be missing
PARTS = {
    'rpn_head': 'RPNHead', 'rpn_head.bbox_coder': 'DeltaXYWHBBoxCoder',
    'roi_head': 'StandardRoIHead', 'roi_head.bbox_roi_extractor': 'SingleRoIExtractor',
    'roi_head.bbox_head.bbox_coder': 'DeltaXYWHBBoxCoder',
    'roi_head.mask_roi_extractor': 'SingleRoIExtractor', 'roi_head.mask_head': 'FCNMaskHead'}


@torch.library.custom_op('lape_mm::suppress', mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, iou: float, threshold: float) -> Tensor:
    """Non-maximum suppression per class: returns the scores, with those of dropped boxes set to 0.

    One operator hides from the exporter that the number of kept boxes depends on the data. Boxes
    are (G, N, 4) and scores (G, classes, N). Scores up to ``threshold`` are dropped.
    """
    kept = torch.zeros_like(scores)
    for group, row in enumerate(scores):
        for label, score in enumerate(row):
            index = (score > threshold).nonzero()[:, 0]
            index = index[torchvision.ops.nms(boxes[group, index], score[index], iou)]
            kept[group, label, index] = score[index]
    return kept


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, iou: float, threshold: float) -> Tensor:
    return torch.empty_like(scores)


def translations() -> dict[Callable, Callable]:
    """Tells PyTorch's exporter how to write `suppress` in ONNX."""
    from onnxscript import opset18 as op

    def write(boxes, scores, iou, threshold):
        most = op.Constant(value_ints=[2 ** 31 - 1])
        index = op.NonMaxSuppression(boxes, scores, most, op.Constant(value_floats=[iou]),
                                     op.Constant(value_floats=[threshold]))
        nothing = op.Mul(scores, op.Constant(value_float=0.))
        return op.ScatterND(nothing, index, op.GatherND(scores, index))

    return {torch.ops.lape_mm.suppress.default: write}


class Detector(nn.Module):
    """A two-stage detector's heads, from feature maps to a fixed number of detections per image.

    Returns boxes (B, K, 4) as x1, y1, x2, y2 in pixels, scores (B, K) in falling order, and labels
    (B, K). Mask R-CNN adds masks (B, K, 28, 28): the object's probability in each cell of its box.
    Rows without a detection have score 0 and label -1. K is ``max_per_img``.
    """

    def __init__(self, model: Any, img_size: Sequence[int]):
        super().__init__()
        check_parts(model)
        self.rpn: Any = model.rpn_head
        self.roi: Any = model.roi_head
        self.img_size = tuple(img_size)
        self.outputs = ['boxes', 'scores', 'labels', *(['masks'] if self.roi.with_mask else [])]
        with torch.no_grad():
            maps = model.extract_feat(torch.zeros(1, 3, *self.img_size))
        anchors = self.rpn.prior_generator.grid_priors(
            [level.shape[-2:] for level in maps], device='cpu')
        for level, boxes in enumerate(anchors):
            self.register_buffer(f'anchors{level}', boxes)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rois, found = self.propose(maps)
        count = found.shape[1]
        cfg, head = self.roi.test_cfg, self.roi.bbox_head
        logits, deltas = head(self.pool(self.roi.bbox_roi_extractor, maps, rois))
        scores = logits.softmax(-1)[:, :-1].unflatten(0, (-1, count))
        scores = torch.where(found[..., None] > 0, scores, 0.).transpose(1, 2)
        boxes = self.decode(head.bbox_coder, rois[:, None, 1:], deltas.unflatten(1, (-1, 4)))
        boxes = boxes.unflatten(0, (-1, count)).transpose(1, 2)  # (B, classes or 1, N, 4)
        groups, classes = boxes.shape[1], scores.shape[1]
        kept = suppress(
            boxes.flatten(0, 1), scores.reshape(-1, classes // groups, count),
            cfg.nms.iou_threshold, cfg.score_thr).reshape(-1, classes * count)
        scores, index = kept.topk(min(cfg.max_per_img, classes * count))
        labels = index // count
        place = index if groups > 1 else index % count
        boxes = torch.where(scores[..., None] > 0, take(boxes.flatten(1, 2), place), 0.)
        masks = [self.masks(maps, boxes, scores, labels)] if self.roi.with_mask else []
        return boxes, scores, torch.where(scores > 0, labels, -1), *masks

    def reference(self, maps: Sequence[Tensor]) -> list:
        """What mmdet's own heads detect: bboxes, scores, labels and masks of each image."""
        given = [SimpleNamespace(metainfo=dict(
            img_shape=self.img_size, ori_shape=self.img_size, scale_factor=(1., 1.)))
            for _ in maps[0]]
        return self.roi.predict(maps, self.rpn.predict(maps, given, rescale=False), given,
                                rescale=False)

    def propose(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The RPN's proposals: RoIs (B * N, 5) and scores (B, N), 0 where a proposal is missing."""
        cfg = self.rpn.test_cfg
        all_scores, all_boxes, sizes = [], [], []
        for level, (logits, deltas) in enumerate(zip(*self.rpn(maps))):
            anchors = getattr(self, f'anchors{level}').expand(logits.shape[0], -1, 4)
            score = logits.permute(0, 2, 3, 1).flatten(1).sigmoid()
            deltas = deltas.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))
            if 0 < cfg.get('nms_pre', -1) < score.shape[1]:
                score, index = score.topk(cfg.nms_pre)
                anchors, deltas = take(anchors, index), take(deltas, index)
            all_scores.append(score)
            all_boxes.append(self.decode(self.rpn.bbox_coder, anchors, deltas))
            sizes.append(score.shape[1])
        scores, boxes = torch.cat(all_scores, 1), torch.cat(all_boxes, 1)
        if cfg.get('min_bbox_size', -1) >= 0:
            large = (boxes[..., 2:] - boxes[..., :2] > cfg.min_bbox_size).all(-1)
            scores = torch.where(large, scores, -1.)
        # levels as classes, because boxes of two levels do not suppress each other
        levels = torch.cat([torch.full((size,), level) for level, size in enumerate(sizes)])
        own = levels == torch.arange(len(sizes))[:, None]
        kept = suppress(boxes, torch.where(own, scores[:, None], -1.), cfg.nms.iou_threshold, 0.)
        scores, index = kept.amax(1).topk(min(cfg.max_per_img, sum(sizes)))
        return to_rois(take(boxes, index)), scores

    def decode(self, coder: Any, boxes: Tensor, deltas: Tensor) -> Tensor:
        """DeltaXYWHBBoxCoder.decode: moves and scales boxes (..., 4) by deltas (..., 4)."""
        deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
        low, high = boxes[..., :2], boxes[..., 2:]
        sides = high - low
        centre = (low + high) * .5 + sides * deltas[..., :2]
        half = sides * deltas[..., 2:].clamp(-MAX_GROWTH, MAX_GROWTH).exp() * .5
        corners = torch.cat([centre - half, centre + half], -1)
        if not coder.clip_border:
            return corners
        height, width = self.img_size
        return corners.clamp(min=0).minimum(corners.new_tensor([width, height, width, height]))

    def pool(self, extractor: Any, maps: Sequence[Tensor], rois: Tensor) -> Tensor:
        """SingleRoIExtractor: features (N, C, h, w) of RoIs, each from the map for its size."""
        sides = rois[:, 3:] - rois[:, 1:3]
        scale = sides.prod(1).sqrt() / extractor.finest_scale + 1e-6
        layers = extractor.roi_layers
        # mmdet's floor(log2(scale)), without the rounding of log2
        level = sum(((scale >= 2. ** step).long() for step in range(1, len(layers))),
                    torch.zeros_like(scale, dtype=torch.long))
        pooled = maps[0].new_zeros(rois.shape[0], maps[0].shape[1], *layers[0].output_size)
        for step, (layer, feats) in enumerate(zip(layers, maps)):
            index = (level == step).nonzero()[:, 0]
            pooled = pooled.index_copy(0, index, torchvision.ops.roi_align(
                feats, rois[index], layer.output_size, layer.spatial_scale, layer.sampling_ratio,
                layer.aligned))
        return pooled

    def masks(self, maps: Sequence[Tensor], boxes: Tensor, scores: Tensor, labels: Tensor) \
            -> Tensor:
        """Mask probabilities (B, K, 28, 28), computed only for rows with a detection."""
        index = (scores > 0).flatten().nonzero()[:, 0]
        logits = self.roi.mask_head(
            self.pool(self.roi.mask_roi_extractor, maps, to_rois(boxes)[index]))
        if logits.shape[1] > 1:
            label = labels.flatten()[index][:, None, None, None]
            logits = logits.gather(1, label.expand(-1, 1, *logits.shape[2:]))
        found = logits.new_zeros(scores.flatten().shape[0], *logits.shape[2:])
        found = found.index_copy(0, index, logits[:, 0].sigmoid())
        return found.unflatten(0, (-1, scores.shape[1]))


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Picks K rows of each (B, N, 4) by an index (B, K)."""
    return rows.gather(1, index[..., None].expand(-1, -1, 4))


def to_rois(boxes: Tensor) -> Tensor:
    """Converts boxes (B, N, 4) to RoIs (B * N, 5), which start with the image's index."""
    image = torch.arange(boxes.shape[0])[:, None, None]
    return torch.cat([image.expand(-1, boxes.shape[1], 1).to(boxes), boxes], -1).flatten(0, 1)


def check_parts(model: Any) -> None:
    """Raises ValueError if an mmdet model has parts that `Detector` does not support."""
    for path, expected in PARTS.items():
        part = model
        for word in path.split('.'):
            part = getattr(part, word, None)
        if type(part).__name__ != expected and not (part is None and 'mask' in path):
            raise ValueError(f'{type(model).__name__}: its {path} is a {type(part).__name__}; ONNX '
                             f'export needs a {expected}, as in Mask R-CNN and Faster R-CNN')
    for nms in (model.rpn_head.test_cfg.nms, model.roi_head.test_cfg.nms):
        if nms.get('type', 'nms') != 'nms' or nms.get('class_agnostic'):
            raise ValueError(f'{type(model).__name__}: nms={dict(nms)} cannot be exported to ONNX')
