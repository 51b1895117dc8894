"""Samples whose augmentation depends only on their place in the run; what becomes of bad ones.

A resumed run is the same run only if each image is augmented as it would have been. The seed of an
augmentation is (seed, epoch, batch, place in the batch of all processes), so workers, kills and the
number of processes do not matter.
"""
from __future__ import annotations

import atexit
import json
import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from torch.utils.data import DataLoader, Dataset, Sampler

from lape_mm.wording import first_line

IN_A_ROW = 20  # so many bad samples in a row end the run
NAMED = 10  # bad samples that a worker names in the log; the others are only reported


class BadSample(Exception):
    """A sample that cannot be used; the message names file and reason."""


class Draw(int):
    """An index of a dataset, with the integers that seed its augmentation."""

    key: tuple

    def __new__(cls, index: int, key: Sequence[int]):
        made = super().__new__(cls, index)
        made.key = tuple(key)
        return made

    def __reduce__(self):
        return Draw, (int(self), self.key)


def seed_from(key: Sequence[int], devices: bool = False) -> None:
    """Seeds Python's, NumPy's and torch's global generators, with ``devices`` the GPUs' as well."""
    python, numpy, ours = np.random.SeedSequence(key).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    # torch.manual_seed initialises devices, which workers do not need
    (torch.manual_seed if devices else torch.default_generator.manual_seed)(ours)


class SeededBatches(Sampler):
    """A batch sampler whose indices are `Draw`.

    Args:
        batches: the batch sampler that it wraps.
        seed: of the run.
        endless: whether the next epoch follows by itself, for loops that count iterations.

    Attributes:
        epoch: the epoch of the next pass.
        skip: batches that the next pass leaves out, because a resumed run has seen them.
    """

    def __init__(self, batches: Any, *, seed: int, endless: bool = False):
        self.batches, self.seed, self.endless = batches, seed, endless
        self.sampler = batches.sampler  # mmengine's hooks look for it
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Draw]]:
        rank, world = get_dist_info()
        epoch, skip, self.skip = self.epoch, self.skip, 0
        while True:
            if hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            number = -1
            for number, batch in enumerate(self.batches):
                if skip:
                    skip -= 1
                    continue
                yield [Draw(index, (self.seed, epoch, number, place * world + rank))
                       for place, index in enumerate(batch)]
            if number < 0:
                raise BadSample('the data set is smaller than one batch, and drop_last is on')
            if not self.endless:
                return
            epoch += 1


class GuardedDataset(Dataset):
    """A dataset that is seeded by each `Draw`, and reports samples it cannot read.

    In training such a sample is replaced by another one, elsewhere by None. Other attributes are
    read from and set on the dataset itself.

    Args:
        dataset: any dataset of the toolboxes.
        report: a file that all processes add one line of JSON a bad sample to.
        part: 'train', 'val' or 'test'.
        strict: raise instead.

    Raises:
        BadSample: with ``strict``, or after `IN_A_ROW` bad samples.
    """

    OWN = ('dataset', 'report', 'part', 'strict', 'named')

    def __init__(self, dataset: Dataset, *, report: str | os.PathLike, part: str,
                 strict: bool = False):
        self.dataset: Any = dataset
        self.report, self.part, self.strict, self.named = Path(report), part, strict, 0

    def __getattr__(self, name: str):
        if name in GuardedDataset.OWN or name.startswith('__'):  # not there yet, as in unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value) -> None:
        object.__setattr__(self if name in GuardedDataset.OWN else self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int):
        key = getattr(index, 'key', None)
        if key is not None:
            seed_from(key)
        index, others = int(index), None
        for _ in range(IN_A_ROW):
            try:
                return self.dataset[index]
            except Exception as error:  # of a decoder, a transform, or the check of a sample
                text = self._describe(index, error)
            if self.strict:
                raise BadSample(f'{text} (--strict-data)')
            with self.report.open('a') as file:
                file.write(json.dumps(dict(part=self.part, index=index, what=text)) + '\n')
            if self.named < NAMED:
                self.named += 1
                print_log(f'left out: {text}', logger='current', level=logging.WARNING)
            if self.part != 'train':
                return None
            others = others or np.random.default_rng(key)
            index = int(others.integers(len(self)))
        raise BadSample(f'{IN_A_ROW} samples in a row cannot be used; the last one: {text}')

    def _describe(self, index: int, error: Exception) -> str:
        try:
            name = str(self.dataset.get_data_info(index)['img_path'])
        except Exception:
            name = f'sample {index}'
        return f'{name}: {first_line(error).replace(name, "").strip(" :")}'


class GuardedLoader(DataLoader):
    """A DataLoader that drops batches that are None, and whose workers end with the process."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        if self.num_workers:  # the last function registered is called first
            atexit.unregister(end_workers)
            atexit.register(end_workers)
        return (batch for batch in batches if batch is not None)


def end_workers() -> None:
    """Kills leftover workers at exit.

    multiprocessing would send them SIGTERM, which they ignore (`start_worker`), and wait for ever.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a killed worker
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def collate_rest(collate: Callable, samples: Sequence):
    """``collate`` of the samples that are not None; None if there are none."""
    rest = [sample for sample in samples if sample is not None]
    return collate(rest) if rest else None


def start_worker(init: Callable | None, number: int) -> None:
    """``init`` of a loader's worker, which from then on leaves signals to the main process.

    Launchers, shells and schedulers signal all processes of a run; without its workers the main
    process could not write its checkpoint.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if init is not None:
        init(number)


def guarded_loader(loader: DataLoader, *, report: str | os.PathLike, part: str,
                   strict: bool = False, seed: int | None = None, endless: bool = False) \
        -> DataLoader:
    """mmengine's loader of a `GuardedDataset`, with a ``seed`` in `SeededBatches`."""
    settings = {name: getattr(loader, name) for name in (
        'num_workers', 'pin_memory', 'timeout', 'multiprocessing_context', 'prefetch_factor',
        'persistent_workers')}
    return GuardedLoader(
        GuardedDataset(loader.dataset, report=report, part=part, strict=strict),
        batch_sampler=loader.batch_sampler if seed is None else SeededBatches(
            loader.batch_sampler, seed=seed, endless=endless),
        collate_fn=loader.collate_fn if part == 'train' else partial(
            collate_rest, loader.collate_fn),
        worker_init_fn=partial(start_worker, loader.worker_init_fn), **settings)
