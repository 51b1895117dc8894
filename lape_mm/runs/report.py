"""report.html: a run's curves, metrics, confusions, and best and worst images."""
from __future__ import annotations

import base64
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from torch import Tensor
from torchvision.ops import box_iou

from lape_mm.analysis.page import page

from .drawing import draw
from .images import jpeg, read_image

SHOWN = 6  # best images, and as many worst ones
SIDE = 900  # pixels of a picture's longer side, at most
POINTS = 400  # on a curve, each the mean of several iterations
LEAST_SCORE, LEAST_IOU = .3, .5  # for a box to count, and to match
NAMED = 40  # with more classes, the matrix has no names
BACKGROUND = 'background'
MEANINGS = {
    'mmdet': f'By F1 of boxes: score at least {LEAST_SCORE}, IoU at least {LEAST_IOU}, same class.',
    'mmseg': 'By the mean IoU of the classes in the image.',
    'mmpretrain': 'By the probability of the true class.'}


def judge(sample: Any, classes: int) -> tuple[float, Tensor] | None:
    """Returns an image's score (0..1) and its confusion matrix; None without ground truth.

    Rows are true classes, columns predicted ones, both with the background last: classes + 1.
    """
    matrix = torch.zeros(classes + 1, classes + 1, dtype=torch.int64)
    if 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
        truth, found = (getattr(sample, name).data.flatten().cpu().long()
                        for name in ('gt_sem_seg', 'pred_sem_seg'))
        known = truth < classes
        matrix.index_put_((truth[known], found[known]), torch.tensor(1), accumulate=True)
        union = matrix.sum(0) + matrix.sum(1) - matrix.diag()
        scores = (matrix.diag() / union)[matrix.sum(1) > 0]
        return float(scores.mean().nan_to_num()), matrix
    if 'pred_score' in sample and 'gt_label' in sample:
        label = int(sample.gt_label[0])
        matrix[label, int(sample.pred_score.argmax())] += 1
        return float(sample.pred_score[label]), matrix
    if 'pred_instances' in sample and 'gt_instances' in sample:
        return judge_boxes(sample.gt_instances, sample.pred_instances, matrix)
    return None


def judge_boxes(truth: Any, found: Any, matrix: Tensor) -> tuple[float, Tensor]:
    """`judge` for boxes: highest score first, each takes the free true box of highest IoU."""
    found = found[found.scores >= LEAST_SCORE]
    found = found[found.scores.argsort(descending=True)].cpu()
    boxes: Tensor = getattr(truth.bboxes, 'tensor', truth.bboxes).cpu()
    overlaps, right = box_iou(found.bboxes.float(), boxes.float()), 0
    labels, free = truth.labels.tolist(), torch.ones(len(boxes), dtype=torch.bool)
    for overlap, label in zip(overlaps, found.labels.tolist()):
        overlap = overlap * free
        if len(labels) and overlap.max() >= LEAST_IOU:
            free[match := int(overlap.argmax())] = False
            matrix[labels[match], label] += 1
            right += labels[match] == label
        else:
            matrix[-1, label] += 1
    for index in free.nonzero().flatten().tolist():
        matrix[labels[index], -1] += 1
    return 2 * right / (len(labels) + len(found)) if len(labels) + len(found) else 1., matrix


