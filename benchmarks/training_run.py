"""The first iterations of a config's training, in a process of their own, by the clock.

    python benchmarks/training_run.py '{"config": ..., "iterations": 1}'

does what tools/train.py does, stops after so many iterations and prints a line of JSON;
`training_run` calls it.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ('deit', 'mask_rcnn', 'upernet', 'segmenter')


def training_run(config: str, iterations: int, threads: int, joining: str | None = None,
                 options: Mapping | None = None) -> dict:
    """Runs it; the data have to be there already, or the first run draws them.

    Returns:
        ``first``: seconds from the start of the process to the end of the first iteration;
        ``time`` and ``data_time``: seconds of each iteration, and those of them that were spent
        waiting for the loader, as mmengine logs them; ``images`` in each iteration.

    Raises:
        RuntimeError: the run failed; with the end of what it said.
    """
    given = json.dumps(dict(config=config, iterations=iterations, joining=joining,
                            threads=threads, options=dict(options or {}), start=time.time()))
    with tempfile.TemporaryFile('w+') as log:
        done = subprocess.run([sys.executable, __file__, given], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=log,
                              env={**os.environ, 'OMP_NUM_THREADS': str(threads)})
        log.seek(0)
        words = log.read()
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"first"')]
    if not lines:
        raise RuntimeError(f'{config}: {(done.stdout + words).strip()[-2000:]}')
    return json.loads(lines[-1])


def quickstart(task: str) -> str:
    """The config's path."""
    return str(ROOT / f'configs/quickstart/{task}.py')


def run(config: str, iterations: int, joining: str | None, threads: int, options: dict,
        start: float) -> None:
    """The child process: trains, and leaves in the middle."""
    from lape_mm.runs import session  # as tools/train.py, whose imports count

    def stop(found: dict) -> None:
        print('\n' + json.dumps(found), flush=True)
        # at once: no checkpoint, and no goodbye of the workers
        os._exit(0)

    class Clock:
        """Stands for a hook: what follows each iteration."""

        def __init__(self):
            self.found = dict(first=None, time=[], data_time=[], images=None)

        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
            found = self.found
            if found['first'] is None:
                found['first'] = time.time() - start
                found['images'] = len(data_batch['inputs'])
            for name in ('time', 'data_time'):
                found[name].append(runner.message_hub.get_scalar(f'train/{name}').current())
            if len(found['time']) == iterations:
                stop(found)

    build = session.build_runner

    def build_with_clock(cfg, mode):
        import torch
        from mmengine.hooks import Hook
        torch.set_num_threads(threads)
        runner = build(cfg, mode)
        hook = type('ClockHook', (Clock, Hook), {})()
        # last, after the hook that takes the times
        runner.register_hook(hook, priority='LOWEST')
        return runner

    session.build_runner = build_with_clock
    with tempfile.TemporaryDirectory() as folder:
        session.train(Namespace(config=config, work_dir=folder, resume=None, amp=None,
                                auto_scale_lr=False, joining=joining, cfg_options=options,
                                launcher='none'))
    raise RuntimeError(f'{config}: ended before {iterations} iterations')


if __name__ == '__main__':
    run(**json.loads(sys.argv[1]))
