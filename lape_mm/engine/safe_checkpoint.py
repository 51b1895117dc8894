"""Checkpoints that are whole or not there, and that an interrupted run writes before it ends."""
from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_distributed, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, EMAHook

from lape_mm.registry import HOOKS

from .stop import RunStopped

PART = '.part'  # of a file that is being written
INTERRUPTED = 'interrupted.pth'


class WholeFileBackend(LocalBackend):
    """mmengine's files on a disk, written beside their place and then renamed."""

    def put(self, obj: bytes, filepath: str | os.PathLike) -> None:
        """Writes all of a file or nothing."""
        part = f'{filepath}{PART}'
        try:
            os.makedirs(os.path.dirname(part) or '.', exist_ok=True)
            with open(part, 'wb') as file:
                file.write(obj)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, filepath)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


class LateRemoval:
    """A file backend that keeps what it is told to remove until `do`.

    mmengine's hook removes the old checkpoint and then writes the new one; a run that is killed in
    between has none.
    """

    def __init__(self, backend):
        self.backend, self.waiting = backend, []

    def __getattr__(self, name: str):
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        """Later."""
        self.waiting.append((self.backend.remove, path))

    def rmtree(self, path: str) -> None:
        """Later."""
        self.waiting.append((self.backend.rmtree, path))

    def do(self, keep: set[str]) -> None:
        """Removes what was waiting, except for names that have been written anew."""
        waiting, self.waiting = self.waiting, []
        for remove, path in waiting:
            if path not in keep and self.backend.exists(path):
                remove(path)


@HOOKS.register_module()
class SafeCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, for runs that nobody watches.

    - A checkpoint is written beside its place and renamed, and an old one is removed after that: at
      any moment the last one is whole.
    - A checkpoint that cannot be written (a full disk) ends the run with a message.
    - On SIGINT (Ctrl-C) and SIGTERM the run writes ``interrupted.pth`` after the iteration, or in a
      validation at once (several processes: after the first iteration that follows it), and ends
      with status 128 + the signal. A second signal ends it without.

    Args:
        args, kwargs: of mmengine's hook.
    """

    file_backend: Any  # mmengine's, which `before_train` makes

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.signal, self.previous = 0, {}

    def before_run(self, runner) -> None:
        register_backend('local', WholeFileBackend, force=True, prefixes='')

    def before_train(self, runner) -> None:
        super().before_train(runner)
        self.file_backend = LateRemoval(self.file_backend)
        if is_main_process():
            for part in Path(self.out_dir).glob(f'*.pth{PART}'):
                part.unlink()  # of a run that was killed
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame) -> None:
        self.signal = number
        self._let_go()
        # not by print, which may be what the signal has interrupted
        os.write(1, f'\n{signal.Signals(number).name}: the run writes a checkpoint and ends; once '
                    'more ends it at once\n'.encode())

    def _let_go(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}

    def after_train_iter(self, runner, *args, **kwargs) -> None:
        super().after_train_iter(runner, *args, **kwargs)
        # between two steps of the optimizer there are gradients, which no checkpoint holds
        if runner.optim_wrapper.should_update() and self._asked(runner):
            self._interrupt(runner, runner.iter + 1)

    def after_val_iter(self, runner, *args, **kwargs) -> None:
        if self.signal and not is_distributed():  # processes need not have as many iterations
            for hook in runner.hooks:  # it puts other weights in place for the validation
                if isinstance(hook, EMAHook):
                    hook.after_val_epoch(runner)
            self._interrupt(runner, runner.iter)

    def after_train(self, runner) -> None:
        super().after_train(runner)
        self._let_go()

    def after_run(self, runner) -> None:
        self._let_go()

    def _asked(self, runner) -> bool:
        """Whether any process has had a signal."""
        if not is_distributed():
            return bool(self.signal)
        flag = torch.tensor([self.signal], device=next(runner.model.parameters()).device)
        all_reduce(flag, 'max')
        self.signal = int(flag)
        return bool(self.signal)

    def _interrupt(self, runner, done: int) -> None:
        number = self.signal
        with self._writing(runner):
            runner.save_checkpoint(self.out_dir, INTERRUPTED, by_epoch=False,
                                   meta=dict(epoch=runner.epoch, iter=done))
        barrier()  # who ends first is followed by the launcher's SIGTERM to the others
        self._let_go()
        name = signal.Signals(number).name
        raise RunStopped(f'{name} after iteration {done}: {os.path.join(self.out_dir, INTERRUPTED)}'
                         ' is written; the same command with --resume goes on from there',
                         status=128 + number)

    @contextmanager
    def _writing(self, runner):
        try:
            yield
        except OSError as error:
            left = sorted(Path(self.out_dir).glob('*.pth'), key=os.path.getmtime)
            raise RunStopped(f'a checkpoint cannot be written to {self.out_dir}: '
                             f'{error.strerror or error}; '
                             + (f'the last whole one is {left[-1]}' if left else 'there is none '
                                'before it')) from error

    def _safely(self, save: Callable, runner, *args, **kwargs) -> None:
        with self._writing(runner):
            save(runner, *args, **kwargs)
        if is_main_process():
            best = [self.best_ckpt_path] if len(getattr(self, 'key_indicators', '') or '') == 1 \
                else list(getattr(self, 'best_ckpt_path_dict', {}).values())
            self.file_backend.do(keep={str(path) for path in (self.last_ckpt, *best)})

    def _save_checkpoint_with_step(self, runner, *args, **kwargs) -> None:
        self._safely(super()._save_checkpoint_with_step, runner, *args, **kwargs)

    def _save_best_checkpoint(self, runner, *args, **kwargs) -> None:
        self._safely(super()._save_best_checkpoint, runner, *args, **kwargs)
