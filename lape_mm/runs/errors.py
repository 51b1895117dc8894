"""The user's mistakes: one line each, no traceback."""
import os
import sys
from collections.abc import Callable, Sequence

from lape_mm.requirements import install_hint, missing


class RunError(Exception):
    """A run that cannot start, or that had to stop.

    Args:
        problems: one line each, saying what is wrong and what to do about it.
        status: exit status of the tool.
        own: whether only this process of several has it.
    """

    def __init__(self, problems: str | Sequence[str], status: int = 2, own: bool = False):
        self.status, self.own = status, own
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__('; '.join(self.problems))


def exit_status(run: Callable[[], None]) -> int:
    """Calls ``run``; 0 if it ends well, else one ``error: ...`` line a problem and its status."""
    try:
        if missing('mmengine'):
            raise RunError(install_hint('mmengine'))
        run()
    except RunError as error:
        rank = os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))
        if rank == '0' or error.own:
            for problem in error.problems:
                print(f'error: {f"process {rank}: " if rank != "0" else ""}{problem}',
                      file=sys.stderr)
        return error.status
    return 0
