"""Errors that a user can act on: one line each, no traceback."""
import os
import sys
from collections.abc import Callable, Sequence

from lape_mm.requirements import install_hint, missing


class RunError(Exception):
    """A run cannot start, or had to stop: one line per problem, and the tool's exit status.

    ``own``: only this process of a distributed run has the problem, and prints it.
    """

    def __init__(self, problems: str | Sequence[str], status: int = 2, own: bool = False):
        self.status, self.own = status, own
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__('; '.join(self.problems))


def rank() -> int:
    """This process's rank among those of a launcher; 0 for the first or only one."""
    return int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))


def exit_status(run: Callable[[], None]) -> int:
    """Calls ``run``; returns 0, or a RunError's status after printing an ``error: ..`` per line."""
    try:
        if missing('mmengine'):
            raise RunError(install_hint('mmengine'))
        run()
    except RunError as error:
        if rank() == 0 or error.own:
            for problem in error.problems:
                print(f'error: {f"process {rank()}: " if rank() else ""}{problem}', file=sys.stderr)
        return error.status
    return 0
