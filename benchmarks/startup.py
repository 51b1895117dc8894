#!/usr/bin/env python
"""Start-up: `--help` of every tool, and the first training iteration against its imports.

    python benchmarks/startup.py

Each is a process of its own, timed from its start. The warm-up draws the data of
configs/quickstart/mask_rcnn.py. mmdet imports mmcv's operators, which `import lape_mm` provides
where mmcv has none.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

import measure
from measure import ROOT, bar, ratios

CONFIG = 'configs/quickstart/mask_rcnn.py'
SLOWEST, IMPORTS = 'slowest `--help`', 'import torch, mmengine and mmdet'
FIRST = 'first iteration of quickstart/mask_rcnn.py'
IMPORT = 'import lape_mm, torch, mmengine, mmdet.models, mmdet.datasets'
HELP = [*([str(path), '--help'] for path in sorted((ROOT / 'tools').glob('*.py'))),
        ['-m', 'lape_mm'], ['-m', 'lape_mm', 'train', '--help']]


def until(words: list[str], wanted: str, threads: int) -> float:
    """Seconds from the start of a Python process until a line of its output contains ``wanted``.

    The process and its workers are then killed.

    Raises:
        RuntimeError: the process ended without such a line; the message ends with its output.
    """
    output, start = [], time.perf_counter()
    with subprocess.Popen(
            [sys.executable, '-u', *words], cwd=ROOT, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, 'OMP_NUM_THREADS': str(threads)}) as process:
        for line in process.stdout:
            output.append(line)
            if wanted in line:
                seconds = time.perf_counter() - start
                os.killpg(process.pid, signal.SIGKILL)
                return seconds
    raise RuntimeError(f'{words}: {"".join(output)[-2000:]}')


def first_iteration(threads: int) -> float:
    """Seconds until tools/train.py logs the first iteration of `CONFIG`."""
    with tempfile.TemporaryDirectory() as folder:
        return until(['tools/train.py', CONFIG, '--work-dir', folder, '--cfg-options',
                      'default_hooks.logger.interval=1'], 'Epoch(train)', threads)


def main() -> int:
    """Measures, prints and writes; 1 if a figure misses its limit."""
    args = measure.parser(__doc__, rounds=5).parse_args()
    found = measure.interleave({
        SLOWEST: lambda: max(until(words, 'usage: ', args.threads) for words in HELP),
        IMPORTS: lambda: until(['-c', f'{IMPORT}; print("done")'], 'done', args.threads),
        FIRST: lambda: first_iteration(args.threads)}, args.rounds)
    return measure.write(args, 'startup', dict(
        claim='Start-up', measured={'start-up, s': found}, bases={FIRST: IMPORTS},
        bars=[bar(f'{SLOWEST}, s', found[SLOWEST], 1.),
              bar(f'{FIRST} / {IMPORTS}', ratios(found, FIRST, IMPORTS), 1.5)]))


if __name__ == '__main__':
    sys.exit(main())
