"""A resumed run ends with the weights of the run that was never killed."""
from __future__ import annotations

import json
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop
from mmengine.runner.base_loop import BaseLoop
from torch.utils.data import DataLoader

from lape_mm.registry import HOOKS

from .check_sample import check_loaded
from .samples import guarded_loader, seed_from
from .stop import RunStopped


class EndlessIterator:
    """The batches of a loop that counts iterations; ``skipped`` are drawn by mmengine 0.10."""

    def __init__(self, loader: DataLoader, skipped: int):
        self.batches = chain(repeat(None, skipped), loader)

    def __next__(self):
        return next(self.batches)

    def skip_iter(self, count: int) -> None:
        """OneDL's loop calls this instead of drawing; the loader has skipped them."""


@HOOKS.register_module()
class ExactRunHook(Hook):
    """Makes a run a function of its seed, however often it is killed and resumed, and guards data.

    Each sample is augmented by a seed of its own (`lape_mm.engine.samples`), the main process is
    seeded anew before each iteration, and a resumed run skips what it has been trained on without
    loading it.

    A sample that cannot be read, or that contradicts its annotation, is left out, named in the log
    and counted at its end; ``strict_data`` ends the run instead.

    Holds on the CPU, with deterministic operators on a GPU, and for transforms that keep no state
    between samples (mmdet's cached mosaic does).

    Args:
        strict_data: whether a bad sample ends the run.
    """

    priority = 'VERY_HIGH'

    def __init__(self, strict_data: bool = False):
        self.strict_data = strict_data

    def before_run(self, runner) -> None:
        """Guards the data of validation and test."""
        self.report = Path(runner.log_dir, 'bad_samples.jsonl')
        for part in ('train', 'val', 'test'):
            loop = getattr(runner, f'_{part}_loop')
            if not isinstance(loop, BaseLoop) or not isinstance(loop.dataloader, DataLoader):
                continue
            dataset: Any = loop.dataloader.dataset
            if not len(dataset):
                raise RunStopped(f'{part}_dataloader.dataset: no image is left of the data set '
                                 f'({getattr(dataset, "ann_file", "") or "no annotation file"}; '
                                 'images without annotations are left out where filter_cfg says '
                                 'so)')
            check_loaded(dataset)
            if part != 'train':
                loop.dataloader = guarded_loader(
                    loop.dataloader, report=self.report, part=part, strict=self.strict_data)

    def before_train(self, runner) -> None:
        """Guards the training data: here, because a checkpoint has brought its seed."""
        loop, self.rank = runner.train_loop, get_rank()
        # the samplers of all processes have to agree
        self.seed = runner.seed
        if runner._randomness_cfg.get('diff_rank_seed'):
            self.seed -= self.rank
        sampler: Any
        for sampler in (loop.dataloader.sampler, loop.dataloader.batch_sampler.sampler):
            if hasattr(sampler, 'seed'):
                sampler.seed = self.seed
            if hasattr(sampler, '_indices_of_rank'):  # mmengine's InfiniteSampler may have begun
                sampler.indices = sampler._indices_of_rank()
        endless = isinstance(loop, IterBasedTrainLoop)
        loop.dataloader = guarded_loader(
            loop.dataloader, report=self.report, part='train', strict=self.strict_data,
            seed=self.seed, endless=endless)
        self.batches = loop.dataloader.batch_sampler
        if endless:
            self.batches.skip = loop.iter
            loop.dataloader_iterator = EndlessIterator(
                loop.dataloader, 0 if hasattr(loop, 'fast_forward_on_resume') else loop.iter)

    def before_train_epoch(self, runner) -> None:
        if isinstance(runner.train_loop, IterBasedTrainLoop):
            return
        length = len(runner.train_loop.dataloader)
        done = runner.iter - runner.epoch * length
        if not 0 <= done <= length:
            runner.logger.warning(
                f'iteration {runner.iter} is not within epoch {runner.epoch + 1} of {length} '
                'iterations: batch size or data set differ from the resumed run, and this epoch '
                'is trained from its start')
            done = 0
        self.batches.epoch, self.batches.skip = runner.epoch, done

    def before_train_iter(self, runner, *args, **kwargs) -> None:
        seed_from((self.seed, runner.iter, self.rank), devices=True)

    def after_val_epoch(self, runner, metrics=None) -> None:
        # before CheckpointHook writes; see MissedValidationHook
        runner.message_hub.update_info('last_validation', runner.iter)

    def after_run(self, runner) -> None:
        if self.report.exists():
            entries = [json.loads(line) for line in self.report.open()]
            runner.logger.warning(
                f'{len({entry["what"] for entry in entries})} samples could not be used (met '
                f'{len(entries)} times); all are listed in {self.report}' + (
                    '. Metrics leave them out, except that COCO counts their objects as missed'
                    if any(entry['part'] != 'train' for entry in entries) else ''))


@HOOKS.register_module()
class MissedValidationHook(Hook):
    """Validates at the resumed iteration if the run was killed before that validation ended."""

    priority = 'LOWEST'  # all others are set up

    def before_train(self, runner) -> None:
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return
        loop._decide_current_val_interval()
        endless = isinstance(loop, IterBasedTrainLoop)
        now, last = (loop.iter, loop.max_iters) if endless else (loop.epoch, loop.max_epochs)
        due = now >= loop.val_begin and (now % loop.val_interval == 0 or now == last) and (
            endless or loop.iter == loop.epoch * len(loop.dataloader))
        if due and runner.message_hub.runtime_info.get('last_validation') != loop.iter:
            runner.logger.info(f'validation of iteration {loop.iter}, which the resumed run missed')
            runner.val_loop.run()
