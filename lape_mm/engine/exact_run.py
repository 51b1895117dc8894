"""A resumed run that ends with the weights of the run that was never killed."""
from __future__ import annotations

import json
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

NAMED = 10  # bad samples that the log names before it only counts them


class EndlessIterator:
    """What a loop that counts iterations draws its batches from.

    Args:
        loader: with endless batches, which skip by themselves what has been trained on.
        owed: batches that the loop will ask for in order to skip them, as mmengine 0.10 does.
    """

    def __init__(self, loader: DataLoader, owed: int):
        self.loader, self.owed, self.iterator = loader, owed, None

    def skip_iter(self, count: int) -> None:
        """OneDL's loop asks for this instead."""
        self.owed = 0

    def __iter__(self) -> EndlessIterator:
        return self

    def __next__(self):
        if self.owed:
            self.owed -= 1
            return None
        if self.iterator is None:
            self.iterator = iter(self.loader)
        return next(self.iterator)


@HOOKS.register_module()
class ExactRunHook(Hook):
    """Makes a run a function of its seed, whatever kills and resumes lie between, and guards data.

    Each sample is augmented by a seed of its own (`lape_mm.engine.samples`), the generators of the
    main process are seeded anew before each iteration, so that validation cannot move them, and
    a resumed run skips what it has been trained on without loading it. A validation that was due
    when the run was killed is done first.

    A sample that cannot be read, or that contradicts its annotation, is left out, named in the log
    and counted at its end; ``strict_data`` ends the run instead.

    What it promises holds for the CPU, for training with deterministic operators on a GPU, and for
    transforms that keep no state between samples (mmdet's cached mosaic does).

    Args:
        strict_data: whether a bad sample ends the run.
    """

    priority = 'VERY_HIGH'

    def __init__(self, strict_data: bool = False):
        self.strict_data = strict_data

    def before_run(self, runner) -> None:
        """The loaders of validation and test, and the report of what is bad in any of them."""
        self.report, self.seen = Path(runner.log_dir, 'bad_samples.jsonl'), 0
        for part in ('val', 'test'):
            loop = getattr(runner, f'_{part}_loop')
            if isinstance(loop, BaseLoop) and isinstance(loop.dataloader, DataLoader):
                self._check_dataset(loop.dataloader, part)
                loop.dataloader = guarded_loader(
                    loop.dataloader, report=self.report, part=part, strict=self.strict_data)
        loop = runner._train_loop
        if isinstance(loop, BaseLoop):
            self._check_dataset(loop.dataloader, 'train')

    def _check_dataset(self, loader, part: str) -> None:
        if not len(loader.dataset):
            raise RunStopped(f'{part}_dataloader.dataset: no image is left of the data set '
                             f'({getattr(loader.dataset, "ann_file", "") or "no annotation file"};'
                             ' images without annotations are left out where filter_cfg says so)')
        check_loaded(loader.dataset)

    def before_train(self, runner) -> None:
        """The loader of training: here, since a resumed run has its seed from the checkpoint."""
        loop, self.rank = runner.train_loop, get_rank()
        # of all processes: the samplers have to agree
        apart = runner._randomness_cfg.get('diff_rank_seed')
        self.seed = runner.seed - self.rank if apart else runner.seed
        sampler = getattr(loop.dataloader, 'sampler', None)
        batches = getattr(loop.dataloader, 'batch_sampler', None)
        one: Any
        for one in (sampler, getattr(batches, 'sampler', None)):
            if hasattr(one, 'seed'):
                one.seed = self.seed
            if hasattr(one, '_indices_of_rank'):  # mmengine's InfiniteSampler may have begun
                one.indices = one._indices_of_rank()
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
                'iterations: batch size or data set are not those of the resumed run, and this '
                'epoch is trained from its start')
            done = 0
        self.batches.epoch, self.batches.skip = runner.epoch, done

    def before_train_iter(self, runner, *args, **kwargs) -> None:
        seed_from((self.seed, runner.iter, self.rank), devices=True)

    def after_train_iter(self, runner, *args, **kwargs) -> None:
        self._tell(runner)

    after_val_iter = after_test_iter = after_train_iter

    def after_val_epoch(self, runner, metrics=None) -> None:
        # before CheckpointHook writes; see MissedValidationHook
        runner.message_hub.update_info('last_validation', runner.iter)

    named = 0

    def _tell(self, runner) -> None:
        """Names bad samples that have come since it was called last."""
        if not self.report.exists() or self.report.stat().st_size == self.seen:
            return
        with self.report.open() as file:
            file.seek(self.seen)
            for line in file:
                if line.endswith('\n'):  # else a worker is at it
                    if self.named < NAMED:
                        runner.logger.warning(f'left out: {json.loads(line)["what"]}')
                        self.named += 1
                    self.seen += len(line.encode())

    def after_run(self, runner) -> None:
        self._tell(runner)
        if self.seen:
            entries = [json.loads(line) for line in self.report.read_text().splitlines()]
            different = {entry['what'] for entry in entries}
            runner.logger.warning(
                f'{len(different)} samples could not be used (met {len(entries)} times); all are '
                f'listed in {self.report}' + (
                    '. Metrics are of the others, except that COCO counts objects of an image that '
                    'is left out as missed' if any(one['part'] != 'train' for one in entries)
                    else ''))


@HOOKS.register_module()
class MissedValidationHook(Hook):
    """Does the validation of the resumed iteration, where the kill came before its end."""

    priority = 'LOWEST'  # all others are set up

    def before_train(self, runner) -> None:
        loop = runner.train_loop
        if runner.val_loop is None or loop.iter == 0:
            return
        loop._decide_current_val_interval()
        endless = isinstance(loop, IterBasedTrainLoop)
        now, last = (loop.iter, loop.max_iters) if endless else (loop.epoch, loop.max_epochs)
        whole = endless or loop.iter == loop.epoch * len(loop.dataloader)
        due = now >= loop.val_begin and (now % loop.val_interval == 0 or now == last)
        if whole and due and runner.message_hub.runtime_info.get('last_validation') != loop.iter:
            runner.logger.info(f'validation of iteration {loop.iter}, which the resumed run missed')
            runner.val_loop.run()
