#!/usr/bin/env python
"""Reliability: killed runs, hostile files, odd image sizes and mistakes in configs.

    python benchmarks/reliability.py                        # all of it
    python benchmarks/reliability.py --parts kills --kills 5

Kills: a small run of each quick-start task is killed at random moments, every fourth time while it
writes a checkpoint, and resumed. It survives if its final weights, optimizer and schedulers equal
those of an unbroken run bit for bit. Files: a damaged or hostile checkpoint survives if it is read
as what it is, or refused in one line that names it. Sizes and mistakes are the cases of
tests/reliability/test_inputs.py and test_mistakes.py; a case survives if its test passes.
"""
import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import measure
import pytest

from lape_mm.runs.results import markdown

sys.path.insert(0, str(measure.ROOT / 'tests/reliability'))
import small_runs  # noqa: E402


def kill_once(task: str, number: int, length: float, folder: Path) -> str:
    """Kills and resumes one run; 'survived', or what was lost."""
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


def row(what: str, tried: int, survived: int, executed: int = 0, hung: int = 0) -> dict:
    """A row of the table; the rest of ``tried`` is lost."""
    return dict(what=what, tried=tried, survived=survived,
                lost=tried - survived - executed - hung, executed=executed, hung=hung)


def kills(args, folder: Path) -> list[dict]:
    """Kills ``args.kills`` runs of each task."""
    os.environ['LAPE_MM_SCENES'] = str(folder / 'scenes')
    count = args.kills
    rows = []
    for task in small_runs.TASKS:
        start = time.monotonic()
        if small_runs.run(small_runs.arguments(task, folder / task), folder / f'{task}.log'):
            raise RuntimeError((folder / f'{task}.log').read_text()[-2000:])
        length = time.monotonic() - start
        with ProcessPoolExecutor(args.processes, mp_context=get_context('spawn')) as pool:
            found = list(pool.map(kill_once, [task] * count, range(count), [length] * count,
                                  [folder] * count))
        for text in found:
            if text != 'survived':
                print(task, text)
        rows.append(row(f'kills of {task}, resumed bit for bit', count, found.count('survived')))
    return rows


def files(args, folder: Path) -> list[dict]:
    """Reads damaged and hostile checkpoints."""
    import fuzz
    outcomes = fuzz.run(args.files, args.seed, folder)
    found = Counter(outcome.result for outcome in outcomes)
    return [row('damaged and hostile files', len(outcomes),
                sum(found[result] for result in fuzz.GOOD), found['executed'], found['hung'])]


class Outcomes:
    """A pytest plugin that counts outcomes."""

    def __init__(self):
        self.found: Counter = Counter()

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == 'call' or report.skipped or report.failed:
            self.found[report.outcome] += 1


def cases(what: str, file: str, chosen: str) -> list[dict]:
    """Runs the chosen tests of a file, long ones included."""
    outcomes = Outcomes()
    pytest.main(['-q', '-m', 'long or not long', '-k', chosen, '-p', 'no:cacheprovider',
                 str(measure.ROOT / 'tests/reliability' / file)], plugins=[outcomes])
    found = outcomes.found
    return [row(what, found['passed'] + found['failed'], found['passed'])]


PARTS = {
    'kills': kills,
    'files': files,
    'sizes': lambda args, folder: cases('image sizes', 'test_inputs.py', 'test_sizes'),
    'mistakes': lambda args, folder: cases('mistakes in configs', 'test_mistakes.py',
                                           'a_mistake_ends')}


def main() -> int:
    """Tries, prints and writes; 1 if anything is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, default=measure.ROOT / 'benchmarks/reliability.json')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS))
    parser.add_argument('--kills', type=int, default=20, help='of each task')
    parser.add_argument('--processes', type=int, default=2, help='runs at the same time')
    parser.add_argument('--files', type=int, default=1200)
    parser.add_argument('--seed', type=int, default=0, help='of the damaged files')
    args = parser.parse_args()
    rows, taken = [], {}
    for part in args.parts:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            rows += PARTS[part](args, Path(folder))
        taken[part] = round(time.monotonic() - start)
    args.out.write_text(json.dumps(dict(
        **measure.described(), date=str(date.today()), seconds=taken, reliability=rows),
        indent=1) + '\n')
    print(markdown(list(rows[0]), [list(map(str, entry.values())) for entry in rows]))
    return int(any(entry['survived'] < max(entry['tried'], 1) for entry in rows))


if __name__ == '__main__':
    sys.exit(main())
