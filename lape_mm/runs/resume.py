"""Which checkpoint of a work folder a run goes on from."""
from __future__ import annotations

import re
from pathlib import Path

from lape_mm.checkpoints.files import CheckpointError, read_checkpoint

RESUMABLE = re.compile(r'(epoch_\d+|iter_\d+|interrupted)\.pth')


def newest_checkpoint(work_dir: str) -> tuple[str | None, list[str]]:
    """The last whole checkpoint that a run has left.

    By what the files say themselves: mmengine's ``last_checkpoint`` names one that may be damaged.

    Args:
        work_dir: of the run.

    Returns:
        its path, None where there is none, and a line for each newer file that cannot be used.
    """
    damaged: list[str] = []
    folder = Path(work_dir)
    files = [path for path in folder.glob('*.pth') if RESUMABLE.fullmatch(path.name)] \
        if folder.is_dir() else []
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            content = read_checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        if {'iter', 'epoch'} <= set(content.get('meta') or {}) and 'optimizer' in content:
            return str(path), damaged
        damaged.append(f'{path}: no optimizer or no meta.iter, so that no run can go on from it')
    return None, damaged
