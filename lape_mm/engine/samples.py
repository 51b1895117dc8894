"""Samples whose randomness hangs on their place in the run alone, and what is done with bad ones.

A run that is resumed is the run that would have been only if each image is augmented as it would
have been. Here the seed of an augmentation is a function of (seed, epoch, batch, place in the
batch), so that workers, kills and the number of processes do not matter: place p of process r of W
is place p * W + r of the batch of all processes.
"""
from __future__ import annotations

import atexit
import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from mmengine.dist import get_dist_info
from torch.utils.data import DataLoader, Dataset, Sampler

IN_A_ROW = 20  # bad samples: then it is not the samples


class BadSample(Exception):
    """A sample that cannot be used; the message names file and reason."""


class Draw(int):
    """An index of a dataset, with what seeds its augmentation.

    Args:
        index: as a sampler yields it.
        key: (seed, epoch, batch, place).
    """

    key: tuple

    def __new__(cls, index: int, key: Sequence[int]):
        made = super().__new__(cls, index)
        made.key = tuple(key)
        return made

    def __reduce__(self):
        return Draw, (int(self), self.key)


def seed_from(key: Sequence[int], devices: bool = False) -> None:
    """Seeds Python's, NumPy's and torch's global generators, with ``devices`` GPUs' as well.

    Args:
        key: integers of at least 0; other keys give independent draws.
    """
    python, numpy, ours = np.random.SeedSequence(key).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    # torch.manual_seed asks for every kind of device, which workers need not
    (torch.manual_seed if devices else torch.default_generator.manual_seed)(ours)


class SeededBatches(Sampler):
    """A batch sampler whose indices are `Draw`.

    Args:
        batches: the batch sampler that it wraps.
        seed: of the run.
        endless: starts the next epoch by itself, for loops that count iterations.

    Attributes:
        epoch: that the next iteration over it starts with.
        skip: batches that it passes over, which a resumed run has been trained on.
    """

    def __init__(self, batches: Any, *, seed: int, endless: bool = False):
        self.batches, self.seed, self.endless = batches, seed, endless
        self.epoch = self.skip = 0

    @property
    def sampler(self):
        """Of the single indices; mmengine's hooks look for it."""
        return self.batches.sampler

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
    """A dataset that seeds what it is asked for by a `Draw`, and reports samples it cannot read.

    In training such a sample is replaced by another one, elsewhere by None. All else is the
    dataset's own: attributes are read and set there.

    Args:
        dataset: any dataset of the toolboxes.
        report: a file that takes one line of JSON a bad sample, from all processes.
        part: 'train', 'val' or 'test'.
        strict: raise instead.

    Raises:
        BadSample: with ``strict``, or when one replacement after the other is bad.
    """

    OWN = ('dataset', 'report', 'part', 'strict')

    def __init__(self, dataset: Dataset, *, report: str | os.PathLike, part: str,
                 strict: bool = False):
        self.dataset: Any = dataset
        self.report, self.part, self.strict = Path(report), part, strict

    def __getattr__(self, name: str):
        if name in GuardedDataset.OWN or name.startswith('__'):  # not there yet, as in unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value) -> None:
        target = self if name in GuardedDataset.OWN else self.dataset
        object.__setattr__(target, name, value)

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
            if self.part != 'train':
                return None
            others = others or np.random.default_rng(key)
            index = int(others.integers(len(self)))
        raise BadSample(f'{IN_A_ROW} samples in a row cannot be used; the last one: {text}')

    def _describe(self, index: int, error: Exception) -> str:
        try:
            info = self.dataset.get_data_info(index)
            name = info.get('img_path') or f'sample {index}'
        except Exception:
            name = f'sample {index}'
        line = (str(error).strip().splitlines() or [''])[0].replace(name, '').strip(' :')
        return f'{name}: {line or type(error).__name__}'


class GuardedLoader(DataLoader):
    """A DataLoader that leaves out a batch that is None, and whose workers end with the process."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        if self.num_workers:
            WITH_WORKERS.add(batches)
            # the last to be registered is the first to run
            atexit.unregister(end_workers)
            atexit.register(end_workers)
        return (batch for batch in batches if batch is not None)


WITH_WORKERS: WeakSet = WeakSet()  # what loaders with workers iterate by
os.register_at_fork(after_in_child=WITH_WORKERS.clear)  # they are the parent's


def end_workers() -> None:
    """Ends what workers are left when the process ends.

    torch does so where nothing refers to their loader any more. Otherwise multiprocessing sends
    them SIGTERM, which they ignore (`start_worker`), and waits for them for ever.
    """
    for batches in list(WITH_WORKERS):
        with suppress(Exception):  # the others have to end all the same
            batches.__del__()
        for worker in batches._workers:
            if worker.is_alive():
                worker.kill()


def collate_rest(collate: Callable, samples: Sequence):
    """``collate`` of those samples that are there; None where there are none."""
    rest = [sample for sample in samples if sample is not None]
    return collate(rest) if rest else None


def start_worker(init: Callable | None, number: int) -> None:
    """``init`` of a loader's worker, which then leaves signals to the main process.

    A launcher, a shell and a scheduler send them to all processes of a run; a worker that ends
    would end the run before it has written its checkpoint. Workers end with the main process.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if init is not None:
        init(number)


def guarded_loader(loader: DataLoader, *, report: str | os.PathLike, part: str,
                   strict: bool = False, seed: int | None = None, endless: bool = False) \
        -> DataLoader:
    """A DataLoader of the same samples and settings, by a `GuardedDataset`.

    Args:
        loader: as mmengine has built it.
        report, part, strict: see `GuardedDataset`.
        seed: for training: batches are `SeededBatches`.
        endless: see `SeededBatches`.
    """
    dataset = GuardedDataset(loader.dataset, report=report, part=part, strict=strict)
    batches = loader.batch_sampler if seed is None else SeededBatches(
        loader.batch_sampler, seed=seed, endless=endless)
    settings = {name: getattr(loader, name) for name in (
        'num_workers', 'pin_memory', 'timeout', 'multiprocessing_context', 'prefetch_factor',
        'persistent_workers')}
    settings['worker_init_fn'] = partial(start_worker, loader.worker_init_fn)
    collate = loader.collate_fn if part == 'train' else partial(collate_rest, loader.collate_fn)
    return GuardedLoader(dataset, batch_sampler=batches, collate_fn=collate, **settings)
