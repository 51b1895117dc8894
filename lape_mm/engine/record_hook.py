"""One record a run: what was run, with what, and what came out, epoch by epoch."""
from __future__ import annotations

import hashlib
import json
import os
import re
import time
from datetime import date
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop

from lape_mm.machine import commit, machine, versions
from lape_mm.registry import HOOKS

RECORD = 'record.json'
NAMED = re.compile(r'[0-9a-f]{12}\.pth')  # a checkpoint that is named after what was run for it
LOSSES = 'losses_since_validation'
# what changes a run's place, its seed, its messages or its files, but not what is run
APART = ('custom_imports', 'work_dir', 'overrides', 'randomness', 'resume', 'launcher',
         'default_hooks', 'log_level', 'log_processor', 'vis_backends', 'visualizer')


def fingerprint(cfg: Config) -> str:
    """Twelve letters that two runs share if they run the same config, apart from its seed.

    Nor does it matter where the data lie (``data_root``), nor in which folder a checkpoint does
    whose name is a fingerprint.
    """
    settings = {key: value for key, value in cfg.to_dict().items()
                if key not in APART and value is not None}
    # what a resumed run goes on from is not what it was started from
    started_from = settings.pop('started_from', None)
    if cfg.get('resume'):
        settings.pop('load_from', None)
        if started_from:
            settings['load_from'] = started_from
    text = json.dumps(_without_places(settings, cfg.get('data_root')), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_places(node: Any, root: str | None) -> Any:
    """The same with ``data_root`` for what paths begin with, and without folders of checkpoints."""
    if isinstance(node, dict):
        return {key: _without_places(value, root) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_without_places(value, root) for value in node]
    if root and isinstance(node, str) and (node == root or node.startswith(f'{root}/')):
        return 'data_root' + node[len(root):]
    if isinstance(node, str) and NAMED.fullmatch(PurePath(node).name):
        return PurePath(node).name
    return node


def from_here(path: str | None) -> str | None:
    """A path from the current folder, or the name alone of what lies elsewhere."""
    if path is None:
        return None
    inside = os.path.relpath(path)
    return Path(path).name if inside.startswith('..') else inside


@HOOKS.register_module()
class RunRecordHook(Hook):
    """Writes ``record.json`` into the work folder, whole or not at all, after each validation.

    Its entries:

        config, overrides       the config's path, and what the command line has changed of it
        fingerprint             of the config without its seed, see `fingerprint`
        seed
        commit, versions        of this package's repository and of what it runs on
        resumed_with            where a resumed run's fingerprint or commit are others than those
                                above, which are the first ones: these, in order
        machine                 CPU, cores, threads, GPU, processes, Python
        started                 the day
        seconds, cpu_seconds    by the clock, and of this process's threads: the sum of what a
                                killed run has recorded and of what followed
        resumed                 how many times
        finished                whether the run has come to its end
        metrics                 a dict a validation: epoch or iter, the mean training loss since
                                the one before (of the first process), and the metrics

    A resumed run goes on with the record of its work folder. ``tools/results.py`` makes tables of
    such records.
    """

    priority = 'BELOW_NORMAL'

    def before_train(self, runner) -> None:
        """Starts the record, or goes on with the one that is there."""
        self.path = Path(runner.work_dir, RECORD)
        before = self._before(runner)
        # as if it had begun so much earlier
        self.start = time.monotonic() - before.get('seconds', 0)
        self.cpu_start = time.process_time() - before.get('cpu_seconds', 0)
        self.record = dict(
            config=from_here(runner.cfg.filename), overrides=runner.cfg.get('overrides', {}),
            fingerprint=fingerprint(runner.cfg), seed=runner.seed, commit=commit(),
            versions=versions(), machine=dict(machine(), processes=get_world_size()),
            started=str(date.today()), seconds=0., cpu_seconds=0., resumed=0, finished=False,
            metrics=[])
        if before:  # a resumed run is the one that was started
            now = {key: self.record[key] for key in ('fingerprint', 'commit')}
            changed = any(before.get(key, value) != value for key, value in now.items())
            self.record.update(before, finished=False, resumed=before.get('resumed', 0) + 1)
            if changed:
                self.record['resumed_with'] = [*before.get('resumed_with', []), now]
        self._write()

    def _before(self, runner) -> dict:
        """The record of a run that is resumed, up to where it goes on."""
        if not runner.iter:
            return {}
        try:
            found = json.loads(self.path.read_text())
            unit, now = self._now(runner)
            return dict(found, metrics=[one for one in found['metrics'] if one[unit] <= now])
        except (OSError, ValueError, KeyError, TypeError):  # of a run without this hook, or cut
            return dict(resumed=0, metrics=[])

    def _now(self, runner) -> tuple[str, int]:
        endless = isinstance(runner.train_loop, IterBasedTrainLoop)
        return ('iter', runner.iter) if endless else ('epoch', runner.epoch)

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Adds the loss up where it lies: nothing waits for the device."""
        if outputs and 'loss' in outputs:
            total, count = self._losses(runner)
            runner.message_hub.update_info(LOSSES, (total + outputs['loss'].detach(), count + 1))

    @staticmethod
    def _losses(runner) -> tuple[Any, int]:
        """Their sum and number since the last validation: checkpoints carry them along."""
        return runner.message_hub.runtime_info.get(LOSSES, (0., 0))

    def after_val_epoch(self, runner, metrics: dict | None = None) -> None:
        """Adds a line."""
        if not hasattr(self, 'record'):  # tools/test.py
            return
        unit, now = self._now(runner)
        total, count = self._losses(runner)
        line = {unit: now, **({'loss': float(total) / count} if count else {}),
                **{name: float(value) for name, value in (metrics or {}).items()
                   if isinstance(value, Real)}}
        runner.message_hub.update_info(LOSSES, (0., 0))
        # a validation that is done again, where the run was killed before its checkpoint
        earlier = [one for one in self.record['metrics'] if one[unit] < now]
        self.record['metrics'] = [*earlier, line]
        self._write()

    def after_train(self, runner) -> None:
        self.record['finished'] = True
        self._write()

    def _write(self) -> None:
        if not is_main_process():
            return
        self.record.update(seconds=round(time.monotonic() - self.start, 1),
                           cpu_seconds=round(time.process_time() - self.cpu_start, 1))
        part = self.path.with_suffix('.part')
        part.write_text(json.dumps(self.record, indent=1, default=str) + '\n')
        part.replace(self.path)
