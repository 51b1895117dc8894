"""Small runs of the quick-start configs, each in a process that may be killed.

Processes are forked from a server that has imported torch and the toolboxes, which saves seconds.
The tests' own process cannot be forked, because autograd has started threads there. A child can
only call functions of a module.
"""
from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from lape_mm.runs.errors import exit_status

ROOT = Path(__file__).parents[2]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
# a few small images, and many checkpoints
SMALL = {'scenes.num_train': 12, 'scenes.num_val': 6, 'train_dataloader.batch_size': 3,
         'default_hooks.visualization.interval': 1000, 'default_hooks.logger.interval': 1,
         'default_hooks.checkpoint.max_keep_ckpts': 2}
EPOCHS = {'train_cfg.max_epochs': 4, 'train_cfg.val_interval': 2,
          'default_hooks.checkpoint.interval': 1}
ITERATIONS = {'train_cfg.max_iters': 12, 'train_cfg.val_interval': 6,
              'default_hooks.checkpoint.interval': 3}
SERVER = multiprocessing.get_context('forkserver')
SERVER.set_forkserver_preload([
    'lape_mm.runs.session', *(f'{scope}.{part}' for scope in dict.fromkeys(SCOPES.values())
                              for part in ('datasets', 'engine', 'evaluation', 'models',
                                           'visualization'))])
TASKS = {'deit': EPOCHS, 'mask_rcnn': EPOCHS, 'upernet': ITERATIONS, 'segmenter': ITERATIONS}


def arguments(task: str, work_dir: Path, *, resume: str | None = None, options: Mapping = {},
              joining: str = 'mpvg', **others) -> Namespace:
    """The arguments that tools/train.py would parse."""
    given = dict(amp=None, auto_scale_lr=False, strict_data=False, launcher='none',
                 trust_checkpoint=False)
    return Namespace(config=str(ROOT / f'configs/quickstart/{task}.py'), work_dir=str(work_dir),
                     resume=resume, joining=joining,
                     cfg_options={**SMALL, **TASKS[task], **options}, **{**given, **others})


def setting(task: str, key: str, **changes) -> dict:
    """The entry of a config at a dotted key, with changes."""
    from mmengine.config import Config
    node = Config.fromfile(str(ROOT / f'configs/quickstart/{task}.py'))
    for part in key.split('.'):
        node = node[part]
    return {**node.to_dict(), **changes}


def train(given: Namespace, before: Callable[[], object] | None = None) -> int:
    """Runs tools/train.py in this process, after ``before``; its exit status."""
    from lape_mm.runs.session import train as run
    if before:
        before()
    torch.set_num_threads(1)
    return exit_status(lambda: run(given))


def train_rank(rank: int, processes: int, port: int, *args) -> int:
    """`train` as torchrun starts it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes),
                      MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    return train(*args)


def fork(work: Callable[[], int], log: Path) -> BaseProcess:
    """Starts ``work`` in a child, whose output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = SERVER.Process(target=_child, args=(work, log, dict(os.environ)))
    child.start()
    return child


def _child(work: Callable[[], int], log: Path, environment: dict[str, str]) -> None:
    os.setsid()  # so that its loader workers are killed with it
    os.environ.update(environment)
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, 'w', buffering=1) for number in (1, 2))
    status = 99
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: BaseProcess, limit: float = 300.) -> int:
    """Its exit status, or minus the signal that ended it.

    Raises:
        TimeoutError: after ``limit`` seconds; the child is killed.
    """
    child.join(limit)
    if child.exitcode is None:
        kill(child)
        raise TimeoutError(f'still running after {limit} s')
    return child.exitcode


def kill(child: BaseProcess, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a child and its own children."""
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def run(given: Namespace, log: Path, limit: float = 300.,
        before: Callable[[], object] | None = None) -> int:
    """`train` in a child; its exit status."""
    return wait(fork(partial(train, given, before), log), limit)


def kill_and_resume(task: str, folder: Path, moment: Callable[[Path], None], **given) -> str:
    """Kills a run and resumes it to its end; the `digest` of its last checkpoint.

    Args:
        task: of `TASKS`.
        folder: for its work folder ``killed`` and a log.
        moment: takes the work folder and returns when it is time to kill.
        given: see `arguments`.

    Raises:
        RuntimeError: the resumed run failed; with its output.
    """
    work_dir, log = folder / 'killed', folder / 'killed.log'
    child = fork(partial(train, arguments(task, work_dir, **given)), log)
    moment(work_dir)
    kill(child)
    wait(child)
    if status := run(arguments(task, work_dir, resume='auto', **given), log):
        raise RuntimeError(f'status {status}: {log.read_text()}')
    return digest(last(work_dir))


def after(seconds: float) -> Callable[[Path], None]:
    """A moment for `kill_and_resume`."""
    return lambda work_dir: time.sleep(seconds)


def first_checkpoint(work_dir: Path) -> None:
    """A moment for `kill_and_resume`: a little after the first checkpoint."""
    until(lambda: [*work_dir.glob('epoch_*.pth'), *work_dir.glob('iter_*.pth')])
    time.sleep(.1)


def writing(work_dir: Path) -> None:
    """A moment for `kill_and_resume`: a checkpoint is being written."""
    until(lambda: list(work_dir.glob('*.part')))


def until(there: Callable[[], object], limit: float = 120.) -> None:
    """Waits until ``there`` returns something true."""
    end = time.monotonic() + limit
    while not there():
        if time.monotonic() > end:
            raise TimeoutError('the moment to kill has not come')
        time.sleep(.0005)


def signal_itself(number: int, moment: str) -> None:
    """In a child: sends a signal in the middle of an epoch or of a validation."""
    from mmengine.hooks import CheckpointHook, Hook
    wrapped = {'mid-epoch': 'before_train_iter', 'validation': 'before_val_iter'}[moment]

    def send(self, runner, *args, **kwargs):
        if isinstance(self, CheckpointHook) and runner.iter > runner.max_iters // 3 \
                and not getattr(send, 'sent', False):
            send.sent = True
            os.kill(0, number)  # to the loader workers, too, as launchers do
    setattr(Hook, wrapped, send)


def fill_disk_at(name: str) -> None:
    """In a child: the disk is full when a file of that name is written."""
    from lape_mm.runs.engine.safe_checkpoint import PART, WholeFileBackend
    put = WholeFileBackend.put

    def full(self, obj, filepath):
        if str(filepath).endswith(name):
            os.symlink('/dev/full', f'{filepath}{PART}')
        return put(self, obj, filepath)
    WholeFileBackend.put = full


def run_all(given: Namespace, log: Path, processes: int, limit: float = 300.,
            before: Callable[[], object] | None = None) -> list[int]:
    """`run` in several processes of torch.distributed, with gloo; their exit statuses."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    given = Namespace(**{**vars(given), 'launcher': 'pytorch'})
    children = [fork(partial(train_rank, rank, processes, port, given, before), log)
                for rank in range(processes)]
    return [wait(child, limit) for child in children]


def digest(checkpoint: Path) -> str:
    """A hash of all weights, the optimizer's state and the schedules, bit for bit."""
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
    """The last checkpoint of a run."""
    return max([*work_dir.glob('epoch_*.pth'), *work_dir.glob('iter_*.pth')],
               key=lambda path: path.stat().st_mtime_ns)
