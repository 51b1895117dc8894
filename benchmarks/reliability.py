#!/usr/bin/env python
"""What runs, files, sizes and configs survive: kills, hostile files, odd images, mistakes.

    python benchmarks/reliability.py                 # all of it, about half an hour on two cores
    python benchmarks/reliability.py --parts kills --kills 5

Kills: each quick-start task, made small, is killed at random moments, every fourth time while it
writes a checkpoint, and resumed; it survives where weights, optimizer and schedulers of its end are
bit for bit those of the run that was not killed.
"""
import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import measure

sys.path.insert(0, str(measure.ROOT / 'tests/reliability'))
import small_runs  # noqa: E402


def kill_once(task: str, number: int, length: float, folder: Path) -> str:
    """'survived' or what became of a run that was killed."""
    place = folder / f'{task}_{number}'
    place.mkdir()
    moment = small_runs.writing if number % 4 == 0 else \
        small_runs.after(random.Random(f'{task} {number}').uniform(0, length))
    try:
        found = small_runs.kill_and_resume(task, place, moment)
    except Exception as error:
        return f'lost: {str(error).splitlines()[0]}'
    whole = small_runs.digest(small_runs.last(folder / task))
    return 'survived' if found == whole else 'lost: other weights'


def kills(count: int, processes: int, folder: Path) -> list[dict]:
    """``count`` kills of each task."""
    small_runs.preload()
    rows = []
    for task in small_runs.TASKS:
        start = time.monotonic()
        if small_runs.run(small_runs.arguments(task, folder / task), folder / f'{task}.log'):
            raise RuntimeError((folder / f'{task}.log').read_text()[-2000:])
        length = time.monotonic() - start
        with ProcessPoolExecutor(processes, mp_context=get_context('fork')) as pool:
            found = list(pool.map(kill_once, [task] * count, range(count), [length] * count,
                                  [folder] * count))
        for text in found:
            if text != 'survived':
                print(task, text)
        survived = found.count('survived')
        rows.append(dict(what=f'kills of {task}', tried=count, survived=survived,
                         lost=count - survived, executed=0))
        print(rows[-1], flush=True)
    return rows


PARTS = {'kills': kills}
