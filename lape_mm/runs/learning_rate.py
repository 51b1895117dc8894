"""--auto-scale-lr: the learning rate for the images that a step of the optimizer sees."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner

from .errors import RunError


def set_auto_scale_lr(cfg: Config) -> None:
    """Scales the learning rate by the total batch over the one that the config is made for.

    Raises:
        RunError: the config does not name that batch.
    """
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise RunError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size')
    cfg.auto_scale_lr.enable = True


def count_accumulation(runner: Runner) -> None:
    """Makes mmengine's scaling count the batches whose gradients one step accumulates.

    mmengine takes processes and the batch of each alone, while its optimizer wrapper averages the
    gradients of ``accumulative_counts`` batches.
    """
    scale = runner.scale_lr

    def scale_lr(optim_wrapper: Any, auto_scale_lr: Mapping | None = None) -> None:
        scale(optim_wrapper, auto_scale_lr)
        if auto_scale_lr is None or not auto_scale_lr.get('enable'):
            return
        wrappers: list[OptimWrapper] = list(optim_wrapper.values()) \
            if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]
        for wrapper in wrappers:
            if (steps := wrapper._accumulative_counts) == 1:
                continue
            for group in wrapper.optimizer.param_groups:
                group['lr'] *= steps
            loader = runner._train_dataloader
            batch = loader['batch_size'] if isinstance(loader, Mapping) else loader.batch_size
            total, made_for = runner.world_size * batch * steps, auto_scale_lr['base_batch_size']
            runner.logger.info(
                f'A step accumulates {steps} batches (optim_wrapper.accumulative_counts): the '
                f'total batch is {total} images, and the LR is scaled by {total / made_for:g} '
                'altogether.')

    runner.scale_lr = scale_lr
