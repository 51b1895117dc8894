"""Finds the checkpoint for --resume, and what a new run would overwrite."""
from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import master_only
from mmengine.runner import Runner

from lape_mm.checkpoints.files import CheckpointError, read_checkpoint
from lape_mm.wording import some

KINDS = r'(epoch_\d+|iter_\d+|interrupted)\.pth'
# lists the log folders of the current run: one for its start, one for each --resume
LOGS = 'log_folders.txt'


def set_resume(cfg: Config, resume: str) -> None:
    """Resumes from a checkpoint; 'auto' takes the work folder's latest valid one."""
    found: str | None = resume
    if resume == 'auto':
        found, unused = newest_checkpoint(cfg.work_dir)
        for line in unused:
            print(f'warning: not used: {line}', flush=True)
        print(f'resumes from {found}' if found else
              f'no checkpoint in {cfg.work_dir} yet: the run starts from the beginning', flush=True)
    cfg.resume = found is not None
    if found:  # else the config's own load_from stays
        cfg.started_from, cfg.load_from = cfg.get('load_from'), found


@master_only
def note_start(runner: Runner, resume: str | None) -> None:
    """Lists the run's log folder. `newest_checkpoint` only considers checkpoints of listed runs.

    A new run starts a new list. A run that resumes from a path deletes it: all checkpoints count.
    """
    logs = Path(runner.work_dir, LOGS)
    if not resume:
        if earlier := [path.name for path in checkpoints(runner.work_dir)]:
            runner.logger.warning(
                f'{runner.work_dir} holds a run already ({some(earlier, 4, str)}), and this one '
                'starts from the beginning: it will overwrite checkpoints of the same names, and '
                '--resume will continue the new run. --work-dir FOLDER keeps the two apart')
        logs.write_text(f'{runner.timestamp}\n')
    elif resume != 'auto':
        logs.unlink(missing_ok=True)
    elif logs.is_file():  # version 0.1.0 wrote no list
        with logs.open('a') as file:
            file.write(f'{runner.timestamp}\n')


def newest_checkpoint(work_dir: str) -> tuple[str | None, list[str]]:
    """The latest valid checkpoint of a folder's run, and a line for each unusable checkpoint.

    Checkpoints store their time, because copying changes a file's; one without counts as oldest.
    mmengine's ``last_checkpoint`` may name a damaged file.
    """
    logs = Path(work_dir, LOGS)
    own = tuple(logs.read_text().split()) if logs.is_file() else ('',)
    ranked: list[tuple[str, int, str]] = []
    unused: list[str] = []
    for path in checkpoints(work_dir):
        try:
            ranked.append((*written(path, own), str(path)))
        except CheckpointError as error:
            unused.append(str(error))
    for *_, name in sorted(ranked, reverse=True):
        try:
            read_checkpoint(name)  # its weights, too
        except CheckpointError as error:
            unused.append(str(error))
        else:
            return name, unused
    return None, unused


def checkpoints(work_dir: str) -> list[Path]:
    """The checkpoints, even damaged ones, in a work folder and in the checkpoint hook's folder."""
    folder, pointer = Path(work_dir), Path(work_dir, 'last_checkpoint')
    last = Path(pointer.read_text().strip() or pointer) if pointer.is_file() else pointer
    folders = {last.resolve().parent: last.parent, folder.resolve(): folder}
    return [path for one in folders.values() for path in sorted(one.glob('*.pth'))
            if re.fullmatch(KINDS, path.name) or path.name == last.name]


def written(path: Path, own: tuple[str, ...]) -> tuple[str, int]:
    """A checkpoint's time ('' if unknown) and iteration; CheckpointError if not resumable."""
    content = read_checkpoint(path, weights=False)
    meta = content.get('meta')
    if not isinstance(meta, Mapping) or not isinstance(meta.get('iter'), int) \
            or 'optimizer' not in content:
        raise CheckpointError(f'{path}: lacks an optimizer or meta.iter, so no run can resume '
                              'from it')
    if not str(meta.get('experiment_name', '')).endswith(own):
        raise CheckpointError(f'{path} is from an earlier run; --resume {path} continues that run')
    return str(meta.get('time', '')), meta['iter']
