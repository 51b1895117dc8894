"""The closing lines of a run: what it reached and where everything is."""
from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.runner import Runner, find_latest_checkpoint

from .pictures import find_pictures, switch


def short(path: str | os.PathLike) -> str:
    """The path from the current folder where that is the shorter name."""
    absolute = os.path.abspath(path)
    return min(os.path.relpath(absolute), absolute, key=len)


def metrics_line(metrics: Mapping) -> str:
    """The numbers of an evaluation, such as ``mIoU 41.2, mAcc 52.0``."""
    shown = [f'{name} {float(value):.4g}' for name, value in metrics.items()
             if isinstance(value, Real) and not isinstance(value, bool)]
    return ', '.join(shown) or 'none: no evaluation has run'


def last_metrics(runner: Runner) -> dict[str, float]:
    """What the last validation of a training run found."""
    return {name.removeprefix('val/'): buffer.current()
            for name, buffer in runner.message_hub.log_scalars.items()
            if name.startswith('val/') and not name.endswith(('time', 'data_time'))}


def print_training(runner: Runner) -> None:
    """Closing lines of tools/train.py."""
    latest = find_latest_checkpoint(runner.work_dir)
    best = runner.message_hub.get_info('best_ckpt') if 'best_ckpt' in \
        runner.message_hub.runtime_info else None
    checkpoint = short(latest) if latest else 'none was saved'
    if best and os.path.exists(best):
        checkpoint += f', best: {short(best)}'
    _print(runner, metrics_line(last_metrics(runner)), checkpoint, runner.log_dir)


def print_testing(runner: Runner, metrics: Mapping, checkpoint: str, *, out: str | None,
                  show_dir: str | None) -> None:
    """Closing lines of tools/test.py."""
    _print(runner, metrics_line(metrics), short(checkpoint), show_dir or runner.log_dir)
    if out and is_main_process():
        print(f'predictions: {short(out)}')


def _print(runner: Runner, metrics: str, checkpoint: str, pictures: str) -> None:
    if not is_main_process():
        return
    found = find_pictures(pictures)
    log = Path(runner.log_dir, f'{runner.timestamp}.log')
    print(f'metrics:     {metrics}')
    print(f'checkpoint:  {checkpoint}')
    print(f'log:         {short(log)}')
    print('pictures:    ' + (f'{short(found[0])} ({found[1]})' if found else
                             f'none (--cfg-options {switch(runner.cfg.default_scope)} draws some)'))
