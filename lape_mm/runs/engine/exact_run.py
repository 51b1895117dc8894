"""Makes a killed and resumed run end with the weights of an unbroken one."""
from __future__ import annotations

import json
from bisect import bisect
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop
from torch.utils.data import DataLoader

from lape_mm.registry import HOOKS
from lape_mm.runs.errors import RunError

from .check_sample import check_loaded
from .samples import guarded_loader, seed_from


class EndlessIterator:
    """The batches of an iteration-based loop, after ``skipped`` placeholders.

    On resuming, mmengine 0.10 draws the batches that it skips, and OneDL's calls ``skip_iter``. The
    loader has skipped them already.
    """

    def __init__(self, loader: DataLoader, skipped: int):
        self.batches = chain(repeat(None, skipped), loader)

    def __next__(self):
        return next(self.batches)

    def skip_iter(self, count: int) -> None:
        """Does nothing."""


@HOOKS.register_module()
class ExactRunHook(Hook):
    """Makes a run depend only on its seed, however often it is killed and resumed; guards its data.

    Each sample and each iteration is seeded by its place in the run (`samples.py`). A resumed run
    skips the samples that it has seen without loading them.

    A bad sample (unreadable, or in conflict with its annotation) is left out, named in the log and
    counted at the end.

    Exact on the CPU, and on a GPU with deterministic operators. Transforms that keep state between
    samples, such as mmdet's cached mosaic, are not exact.

    Args:
        strict_data: whether a bad sample ends the run.
    """

    priority = 'VERY_HIGH'

    def __init__(self, strict_data: bool = False):
        self.strict_data = strict_data

    def before_train(self, runner) -> None:
        """Guards the data and seeds the samplers. A resumed checkpoint has set the run's seed."""
        self.rank, self.seed = get_rank(), runner.seed
        if (runner.cfg.get('randomness') or {}).get('diff_rank_seed'):
            self.seed -= self.rank  # the samplers of all processes have to agree
        loop = runner.train_loop
        sampler: Any = loop.dataloader.batch_sampler.sampler
        if isinstance(sampler, InfiniteSampler):  # restarted: it may have drawn with another seed
            sampler.__init__(sampler.dataset, sampler.shuffle, self.seed)
        elif hasattr(sampler, 'seed'):
            sampler.seed = self.seed
        self.endless = isinstance(loop, IterBasedTrainLoop)
        self._guard(runner, 'train', loop, seed=self.seed, endless=self.endless)
        self.batches = loop.dataloader.batch_sampler
        if self.endless:
            self.batches.skip = loop.iter
            loop.dataloader_iterator = EndlessIterator(
                loop.dataloader, 0 if hasattr(loop, 'fast_forward_on_resume') else loop.iter)
        if runner.val_loop is not None:
            self._guard(runner, 'val', runner.val_loop)

    def before_test(self, runner) -> None:
        self._guard(runner, 'test', runner.test_loop)

    def _guard(self, runner, part: str, loop, **settings) -> None:
        self.report = Path(runner.log_dir, 'bad_samples.jsonl')
        dataset = loop.dataloader.dataset
        if not len(dataset):
            raise RunError(f'{part}_dataloader.dataset: no image is left of the data set '
                           f'({getattr(dataset, "ann_file", "") or "no annotation file"}); '
                           'filter_cfg may drop images without annotations', own=True)
        check_loaded(dataset)
        loop.dataloader = guarded_loader(loop.dataloader, report=self.report, part=part,
                                         strict=self.strict_data, **settings)

    def before_train_epoch(self, runner) -> None:
        if self.endless:
            return
        length = len(runner.train_loop.dataloader)
        done = runner.iter - runner.epoch * length
        if not 0 <= done <= length:
            runner.logger.warning(
                f'iteration {runner.iter} is not in epoch {runner.epoch + 1} of {length} '
                'iterations: the batch size or the data set has changed since the resumed run; '
                'this epoch starts from its beginning')
            done = 0
        self.batches.epoch, self.batches.skip = runner.epoch, done

    def before_train_iter(self, runner, *args, **kwargs) -> None:
        seed_from((self.seed, runner.iter, self.rank), devices=True)

    def after_val_epoch(self, runner, metrics=None) -> None:
        # for MissedValidationHook, before CheckpointHook writes
        runner.message_hub.update_info('last_validation', runner.iter)

    def after_run(self, runner) -> None:
        if not self.report.exists():
            return
        entries = [json.loads(line) for line in self.report.open()]
        note = '. Metrics leave them out, except that COCO counts their objects as missed'
        runner.logger.warning(
            f'{len({entry["what"] for entry in entries})} samples could not be used (met '
            f'{len(entries)} times); all are listed in {self.report}'
            + (note if any(entry['part'] != 'train' for entry in entries) else ''))


@HOOKS.register_module()
class MissedValidationHook(Hook):
    """Validates first if the resumed run was killed before a due validation had ended."""

    priority = 'LOWEST'  # when all other hooks are set up

    def before_train(self, runner) -> None:
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return
        endless = isinstance(loop, IterBasedTrainLoop)
        now, last = (loop.iter, loop.max_iters) if endless else (loop.epoch, loop.max_epochs)
        interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, now + 1) - 1]
        due = now >= loop.val_begin and (now % interval == 0 or now == last) and (
            endless or loop.iter == loop.epoch * len(loop.dataloader))
        if due and runner.message_hub.runtime_info.get('last_validation') != loop.iter:
            runner.logger.info(f'validation of iteration {loop.iter}, which the resumed run missed')
            runner.val_loop.run()
