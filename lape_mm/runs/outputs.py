"""A run's outputs: predictions in a file, and closing lines."""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from numbers import Real
from pathlib import Path

import torch
from mmengine.dist import master_only
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.runner import Runner, find_latest_checkpoint

from lape_mm.wording import short

from .drawing import DRAWS
from .errors import RunError


class DumpLabelMaps(DumpResults):
    """Dumps ``img_path`` and ``pred_sem_seg``, (H, W), without 200 MB of logits an image."""

    def process(self, data_batch, predictions) -> None:
        for prediction in predictions:
            labels = prediction['pred_sem_seg']['data'].squeeze(0).to('cpu')
            small = torch.uint8 if int(labels.max()) < 256 else torch.int32
            self.results.append(
                dict(img_path=prediction.get('img_path'), pred_sem_seg=labels.to(small)))


def dump_metric(scope: str, path: str) -> BaseMetric:
    """The metric that writes predictions to a .pkl file."""
    if not path.endswith(('.pkl', '.pickle')):
        raise RunError(f'--out {path}: expected a name that ends with .pkl')
    if scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults  # masks as run lengths
        return DumpDetResults(out_file_path=path)
    return (DumpLabelMaps if scope == 'mmseg' else DumpResults)(out_file_path=path)


def print_training(runner: Runner) -> None:
    """Prints the closing lines of tools/train.py, with the last validation's metrics."""
    metrics = {name.removeprefix('val/'): buffer.current()
               for name, buffer in runner.message_hub.log_scalars.items()
               if name.startswith('val/') and not name.endswith('time')}
    latest = find_latest_checkpoint(runner.work_dir)
    checkpoint = short(latest) if latest else 'none was saved'
    best = runner.message_hub.runtime_info.get('best_ckpt')
    if best and os.path.exists(best):
        checkpoint += f', best: {short(best)}'
    print_closing(runner, metrics, checkpoint, runner.log_dir)


@master_only
def print_closing(runner: Runner, metrics: Mapping, checkpoint: str, folder: str) -> None:
    """Prints a run's closing lines; its pictures are in ``folder``."""
    shown = ', '.join(f'{name} {float(value):.4g}' for name, value in metrics.items()
                      if isinstance(value, Real))
    print(f'metrics:     {shown or "none: no evaluation has run"}')
    print(f'checkpoint:  {checkpoint}')
    print(f'log:         {short(Path(runner.log_dir, f"{runner.timestamp}.log"))}')
    if (report := Path(runner.log_dir, 'report.html')).exists():
        print(f'report:      {short(report)}')
    pictures = Counter(path.parent for path in Path(folder).rglob('*')
                       if path.suffix in ('.png', '.jpg')).most_common(1)
    option = f'default_hooks.visualization.{DRAWS[runner.cfg.default_scope][1]}=True'
    print('pictures:    ' + (f'{short(pictures[0][0])} ({pictures[0][1]})' if pictures else
                             f'none (--cfg-options {option} draws some)'))
