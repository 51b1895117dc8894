"""report.html: a run's curves, metrics, confusions, and best and worst images on one page."""
from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import groupby
from numbers import Real
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from torch import Tensor
from torchvision.ops import box_iou

from lape_mm.analysis.page import HEAD, fill

from .gallery import encode
from .images import read_image

SHOWN = 6  # images, best and worst each
SIDE = 900  # pixels of a picture's longer side, at most
LEAST_SCORE, LEAST_IOU = .3, .5  # a box below this score is not counted; a match
NAMED = 40  # classes up to which the matrix has their names
BACKGROUND = 'background'
TEMPLATE = HEAD + '''</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% for table in tables %}<section>
<h2>{{ table.title }}</h2>
<div class="wide"><table class="{{ table.style }}">
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
</section>
{% endfor %}{% for name, image in figures.items() %}<section>
<h2>{{ name }}</h2>
<div class="wide"><img alt="{{ name }}" src="data:image/png;base64,{{ image }}"></div>
</section>
{% endfor %}{% for name, pictures in galleries.items() if pictures %}<section>
<h2>{{ name }}</h2>
<p class="soft">{{ meaning }} Ground truth is left of or above the prediction.</p>
<div class="row">{% for caption, image in pictures %}
<figure><img alt="{{ caption }}" src="data:image/jpeg;base64,{{ image }}">
<figcaption>{{ caption }}</figcaption></figure>{% endfor %}
</div>
</section>
{% endfor %}
</main>
</body>
</html>
'''
MEANINGS = {
    'mmdet': f'By F1 of the boxes: score from {LEAST_SCORE}, IoU from {LEAST_IOU}, equal class.',
    'mmseg': "By the mean IoU of the classes in the image.",
    'mmpretrain': 'By the probability of the true class.'}


def judge(sample: Any, classes: int) -> tuple[float, np.ndarray] | None:
    """An image's score, 0..1, and its confusions, (classes + 1, classes + 1); None without truth.

    Rows are the truth, columns the prediction; the last of both is the background.
    """
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    if 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
        truth, found = (getattr(sample, name).data.flatten().cpu().numpy().astype(np.int64)
                        for name in ('gt_sem_seg', 'pred_sem_seg'))
        known = truth < classes
        np.add.at(matrix, (truth[known], found[known]), 1)
        union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
        there = matrix.sum(1) > 0
        return float((matrix.diagonal() / union.clip(1))[there].mean()) if there.any() else 0., \
            matrix
    if 'pred_score' in sample and 'gt_label' in sample:
        truth = int(sample.gt_label[0])
        matrix[truth, int(sample.pred_score.argmax())] += 1
        return float(sample.pred_score[truth]), matrix
    if 'pred_instances' in sample and 'gt_instances' in sample:
        return judge_boxes(sample.gt_instances, sample.pred_instances, matrix)
    return None


