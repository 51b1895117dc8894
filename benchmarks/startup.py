#!/usr/bin/env python
"""Start-up: `--help` of every tool, and the first training iteration against its imports.

    python benchmarks/startup.py

Each in a process of its own, by the clock from the start of the process. The data of
configs/quickstart/mask_rcnn.py are drawn before, by the warm-up. mmdet imports mmcv's operators,
which `import lape_mm` provides where mmcv has none.
"""
import os
import subprocess
import sys
import time

import measure
from measure import ROOT, bar, ratio, summary
from training_run import quickstart, training_run

IMPORTS, FIRST = 'import torch, mmengine and mmdet', 'first iteration of quickstart/mask_rcnn.py'
IMPORT = ('import lape_mm, torch, mmengine, mmdet.models, mmdet.datasets, time; '
          'print(time.time())')
HELP = {f'{path.name} --help': (str(path), '--help')
        for path in sorted((ROOT / 'tools').glob('*.py'))}
HELP['python -m lape_mm'] = '-m', 'lape_mm'
HELP['python -m lape_mm train --help'] = '-m', 'lape_mm', 'train', '--help'


def help_time(words: tuple[str, ...]) -> float:
    """Seconds until a command has explained itself."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, text=True, capture_output=True)
    seconds = time.perf_counter() - start
    if 'usage: ' not in done.stdout + done.stderr:
        raise RuntimeError(f'{words}: {done.stderr[-2000:]}')
    return seconds


def import_time(threads: int) -> float:
    """Seconds from the start of a process to the end of its imports."""
    start = time.time()
    done = subprocess.run([sys.executable, '-c', IMPORT], cwd=ROOT, text=True, check=True,
                          capture_output=True, env={**os.environ, 'OMP_NUM_THREADS': str(threads)})
    return float(done.stdout.split()[-1]) - start


def main() -> int:
    """Measures, prints and writes; 1 where a bar is missed."""
    args = measure.parser(__doc__, 'startup', rounds=5).parse_args()
    found = measure.interleave({
        **{name: lambda words=words: help_time(words) for name, words in HELP.items()},
        IMPORTS: lambda: import_time(args.threads),
        FIRST: lambda: training_run(quickstart('mask_rcnn'), 1, args.threads)['first'],
    }, args.rounds)
    slowest = [max(times) for times in zip(*(found[name] for name in HELP))]
    bars = [bar('the slowest `--help`, s', summary(slowest), 1.),
            bar(f'{FIRST} / {IMPORTS}', ratio(found, FIRST, IMPORTS), 1.5)]
    measure.print_table('start-up', ['', 's'], [
        [name, measure.spread(summary(times))] for name, times in found.items()])
    measure.bar_table(bars)
    measure.write(args.out, dict(
        claim=__doc__.splitlines()[0], **{**measure.describe(args), 'threads': args.threads},
        measured=found, bars=bars))
    return int(not all(row['holds'] for row in bars))


if __name__ == '__main__':
    sys.exit(main())
