#!/usr/bin/env python
"""Start-up: ``import lape_mm`` above its dependencies, and the time to the first iteration.

    python benchmarks/startup.py

Each in fresh processes. The import is timed in one process after torch, timm and mmengine; the
first iteration of a quick-start config is timed from the start of the process to its end, as
``python tools/train.py`` would have it, with the data drawn before.
"""
import subprocess
import sys

import measure
from measure import ROOT, bar, summary
from training_run import QUICKSTART, quickstart, training_run

IMPORT = '''
import time
start = time.perf_counter()
import torch, timm, mmengine
between = time.perf_counter()
import lape_mm
print(between - start, time.perf_counter() - between)
'''
BASE, OURS = 'torch, timm, mmengine', 'lape_mm above them'


def import_times() -> tuple[float, float]:
    """Seconds that the dependencies take, and lape_mm after them."""
    done = subprocess.run([sys.executable, '-c', IMPORT], cwd=ROOT, text=True, check=True,
                          capture_output=True)
    before, ours = map(float, done.stdout.split()[-2:])
    return before, ours


def main() -> int:
    """Measures, prints and writes; 1 where the bar is missed."""
    parser = measure.parser(__doc__, 'startup', rounds=5)
    parser.add_argument('--tasks', nargs='*', choices=QUICKSTART, default=['deit', 'mask_rcnn'])
    args = parser.parse_args()

    found: dict[str, list[float]] = {BASE: [], OURS: []}

    def imports() -> float:
        before, ours = import_times()
        found[OURS].append(ours)
        return before

    candidates = {BASE: imports}
    for task in args.tasks:
        candidates[f'first iteration of quickstart/{task}.py'] = lambda task=task: training_run(
            quickstart(task), 1, args.threads)['first']
    found.update(measure.interleave(candidates, args.rounds))
    found[OURS] = found[OURS][-args.rounds:]  # without the warm-up, which reads the files
    bars = [bar('import lape_mm above torch + timm + mmengine, s', summary(found[OURS]), .2)]
    measure.ratio_table('start-up', found, [BASE], 's')
    measure.bar_table(bars)
    measure.write(args.out, dict(
        claim=__doc__.splitlines()[0], **{**measure.describe(args), 'threads': args.threads},
        measured=found, bars=bars))
    return int(not all(row['holds'] for row in bars))


if __name__ == '__main__':
    sys.exit(main())