def judge_boxes(truth: Any, found: Any, matrix: np.ndarray) -> tuple[float, np.ndarray]:
    """`judge` for boxes: the best one first, each takes the ground truth that it overlaps most."""
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
    """Writes ``report.html`` beside the log when a training or a test ends.

    It shows the last evaluation. With several processes, best and worst are those of the first.
    """

    priority = 'LOWEST'

    def before_val_epoch(self, runner) -> None:
        self._start(runner, runner.val_loop)

    def before_test_epoch(self, runner) -> None:
        self._start(runner, runner.test_loop)

    def _start(self, runner, loop) -> None:
        meta = getattr(loop.dataloader.dataset, 'metainfo', None) or {}
        self.classes = [str(name) for name in meta.get('classes') or ()]
        self.matrix = np.zeros((len(self.classes) + 1,) * 2, np.int64)
        self.judged: list[tuple[float, str, Any]] = []
        self.metrics: Mapping = {}

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        for sample in outputs or ():
            path = sample.get('img_path') if hasattr(sample, 'get') else None
            # images may lie in memory or behind a network
            if not self.classes or not isinstance(path, str) or not os.path.isfile(path):
                continue
            if (result := judge(sample, len(self.classes))) is None:
                continue
            self.matrix += result[1]
            self.judged.append((result[0], path, sample.cpu()))
        self.judged.sort(key=lambda one: one[0])
        self.judged[SHOWN:-SHOWN] = []

    after_test_iter = after_val_iter

    def after_val_epoch(self, runner, metrics=None) -> None:
        self.metrics = metrics or {}

    def after_train(self, runner) -> None:
        if hasattr(self, 'judged'):
            self.write(runner)

    def after_test_epoch(self, runner, metrics=None) -> None:
        self.metrics = metrics or {}
        self.write(runner)

    def write(self, runner) -> None:
        """Writes the page of what was seen last."""
        total = torch.from_numpy(self.matrix)
        all_reduce(total)
        if not is_main_process():
            return
        cfg, curves = runner.cfg, read_curves(runner)
        changes = [*dict(cfg.get('overrides') or {}).items(), *cfg.get('changes', ())]
        figures = {}
        if curves:
            figures['Curves'] = draw_curves(curves)
        if total.any():
            figures['Confusions'] = draw_matrix(total.numpy(), self.classes)
        metrics = [(name, f'{value:.4g}') for name, value in self.metrics.items()
                   if isinstance(value, Real)]
        tables = [dict(title=title, style=style, rows=rows) for title, style, rows in (
            ('Metrics', '', metrics),
            ('Changed from the recipe', 'settings', changes),
            ('Most frequent confusions', '', confusions(total.numpy(), self.classes))) if rows]
        half = min(SHOWN, len(self.judged) // 2)
        path = Path(runner.log_dir, 'report.html')
        path.write_text(fill(
            TEMPLATE, title=f'{Path(cfg.filename or "run").stem}: {runner.experiment_name}',
            tables=tables, figures=figures, meaning=MEANINGS.get(cfg.default_scope, ''),
            galleries={'Worst images': self._pictures(runner, self.judged[:half]),
                       'Best images': self._pictures(runner, self.judged[::-1][:half])}))

    def _pictures(self, runner, judged: Sequence) -> list[tuple[str, str]]:
        """Captions and pictures, JPEG in base64."""
        found = []
        for score, path, sample in judged:
            file = Path(runner.log_dir, 'report.jpg')
            image = read_image(Path(path))[..., ::-1]
            if 'pred_score' in sample:  # mmpretrain draws no truth
                drawn = image
                truth, label = (self.classes[int(index)] for index in (
                    sample.gt_label[0], sample.pred_score.argmax()))
                caption = f'{Path(path).name}: {truth}, predicted {label}, {score:.2f}'
            else:
                runner.visualizer.add_datasample(
                    'report', image, data_sample=sample, draw_gt=True, show=False,
                    out_file=str(file), **dict(pred_score_thr=LEAST_SCORE)
                    if 'pred_instances' in sample else {})
                drawn, caption = read_image(file)[..., ::-1], f'{Path(path).name}: {score:.2f}'
                file.unlink()
            factor = min(1., SIDE / max(drawn.shape[:2]))
            drawn = cv2.resize(drawn, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
            found.append((caption, encode(drawn[..., ::-1])))
        return found


def confusions(matrix: np.ndarray, classes: Sequence[str], most: int = 10) -> list[tuple]:
    """The largest cells off the diagonal: truth, prediction, how many."""
    names, apart = [*classes, BACKGROUND], matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-apart, axis=None)[:most]
    return [(f'{names[row]} taken for {names[column]}', int(apart[row, column]))
            for row, column in zip(*np.unravel_index(order, apart.shape)) if apart[row, column]]


def read_curves(runner) -> dict[str, list[tuple[float, float]]]:
    """Training losses and validation metrics by name, as (step, value), over all resumes."""
    found: dict[str, dict[float, float]] = {}
    for path in sorted(Path(runner.work_dir).glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            entry: dict = json.loads(line)
            loss = 'loss' in entry
            for name, value in entry.items():
                # COCO has -1 for sizes that no object has
                if isinstance(value, Real) and (name == 'loss' if loss else float(value) >= 0):
                    found.setdefault(name, {})[entry['step']] = float(value)
    return {name: sorted(values.items()) for name, values in found.items()
            if name == 'loss' or name in runner.message_hub.log_scalars
            or f'val/{name}' in runner.message_hub.log_scalars}


def draw_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A panel for the loss, and one for each group of metrics, such as ``coco/bbox_...``."""
    from matplotlib.figure import Figure

    def group(name: str) -> tuple[bool, str]:
        return name != 'loss', name.partition('_')[0] if '_' in name else name.partition('/')[0]
    names = sorted(curves, key=lambda name: name != 'loss')
    groups = [[*members] for _, members in groupby(names, group)]
    figure = Figure(figsize=(4.4 * len(groups), 3.2), layout='constrained')
    for axis, members in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups):
        for name in members:
            axis.plot(*zip(*curves[name]), marker='' if name == 'loss' else '.', label=name)
        axis.set_xlabel('step')
        axis.legend(fontsize=7)
        axis.grid(alpha=.25)
    return png(figure)


def draw_matrix(matrix: np.ndarray, classes: Sequence[str]) -> str:
    """Shares of each row: what became of the objects, pixels or images of a class."""
    from matplotlib.figure import Figure
    if not matrix[-1].any() and not matrix[:, -1].any():
        matrix = matrix[:-1, :-1]
    names = [*classes, BACKGROUND][:len(matrix)]
    side = min(3 + .3 * len(names), 11)
    figure = Figure(figsize=(side, side * .85), layout='constrained')
    axis = figure.subplots()
    drawn = axis.imshow(matrix / matrix.sum(1, keepdims=True).clip(1), vmin=0, vmax=1,
                        cmap='viridis')
    if len(names) <= NAMED:
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel='predicted', ylabel='true')
    figure.colorbar(drawn, shrink=.7, label='share of the row')
    return png(figure)


def png(figure) -> str:
    """A figure as PNG in base64."""
    file = BytesIO()
    figure.savefig(file, format='png', dpi=150)
    return base64.b64encode(file.getvalue()).decode()
