"""Reads damaged and hostile files, each with a limit of time and memory.

``benchmarks/reliability.py --parts files`` does so with 1,200 files.
"""
from __future__ import annotations

import multiprocessing
import os
import random
import resource
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch
from hostile import hostile
from mutants import mutants, sound

from lape_mm.checkpoints.files import CheckpointError
from lape_mm.checkpoints.loader import CONFIGS, load_from_file

SECONDS = 60  # for one file; one that hangs does so for good
MEMORY = 768 * 2 ** 20  # bytes beyond what the process has before; no file is larger than 4 MiB
GOOD = ('refused', 'read')
BAD = ('executed', 'hung', 'killed', 'another error', 'more than a line', 'unnamed', 'no dict')


@dataclass(frozen=True)
class Outcome:
    """The result of reading a file (one of GOOD or BAD) and the message."""

    kind: str
    name: str
    result: str
    message: str


def files(canary: Path, seed: int, most_hostile: int | None = None) \
        -> Iterator[tuple[str, str, bytes]]:
    """Endless files as kind, name and content: sound ones, hostile ones, then mutants.

    Args:
        canary: see `hostile`.
        seed: of the sample and the mutants.
        most_hostile: number of hostile files to sample; None for all (some 200).
    """
    rng, good, bad = random.Random(seed), sound(), hostile(canary)
    if most_hostile is not None:
        bad = rng.sample(list(bad), most_hostile)
    return chain((('sound', name, content) for name, content in good.items()), bad,
                 mutants(rng, good))


def fuzz(chosen: Iterable[tuple[str, str, bytes]], folder: Path, canary: Path) -> list[Outcome]:
    """Reads each file in a worker, which is replaced when it dies or hangs.

    Args:
        chosen: kind, name and content.
        folder: for the files, which are written one after the other.
        canary: an empty folder; whatever appears there was executed.
    """
    outcomes, worker = [], None
    for number, (kind, name, content) in enumerate(chosen):
        path = folder / f'{number}_{name}'
        path.write_bytes(content)
        if worker is None:
            ours, theirs = multiprocessing.Pipe()
            worker = multiprocessing.get_context('fork').Process(
                target=_work, args=(theirs, folder), daemon=True)
            worker.start()
            theirs.close()
        result, message = 'killed', ''
        try:
            ours.send(str(path))
            if ours.poll(SECONDS):
                result, message = ours.recv()
            else:
                result = 'hung'
        except (EOFError, OSError):
            pass
        if result in ('killed', 'hung'):
            worker.kill()
            worker.join()
            message, worker = f'{result} (exit code {worker.exitcode})', None
        for trace in canary.iterdir():
            result, message = 'executed', f'{trace} is there'
            trace.rmdir() if trace.is_dir() else trace.unlink()
        outcomes.append(Outcome(kind, path.name, result, message))
        path.unlink()
    if worker is not None:
        worker.kill()
        worker.join()
    return outcomes


def _work(connection, folder: Path) -> None:
    """Reads the files that arrive by the connection, until it is killed."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    with open('/proc/self/statm') as file:
        now = int(file.read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    while True:
        connection.send(_read(connection.recv()))


def _read(path: str) -> tuple[str, str]:
    try:
        content = load_from_file(path, 'cpu')
    except CheckpointError as error:
        message = str(error)
        if not message.startswith(path):
            return 'unnamed', message
        return ('refused' if message.isprintable() else 'more than a line'), message
    except BaseException as error:
        return 'another error', repr(error)[:500]
    return ('read' if isinstance(content, Mapping) and not _configs(content) else 'no dict'), ''


def _configs(content: Mapping) -> bool:
    """Whether it still has config text that mmengine would run."""
    for *outer, name in CONFIGS:
        entry = content
        for key in outer:
            entry = entry.get(key) if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping) and name in entry:
            return True
    return False


def run(count: int, seed: int, folder: Path, most_hostile: int | None = None) -> list[Outcome]:
    """Reads the first ``count`` of `files`, in an empty folder."""
    canary, place = folder / 'canary', folder / 'files'
    canary.mkdir()
    place.mkdir()
    return fuzz(islice(files(canary, seed, most_hostile), count), place, canary)
