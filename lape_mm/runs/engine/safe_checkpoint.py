"""Writes only whole checkpoints, and one more when a run is interrupted."""
from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import torch
from mmengine.dist import all_reduce, barrier, is_distributed, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, EMAHook

from lape_mm.registry import HOOKS
from lape_mm.runs.errors import RunError

PART = '.part'  # suffix of a file that is being written
INTERRUPTED = 'interrupted.pth'


class WholeFileBackend(LocalBackend):
    """Replaces files in one step, and removes a file only after the next one is written.

    mmengine removes the old checkpoint first: a run killed in between would have none.
    """

    waiting: list[str] = []  # to be removed; shared, because mmengine makes a backend per file

    def put(self, obj: bytes, filepath: str | os.PathLike) -> None:
        """Writes a whole file or nothing; RunError if a checkpoint cannot be written."""
        path, part = Path(filepath), Path(f'{filepath}{PART}')
        try:
            super().put(obj, part)
            with part.open() as file:
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            if path.suffix != '.pth':
                raise
            left = sorted(path.parent.glob('*.pth'), key=os.path.getmtime)
            raise RunError(
                f'a checkpoint cannot be written to {path.parent}: {error.strerror or error}; '
                + (f'the last whole one is {left[-1]}' if left else 'there is no earlier one'),
                status=1, own=True) from error
        while self.waiting:
            if (old := Path(self.waiting.pop())) != path:  # it may have been written again
                old.unlink(missing_ok=True)

    def remove(self, filepath: str | os.PathLike) -> None:
        self.waiting.append(str(filepath))


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for unattended runs, with the same arguments.

    - A checkpoint is written to a ``.part`` file and renamed, then the old one is removed: the last
      checkpoint is always whole.
    - A checkpoint that cannot be written (a full disk) ends the run with a message.
    - On SIGINT (Ctrl-C) and SIGTERM the run finishes its iteration, writes ``interrupted.pth`` into
      the work folder and exits with status 128 + the signal. During validation, a single process
      does so after the current batch; several processes first finish validation and one more
      training iteration. A second signal ends the run at once.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.signal, self.previous = 0, {}

    def before_run(self, runner) -> None:
        register_backend('local', WholeFileBackend, force=True, prefixes='')

    def before_train(self, runner) -> None:
        super().before_train(runner)
        if is_main_process():
            for part in Path(self.out_dir).glob(f'*.pth{PART}'):  # of a killed run
                part.unlink()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame) -> None:
        self.signal = number
        self.after_run()
        # not print, which the signal may have interrupted
        os.write(1, f'\n{signal.Signals(number).name}: the run writes a checkpoint and ends; a '
                    'second signal ends it at once\n'.encode())

    def after_run(self, runner=None) -> None:
        """Restores the signal handlers."""
        while self.previous:
            signal.signal(*self.previous.popitem())

    def after_train_iter(self, runner, *args, **kwargs) -> None:
        super().after_train_iter(runner, *args, **kwargs)
        if not runner.optim_wrapper.should_update():  # checkpoints hold no gradients
            return
        if is_distributed():  # any process may have received a signal
            flag = torch.tensor([self.signal], device=next(runner.model.parameters()).device)
            all_reduce(flag, 'max')
            self.signal = int(flag)
        if self.signal:
            self._interrupt(runner, runner.iter + 1)

    def after_val_iter(self, runner, *args, **kwargs) -> None:
        # processes may validate for different numbers of iterations
        if self.signal and not is_distributed():
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):  # puts the trained weights back
                    hook.after_val_epoch(runner)
            self._interrupt(runner, runner.iter)

    def _interrupt(self, runner, done: int) -> None:
        runner.save_checkpoint(runner.work_dir, INTERRUPTED, by_epoch=False,
                               meta=dict(epoch=runner.epoch, iter=done))
        barrier()  # the launcher sends SIGTERM to the others as soon as one process ends
        self.after_run()
        raise RunError(f'{signal.Signals(self.signal).name} after iteration {done}: '
                       f'{os.path.join(runner.work_dir, INTERRUPTED)} is written; the same command '
                       'with --resume goes on from there', status=128 + self.signal, own=True)