class ReportHook(Hook):
    """Writes ``report.html`` about the last evaluation when a training or a test ends."""

    priority = 'LOWEST'

    def before_val_epoch(self, runner) -> None:
        self.start(runner.val_loop)

    def before_test_epoch(self, runner) -> None:
        self.start(runner.test_loop)

    def start(self, loop) -> None:
        meta = loop.evaluator.dataset_meta or {}
        self.classes = [str(name) for name in meta.get('classes') or ()]
        self.matrix = torch.zeros((len(self.classes) + 1,) * 2, dtype=torch.int64)
        self.judged: list[tuple[float, str, Any]] = []

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        for sample in outputs or ():
            path = sample.get('img_path') if hasattr(sample, 'get') else None
            # images may lie in memory or behind a network
            if not self.classes or not isinstance(path, str) or not os.path.isfile(path):
                continue
            if result := judge(sample, len(self.classes)):
                self.matrix += result[1]
                self.judged.append((result[0], path, sample.cpu()))
        self.judged.sort(key=lambda one: one[0])
        self.judged[SHOWN:-SHOWN] = []

    after_test_iter = after_val_iter

    def after_val_epoch(self, runner, metrics=None) -> None:
        self.metrics = metrics or {}

    after_test_epoch = after_val_epoch

    def after_train(self, runner) -> None:
        if not hasattr(self, 'judged'):  # nothing was evaluated
            return
        all_reduce(self.matrix)
        if not is_main_process():
            return
        cfg = runner.cfg
        metrics = [(name, f'{value:.4g}' if value != -1 else 'n/a')  # COCO's -1: no such objects
                   for name, value in self.metrics.items() if isinstance(value, Real)]
        changes = [*dict(cfg.get('overrides') or {}).items(), *cfg.get('changes', ())]
        tables = (('Metrics', metrics, ''), ('Changed from the recipe', changes, 'settings'),
                  ('Most frequent confusions (true → predicted)',
                   confusions(self.matrix, self.classes), ''))
        sections = [dict(title=title, tables=[dict(rows=rows, style=style)])
                    for title, rows, style in tables if rows]
        sections += draw_curves(runner.message_hub.log_scalars, runner.iter)
        sections += draw_matrix(self.matrix, self.classes)
        half = min(SHOWN, len(self.judged) // 2)
        options = dict(pred_score_thr=LEAST_SCORE) if cfg.default_scope == 'mmdet' else {}
        for title, judged in (('Worst images', self.judged[:half]),
                              ('Best images', self.judged[::-1][:half])):
            pictures = [(f'{Path(path).name}: {score:.2f}', jpeg(draw(
                runner.visualizer, read_image(Path(path)), sample, **options), SIDE))
                for score, path, sample in judged]
            sections += [dict(
                title=title, pictures=pictures, note=f'{MEANINGS.get(cfg.default_scope, "")} '
                'Ground truth is left of or above the prediction.')] if pictures else []
        Path(runner.log_dir, 'report.html').write_text(page(
            runner.experiment_name, sections), encoding='utf-8')

    after_test = after_train


def confusions(matrix: Tensor, classes: Sequence[str]) -> list[tuple[str, int]]:
    """The ten most frequent confusions: pairs of 'truth → prediction' and count."""
    names, size = [*classes, BACKGROUND], len(matrix)
    counts, cells = matrix.clone().fill_diagonal_(0).flatten().topk(min(10, size ** 2))
    return [(f'{names[cell // size]} → {names[cell % size]}', count)
            for count, cell in zip(counts.tolist(), cells.tolist()) if count]


def draw_curves(scalars: Mapping[str, Any], iterations: int) -> list[dict]:
    """A report section with plots of the loss and of each metric group; [] without a loss.

    ``scalars`` are mmengine's histories, which checkpoints keep: ``train/loss``, ``val/METRIC``.
    """
    from matplotlib.figure import Figure
    panels: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for key, history in scalars.items():
        mode, _, name = key.partition('/')
        values = history.data[0]
        if key == 'train/loss':
            values = [part.mean() for part in np.array_split(values, min(POINTS, len(values)))]
        elif mode != 'val' or name.endswith('time') or max(values) < 0:  # COCO's -1: no object
            continue
        panels[name.partition('_')[0] if '_' in name else mode].append((name, values))
    if 'train' not in panels:
        return []
    figure = Figure(figsize=(4.4 * len(panels), 3.2), layout='constrained')
    for axis, curves in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.values()):
        for name, values in curves:
            steps = np.linspace(0, iterations, len(values) + 1)[1:]
            axis.plot(steps, values, marker='' if name == 'loss' else '.', label=name)
        axis.set_xlabel('iteration')
        axis.legend(fontsize=7)
        axis.grid(alpha=.25)
    return [dict(title='Curves', figure=png(figure))]


def draw_matrix(matrix: Tensor, classes: Sequence[str]) -> list[dict]:
    """A report section with the confusion matrix; [] if nothing was counted."""
    from matplotlib.figure import Figure
    if not matrix.any():
        return []
    if not matrix[-1].any() and not matrix[:, -1].any():
        matrix = matrix[:-1, :-1]
    names = [*classes, BACKGROUND][:len(matrix)]
    side = min(3 + .3 * len(names), 11)
    figure = Figure(figsize=(side, side * .85), layout='constrained')
    axis = figure.subplots()
    drawn = axis.imshow(matrix / matrix.sum(1, keepdim=True).clip(1), vmin=0, vmax=1)
    if len(names) <= NAMED:
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel='predicted', ylabel='true')
    figure.colorbar(drawn, shrink=.7, label='share of the row')
    return [dict(title='Confusions', figure=png(figure))]


def png(figure: Any) -> str:
    """A matplotlib figure as base64-encoded PNG."""
    file = BytesIO()
    figure.savefig(file, format='png', dpi=150)
    return base64.b64encode(file.getvalue()).decode()
