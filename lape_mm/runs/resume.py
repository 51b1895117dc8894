"""Which checkpoint of a work folder a run goes on from."""
from __future__ import annotations

import os
import re
from pathlib import Path

from lape_mm.checkpoints.files import CheckpointError, read_checkpoint

KINDS = (r'epoch_(\d+)\.pth', r'iter_(\d+)\.pth', r'interrupted()\.pth')


def newest_checkpoint(work_dir: str, out_dir: str | None = None) -> tuple[str | None, list[str]]:
    """The whole checkpoint that a run has come farthest with.

    By the iterations that the files say themselves: mmengine's ``last_checkpoint`` names one that
    may be damaged, and the time of a file says when it was copied.

    Args:
        work_dir: of the run.
        out_dir: of the config's CheckpointHook, below which it has a folder of the run's name.

    Returns:
        its path, None where there is none, and a line for each file that would have been taken
        but cannot be used.
    """
    folder = Path(work_dir)
    folders = [folder] if out_dir is None else [folder, Path(out_dir, folder.name)]
    files = [path for place in folders if place.is_dir() for path in place.glob('*.pth')]
    groups = []
    for kind in KINDS:
        numbered = [(int(match[1] or 0), path) for path in files
                    if (match := re.fullmatch(kind, path.name))]
        groups.append([path for _, path in sorted(numbered, reverse=True)])
    if (pointer := folder / 'last_checkpoint').is_file():  # whatever its name is
        groups.append([path for path in [Path(pointer.read_text().strip())] if path.is_file()])
    found: list[tuple[int, int, str]] = []
    damaged: dict[str, None] = {}  # as an ordered set
    for group in groups:
        for path in group:  # the farthest one of its kind that is whole
            try:
                found.append((iterations(path), path.stat().st_mtime_ns, str(path)))
                break
            except CheckpointError as error:
                damaged[str(error)] = None
    return max(found)[2] if found else None, list(damaged)


def iterations(path: str | os.PathLike) -> int:
    """How many iterations the run of a checkpoint has done.

    Raises:
        CheckpointError: it cannot be read, or no run can go on from it.
    """
    content = read_checkpoint(path)
    if not {'iter', 'epoch'} <= set(content.get('meta') or {}) or 'optimizer' not in content:
        raise CheckpointError(f'{path}: no optimizer or no meta.iter, so that no run can go on '
                              'from it')
    return content['meta']['iter']
