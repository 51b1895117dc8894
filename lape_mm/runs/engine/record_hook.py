"""Writes record.json: what was run, with what, and the metrics of each validation."""
from __future__ import annotations

import hashlib
import json
import re
import time
from datetime import date
from numbers import Real
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import get_world_size, master_only
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop

from lape_mm.machine import commit, machine, versions
from lape_mm.registry import HOOKS
from lape_mm.wording import short

RECORD = 'record.json'
# settings that do not change what is run
APART = ('custom_imports', 'work_dir', 'overrides', 'randomness', 'resume', 'launcher',
         'default_hooks', 'log_level', 'log_processor', 'vis_backends', 'visualizer')


def fingerprint(cfg: Config) -> str:
    """Twelve hex digits that identify a config, regardless of its seed and where its files are.

    Ignored paths are ``data_root``, and the folder of a checkpoint named after a fingerprint.
    """
    settings = {key: value for key, value in cfg.to_dict().items()
                if key not in APART and value is not None}
    started_from = settings.pop('started_from', None)
    if cfg.get('resume'):  # as when the run was started
        settings.pop('load_from', None)
        if started_from:
            settings['load_from'] = started_from
    text = json.dumps(settings, sort_keys=True, default=str)
    if root := cfg.get('data_root'):
        text = re.sub(f'"{re.escape(root)}(?=["/])', '"data_root', text)
    text = re.sub(r'"[^"]*/([0-9a-f]{12}\.pth")', r'"\1', text)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@HOOKS.register_module()
class RunRecordHook(Hook):
    """Writes ``record.json`` into the work folder at the start and after each validation.

    Its entries:

        config, overrides       the config's path, and what the command line changed
        fingerprint, commit     of the config without its seed (`fingerprint`), and of this package
        versions, machine       packages in use; CPU, cores, threads, GPU, processes, Python
        seconds, cpu_seconds    wall time, and CPU time of this process, over all resumes
        resumed, resumed_with   number of resumes; their fingerprints and commits, if different
        metrics                 a dict for each validation: epoch or iter, the mean training loss
                                since the last validation (first process), and the metrics

    also seed, started (a date) and finished. A resumed run continues the record of its work folder.
    ``tools/results.py`` turns records into tables.
    """

    priority = 'BELOW_NORMAL'

    def before_train(self, runner) -> None:
        self.path = Path(runner.work_dir, RECORD)
        self.unit = 'iter' if isinstance(runner.train_loop, IterBasedTrainLoop) else 'epoch'
        self.record = dict(
            config=runner.cfg.filename and short(runner.cfg.filename),
            overrides=runner.cfg.get('overrides', {}), fingerprint=fingerprint(runner.cfg),
            seed=runner.seed, commit=commit(), versions=versions(),
            machine=dict(machine(), processes=get_world_size()), started=str(date.today()),
            seconds=0., cpu_seconds=0., resumed=0, finished=False, metrics=[])
        if runner.iter:
            now = {key: self.record[key] for key in ('fingerprint', 'commit')}
            try:
                found = json.loads(self.path.read_text())
                found['metrics'] = [line for line in found['metrics']
                                    if line[self.unit] <= getattr(runner, self.unit)]
            except (OSError, ValueError, KeyError, TypeError):  # no record, or a damaged one
                found = {}
            self.record.update(found, finished=False, resumed=found.get('resumed', 0) + 1)
            if any(self.record[key] != value for key, value in now.items()):
                self.record['resumed_with'] = [*found.get('resumed_with', []), now]
        # as if this process had done the whole run
        self.start = time.monotonic() - self.record['seconds']
        self.cpu_start = time.process_time() - self.record['cpu_seconds']
        self._write()

    def after_val_epoch(self, runner, metrics: dict | None = None) -> None:
        if not hasattr(self, 'record'):  # a validation without training
            return
        now, hub = getattr(runner, self.unit), runner.message_hub
        line = {self.unit: now}
        count = runner.iter - hub.runtime_info.get('last_recorded_iter', 0)
        if count and 'train/loss' in hub.log_scalars:
            line['loss'] = float(hub.get_scalar('train/loss').mean(count))
        line.update({name: float(value) for name, value in (metrics or {}).items()
                     if isinstance(value, Real)})
        hub.update_info('last_recorded_iter', runner.iter)
        # a resumed run may repeat a validation
        earlier = [one for one in self.record['metrics'] if one[self.unit] < now]
        self.record['metrics'] = [*earlier, line]
        self._write()

    def after_train(self, runner) -> None:
        self.record['finished'] = True
        self._write()

    @master_only
    def _write(self) -> None:
        self.record.update(seconds=round(time.monotonic() - self.start, 1),
                           cpu_seconds=round(time.process_time() - self.cpu_start, 1))
        part = self.path.with_suffix('.part')  # a killed run leaves a whole record
        part.write_text(json.dumps(self.record, indent=1, default=str) + '\n')
        part.replace(self.path)
