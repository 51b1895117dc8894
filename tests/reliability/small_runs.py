"""Small runs of the quick-start configs, each in a process of its own that may be killed.

Processes are forked, so that a run does not import torch and the toolboxes anew: seconds become
tenths.
"""
from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

import torch

from lape_mm.runs.errors import exit_status

ROOT = Path(__file__).parents[2]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
# what all of them have in common: a few images of a few pixels, checkpoints all the time
SMALL = {'scenes.num_train': 12, 'scenes.num_val': 6, 'train_dataloader.batch_size': 3,
         'default_hooks.visualization.interval': 1000, 'default_hooks.logger.interval': 1,
         'default_hooks.checkpoint.max_keep_ckpts': 2}
EPOCHS = {'train_cfg.max_epochs': 4, 'train_cfg.val_interval': 2,
          'default_hooks.checkpoint.interval': 1}
ITERATIONS = {'train_cfg.max_iters': 12, 'train_cfg.val_interval': 6,
              'default_hooks.checkpoint.interval': 3}
TASKS = {'deit': EPOCHS, 'mask_rcnn': EPOCHS, 'upernet': ITERATIONS, 'segmenter': ITERATIONS}


def arguments(task: str, work_dir: Path, *, resume: str | None = None, options: Mapping = {},
              joining: str = 'mpvg', **others) -> Namespace:
    """What tools/train.py would have parsed."""
    given = dict(amp=None, auto_scale_lr=False, strict_data=False, launcher='none',
                 trust_checkpoint=False)
    return Namespace(config=str(ROOT / f'configs/quickstart/{task}.py'), work_dir=str(work_dir),
                     resume=resume, joining=joining,
                     cfg_options={**SMALL, **TASKS[task], **options}, **{**given, **others})


def preload(scopes: Iterable[str] = tuple(SCOPES.values())) -> None:
    """Imports the toolboxes, once for all children."""
    import_module('lape_mm.runs.session')
    for scope in dict.fromkeys(scopes):
        for part in ('datasets', 'engine', 'evaluation', 'models', 'visualization'):
            import_module(f'{scope}.{part}')


def train(given: Namespace) -> int:
    """tools/train.py in this process: its exit status."""
    from lape_mm.runs.session import train as run
    torch.set_num_threads(1)
    return exit_status(lambda: run(given))


def fork(work: Callable[[], int], log: Path) -> int:
    """Starts ``work`` in a child, whose output goes to ``log``; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        os.setsid()  # its loader workers end with it
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, 'w', buffering=1) for number in (1, 2))
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, limit: float = 300.) -> int:
    """Its exit status, minus the signal that ended it.

    Raises:
        TimeoutError: it is still there after ``limit`` seconds; it is killed.
    """
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(.01)
    kill(child)
    raise TimeoutError(f'still running after {limit} s')


def kill(child: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a child and what it has started."""
    try:
        os.killpg(child, number)
    except ProcessLookupError:
        pass


def run(given: Namespace, log: Path, limit: float = 300.) -> int:
    """`train` in a child, to its end: its exit status."""
    return wait(fork(lambda: train(given), log), limit)


def digest(checkpoint: Path) -> str:
    """Of all weights and of the optimizer's state: equal if and only if they are, bit for bit."""
    content = torch.load(checkpoint, weights_only=False)
    found = hashlib.sha256()

    def add(value) -> None:
        if torch.is_tensor(value):
            found.update(str((value.dtype, tuple(value.shape))).encode())
            found.update(value.contiguous().numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in value:
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())
    for key in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers'):
        add(content.get(key))
    return found.hexdigest()


def last(work_dir: Path) -> Path:
    """The checkpoint of the end of a run."""
    return max([*work_dir.glob('epoch_*.pth'), *work_dir.glob('iter_*.pth')],
               key=lambda path: path.stat().st_mtime_ns)
