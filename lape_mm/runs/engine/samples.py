"""Seeds each sample by its place in the run, and handles bad samples.

The augmentation of an image is seeded by (run seed, epoch, batch, place in the total batch).
It does not depend on kills, loader workers or the number of processes.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from torch.utils.data import DataLoader, Dataset, Sampler

from lape_mm.runs.errors import RunError
from lape_mm.wording import first_line

IN_A_ROW = 20  # bad samples in a row that end the run


class BadSample(RunError):
    """A sample that cannot be used; the message names the file and the reason."""

    def __init__(self, text: str):  # from a worker, after its traceback
        super().__init__(text.strip().splitlines()[-1].split('BadSample: ')[-1], own=True)


class Draw(NamedTuple):
    """A sample's index in the data set, and the integers that seed its augmentation."""

    sample: int
    key: tuple[int, ...]


def seed_from(key: Sequence[int], devices: bool = False) -> None:
    """Seeds Python's, NumPy's and torch's global generators, with ``devices`` also the GPUs'."""
    python, numpy, ours = np.random.SeedSequence(key).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)
    # torch.manual_seed initialises GPUs, which workers must not do
    (torch.manual_seed if devices else torch.default_generator.manual_seed)(ours)


class SeededBatches(Sampler):
    """Wraps a batch sampler to yield lists of `Draw`; ``endless`` for iteration-based loops.

    The next pass yields the batches of ``epoch``, except the first ``skip``.
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
    """Wraps a data set: seeds each `Draw` and reports bad samples, but otherwise acts like it.

    If ``part`` is 'train', another sample replaces a bad one; otherwise it becomes None. Each bad
    sample gets a JSON line in the file ``report``; with ``strict``, it raises BadSample instead.
    """

    OWN = ('dataset', 'report', 'part', 'strict')

    def __init__(self, dataset: Dataset, *, report: str | os.PathLike, part: str,
                 strict: bool = False):
        self.dataset: Any = dataset
        self.report, self.part, self.strict = Path(report), part, strict

    def __getattr__(self, name: str):
        if name in GuardedDataset.OWN or name.startswith('__'):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value) -> None:
        object.__setattr__(self if name in GuardedDataset.OWN else self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draw: Draw | int):
        index, key = draw if isinstance(draw, Draw) else (draw, None)
        if key is not None:
            seed_from(key)
        others, index = np.random.default_rng(key), int(index)
        for _ in range(IN_A_ROW):
            try:
                return self.dataset[index]
            except Exception as error:  # from a decoder, a transform or `check_sample`
                text = self._report(index, error)
            if self.part != 'train':
                return None
            index = int(others.integers(len(self)))
        raise BadSample(f'{IN_A_ROW} samples in a row cannot be used; the last one: {text}')

    def _report(self, index: int, error: Exception) -> str:
        try:
            name = str(self.dataset.get_data_info(index)['img_path'])
        except Exception:
            name = f'sample {index}'
        text = f'{name}: {first_line(error).replace(name, "").strip(" :")}'
        if self.strict:
            raise BadSample(f'{text} (--strict-data)')
        with self.report.open('a') as file:
            file.write(json.dumps(dict(part=self.part, index=index, what=text)) + '\n')
        print_log(f'left out: {text}', logger='current', level=logging.WARNING)
        return text


class GuardedLoader(DataLoader):
    """A copy of a loader, with its data set guarded. Its workers end with the main process.

    With a ``seed``, its batches are `SeededBatches`. Empty batches are left out.
    """

    def __init__(self, loader: DataLoader, *, seed: int | None = None, endless: bool = False,
                 **guard):
        settings = {name: getattr(loader, name) for name in (
            'num_workers', 'pin_memory', 'timeout', 'multiprocessing_context', 'prefetch_factor',
            'persistent_workers')}
        super().__init__(
            GuardedDataset(loader.dataset, **guard),
            batch_sampler=loader.batch_sampler if seed is None else SeededBatches(
                loader.batch_sampler, seed=seed, endless=endless),
            collate_fn=partial(collate_rest, loader.collate_fn),
            worker_init_fn=partial(start_worker, loader.worker_init_fn), **settings)

    def __iter__(self) -> Any:
        batches = super().__iter__()
        if self.num_workers:  # atexit calls the last registered function first
            atexit.unregister(kill_workers)
            atexit.register(kill_workers)
        return (batch for batch in batches if batch is not None)


def kill_workers() -> None:
    """Kills leftover workers at exit: they ignore multiprocessing's SIGTERM (`start_worker`)."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for a killed worker
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def start_worker(init: Callable | None, number: int) -> None:
    """Initialises a worker. It ignores SIGINT and SIGTERM: the current iteration needs its data."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if init is not None:
        init(number)


def collate_rest(collate: Callable, samples: Sequence):
    """Collates the samples that are not None; None if there are none."""
    rest = [sample for sample in samples if sample is not None]
    return collate(rest) if rest else None
