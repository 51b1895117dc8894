"""One record a run: what was run, with what, and what came out, epoch by epoch."""
from __future__ import annotations

import hashlib
import json
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
from lape_mm.wording import short

RECORD = 'record.json'
NAMED = re.compile(r'[0-9a-f]{12}\.pth')  # a checkpoint that is named after a fingerprint
LOSSES = 'losses_since_validation'
# settings of a run's place, seed, messages and files, not of what is run
APART = ('custom_imports', 'work_dir', 'overrides', 'randomness', 'resume', 'launcher',
         'default_hooks', 'log_level', 'log_processor', 'vis_backends', 'visualizer')


def fingerprint(cfg: Config) -> str:
    """Twelve letters that two runs share if they run the same config with any seed.

    Where the data are (``data_root``) does not matter, nor the folder of a checkpoint that is named
    after a fingerprint.
    """
    settings = {key: value for key, value in cfg.to_dict().items()
                if key not in APART and value is not None}
    # a resumed run has the fingerprint of its start
    started_from = settings.pop('started_from', None)
    if cfg.get('resume'):
        settings.pop('load_from', None)
        if started_from:
            settings['load_from'] = started_from
    text = json.dumps(_without_places(settings, cfg.get('data_root')), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_places(node: Any, root: str | None) -> Any:
    """The same with ``data_root`` for the beginning of paths, and checkpoints without folders."""
    if isinstance(node, dict):
        return {key: _without_places(value, root) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_without_places(value, root) for value in node]
    if isinstance(node, str):
        if root and (node == root or node.startswith(f'{root}/')):
            return 'data_root' + node[len(root):]
        if NAMED.fullmatch(PurePath(node).name):
            return PurePath(node).name
    return node


@HOOKS.register_module()
class RunRecordHook(Hook):
    """Writes ``record.json`` into the work folder, whole or not at all, after each validation.

    Its entries:

        config, overrides       the config's path, and what the command line changed
        fingerprint             of the config without its seed, see `fingerprint`
        seed
        commit, versions        of this package's repository and of the packages it uses
        resumed_with            later fingerprints and commits of a resumed run, where they differ
        machine                 CPU, cores, threads, GPU, processes, Python
        started, finished       the day, and whether the run has come to its end
        seconds, cpu_seconds    by the clock, and of this process's threads, over all resumes
        resumed                 how many times
        metrics                 a dict a validation: epoch or iter, the mean training loss since
                                the one before (of the first process), and the metrics

    A resumed run continues the record of its work folder. ``tools/results.py`` makes tables of
    such records.
    """

    priority = 'BELOW_NORMAL'

    def before_train(self, runner) -> None:
        """Starts the record, or continues the one that is there."""
        self.path = Path(runner.work_dir, RECORD)
        endless = isinstance(runner.train_loop, IterBasedTrainLoop)
        self.unit = 'iter' if endless else 'epoch'
        before = self._before(runner)
        # as if it had begun so much earlier
        self.start = time.monotonic() - before.get('seconds', 0)
        self.cpu_start = time.process_time() - before.get('cpu_seconds', 0)
        config = runner.cfg.filename
        self.record = dict(
            config=config and short(config), overrides=runner.cfg.get('overrides', {}),
            fingerprint=fingerprint(runner.cfg), seed=runner.seed, commit=commit(),
            versions=versions(), machine=dict(machine(), processes=get_world_size()),
            started=str(date.today()), seconds=0., cpu_seconds=0., resumed=0, finished=False,
            metrics=[])
        if before:  # a resumed run is the one that was started
            now = {key: self.record[key] for key in ('fingerprint', 'commit')}
            self.record.update(before, finished=False, resumed=before.get('resumed', 0) + 1)
            if any(self.record[key] != value for key, value in now.items()):
                self.record['resumed_with'] = [*before.get('resumed_with', []), now]
        self._write()

    def _before(self, runner) -> dict:
        """The record of a run that is resumed, up to where it goes on."""
        if not runner.iter:
            return {}
        try:
            found = json.loads(self.path.read_text())
            return dict(found, metrics=[one for one in found['metrics']
                                        if one[self.unit] <= getattr(runner, self.unit)])
        except (OSError, ValueError, KeyError, TypeError):  # of a run without this hook, or cut
            return dict(resumed=0, metrics=[])

    def after_train_iter(self, runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        """Adds the loss up on its device, so that nothing waits; checkpoints carry the sum."""
        if outputs and 'loss' in outputs:
            total, count = runner.message_hub.runtime_info.get(LOSSES, (0., 0))
            runner.message_hub.update_info(LOSSES, (total + outputs['loss'].detach(), count + 1))

    def after_val_epoch(self, runner, metrics: dict | None = None) -> None:
        """Adds a line."""
        if not hasattr(self, 'record'):  # tools/test.py
            return
        now = getattr(runner, self.unit)
        total, count = runner.message_hub.runtime_info.get(LOSSES, (0., 0))
        line = {self.unit: now, **({'loss': float(total) / count} if count else {}),
                **{name: float(value) for name, value in (metrics or {}).items()
                   if isinstance(value, Real)}}
        runner.message_hub.update_info(LOSSES, (0., 0))
        # a validation may be repeated where the run was killed before its checkpoint
        earlier = [one for one in self.record['metrics'] if one[self.unit] < now]
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
