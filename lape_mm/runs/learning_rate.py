"""--auto-scale-lr: the learning rate for the images that a step of the optimizer sees."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner

from .errors import RunError


def set_auto_scale_lr(cfg: Config) -> None:
    """Scales the learning rate by the total batch over ``auto_scale_lr.base_batch_size``."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise RunError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def count_accumulation(runner: Runner) -> None:
    """Makes mmengine's scaling count the batches that a step accumulates.

    mmengine multiplies processes by the batch of each; its optimizer wrapper averages the gradients
    of ``accumulative_counts`` batches.
    """
    scale = runner.scale_lr

    def scale_lr(optim_wrapper: Any, auto_scale_lr: Mapping | None = None) -> None:
        scale(optim_wrapper, auto_scale_lr)
        if not auto_scale_lr or not auto_scale_lr.get('enable'):
            return
        for wrapper in (optim_wrapper.values() if isinstance(optim_wrapper, OptimWrapperDict)
                        else [optim_wrapper]):
            if (steps := wrapper._accumulative_counts) == 1:
                continue
            for group in wrapper.optimizer.param_groups:
                group['lr'] *= steps
            loader: Any = runner._train_dataloader
            batch = loader['batch_size'] if isinstance(loader, Mapping) else loader.batch_size
            total = runner.world_size * batch * steps
            runner.logger.info(
                f'A step accumulates {steps} batches (optim_wrapper.accumulative_counts): the '
                f'total batch is {total} images, and the LR is scaled by '
                f'{total / auto_scale_lr["base_batch_size"]:g} altogether.')

    runner.scale_lr = scale_lr
