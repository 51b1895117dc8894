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

from lape_mm.registry import HOOKS
from lape_mm.runs.errors import RunError

from .check_sample import insert_check
from .samples import GuardedLoader, seed_from


class Batches(chain):
    """The iterator of an iteration-based loop. To resume, OneDL's mmengine calls ``skip_iter``."""

    def skip_iter(self, count: int) -> None:
        pass  # the loader skips


@HOOKS.register_module()
class ExactRunHook(Hook):
    """Makes a run depend only on its seed, however often it is killed and resumed; guards its data.

    Each sample and each iteration is seeded by its place in the run (`samples.py`). A resumed run
    skips the samples that it has seen without loading them.

    A bad sample (unreadable, or in conflict with its annotation) is left out, named in the log and
    counted at the end; with ``strict_data`` it ends the run.

    Exact on the CPU, and on a GPU with deterministic operators. Transforms that keep state between
    samples, such as mmdet's cached mosaic, are not exact.
    """

    priority = 'VERY_HIGH'

    def __init__(self, strict_data: bool = False):
        self.strict_data = strict_data

    def before_train(self, runner) -> None:
        """Guards the data and seeds the samplers. The checkpoint has set a resumed run's seed."""
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
            # mmengine 0.10 draws the batches that a resumed run skips
            drawn = 0 if hasattr(loop, 'fast_forward_on_resume') else loop.iter
            loop.dataloader_iterator = Batches(repeat(None, drawn), loop.dataloader)
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
        insert_check(dataset)
        loop.dataloader = GuardedLoader(loop.dataloader, report=self.report, part=part,
                                         strict=self.strict_data, **settings)

    def before_train_epoch(self, runner) -> None:
        if self.endless:
            return
        length = len(runner.train_loop.dataloader)
        done = runner.iter - runner.epoch * length
        if not 0 <= done <= length:
            runner.logger.warning(
                f'the batch size or the data set has changed: iteration {runner.iter} is not in '
                f'epoch {runner.epoch + 1} of {length} iterations; that epoch starts anew')
            done = 0
        self.batches.epoch, self.batches.skip = runner.epoch, done

    def before_train_iter(self, runner, *args, **kwargs) -> None:
        seed_from((self.seed, runner.iter, self.rank), devices=True)

    def after_run(self, runner) -> None:
        if not self.report.exists():
            return
        entries = [json.loads(line) for line in self.report.open()]
        runner.logger.warning(
            f'{len({entry["what"] for entry in entries})} samples could not be used (met '
            f'{len(entries)} times); all are listed in {self.report}. Metrics leave them out, '
            'except that COCO counts their objects as missed')


@HOOKS.register_module()
class MissedValidationHook(Hook):
    """On resume, first runs a due validation that the killed run may not have finished."""

    priority = 'LOWEST'  # when all other hooks are set up

    def before_train(self, runner) -> None:
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return
        endless = isinstance(loop, IterBasedTrainLoop)
        now, last = (loop.iter, loop.max_iters) if endless else (loop.epoch, loop.max_epochs)
        interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, now + 1) - 1]
        if now >= loop.val_begin and (now % interval == 0 or now == last) and (
                endless or loop.iter == loop.epoch * len(loop.dataloader)):
            runner.logger.info(f'validation of iteration {loop.iter}, which the resumed run missed')
            runner.val_loop.run()
