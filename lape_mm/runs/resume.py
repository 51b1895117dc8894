"""Which checkpoint of a work folder a run goes on from, and what a new run would write over."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lape_mm.checkpoints.files import CheckpointError, read_checkpoint
from lape_mm.engine.record_hook import RECORD
from lape_mm.wording import some

KINDS = r'(epoch_\d+|iter_\d+|interrupted)\.pth'
TIME = r'\d{8}_\d{6}'  # as mmengine writes it


def newest_checkpoint(work_dir: str, out_dir: str | None = None) -> tuple[str | None, list[str]]:
    """The whole checkpoint that was written last, of several in one second the farthest.

    Runs with other settings may have left theirs in the same folder, so that iterations alone do
    not tell the last run's. By what the files say themselves: mmengine's ``last_checkpoint`` names
    one that may be damaged, and the time of a file says when it was copied. One without a time in
    it counts as the oldest.

    Args:
        work_dir: of the run.
        out_dir: of the config's CheckpointHook, below which it has a folder of the run's name.

    Returns:
        its path, None where there is none, and a line for each file that may have been taken but
        cannot be used.
    """
    ranked: list[tuple[str, int, int, str]] = []
    damaged: dict[str, None] = {}  # as an ordered set
    for path in checkpoints(work_dir, out_dir):
        try:
            ranked.append((*written(path), path.stat().st_mtime_ns, str(path)))
        except CheckpointError as error:
            damaged[str(error)] = None
    for *_, name in sorted(ranked, reverse=True):
        try:
            read_checkpoint(name)  # its weights, too
        except CheckpointError as error:
            damaged[str(error)] = None
        else:
            return name, list(damaged)
    return None, list(damaged)


def checkpoints(work_dir: str, out_dir: str | None = None) -> list[Path]:
    """All of a run's checkpoints, whole or not, in the order of their names."""
    folder = Path(work_dir)
    folders = [folder] if out_dir is None else [folder, Path(out_dir, folder.name)]
    found = [path for place in folders if place.is_dir() for path in sorted(place.glob('*.pth'))
             if re.fullmatch(KINDS, path.name)]
    if (pointer := folder / 'last_checkpoint').is_file():  # whatever its name is
        found += [path for path in [Path(pointer.read_text().strip())] if path.is_file()]
    return list({path.resolve(): path for path in reversed(found)}.values())[::-1]


def written(path: str | os.PathLike) -> tuple[str, int]:
    """When a checkpoint was written, '' if it does not say, and after how many iterations.

    Raises:
        CheckpointError: it cannot be read, or no run can go on from it.
    """
    content = read_checkpoint(path, weights=False)
    meta = content.get('meta')
    if not isinstance(meta, Mapping) or not {'iter', 'epoch'} <= set(meta) \
            or 'optimizer' not in content:
        raise CheckpointError(f'{path}: no optimizer or no meta.iter, so that no run can go on '
                              'from it')
    if not isinstance(meta['iter'], int):
        raise CheckpointError(f'{path}: meta.iter={meta["iter"]!r:.100}: a run needs the number of '
                              'iters that it has done')
    time = meta.get('time')
    return time if isinstance(time, str) and re.fullmatch(TIME, time) else '', meta['iter']


def earlier_run(work_dir: str, out_dir: str | None = None) -> str | None:
    """What a run from its beginning should say of a work folder that holds a run already.

    Returns:
        one line; None for a folder without a record or checkpoints.
    """
    record = Path(work_dir, RECORD)
    names = [path.name for path in [record] if path.is_file()]
    names += [path.name for path in checkpoints(work_dir, out_dir)]
    if not names:
        return None
    return (f'{work_dir} holds a run already ({some(names, 4, str)}), and this one starts from its '
            f'beginning: {RECORD} and checkpoints of the same names will be overwritten. '
            '--work-dir FOLDER keeps both apart, --resume goes on with the run that is there')
