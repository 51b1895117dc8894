"""Errors that a user can act on: one line each, no traceback."""
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lape_mm.requirements import install_hint, missing


class RunError(Exception):
    """A run cannot start, or had to stop. Holds one line per problem, and the exit status.

    ``own``: only this process of a distributed run has the problem, and prints it.
    """

    def __init__(self, problems: str | Sequence[str], status: int = 2, own: bool = False):
        self.status, self.own = status, own
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__('; '.join(self.problems))


def rank() -> int:
    """This process's rank in a launched run; 0 for the first or only process."""
    return int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')))


class Report:
    """Collects problems of a config (one line each, with all its places) and warnings."""

    def __init__(self, cfg: Any):
        self.cfg, self.scope = cfg, cfg.get('default_scope')  # where types are looked up
        self.found: dict[tuple[str, str], dict[str, None]] = {}  # problem and remedy -> places
        self.warnings: list[str] = []

    def add(self, where: str, text: str, remedy: str = '') -> None:
        """Adds a problem. In ``remedy``, a word with ``{where}`` is repeated for each place."""
        self.found.setdefault((text, remedy), {})[where] = None

    def warn(self, where: str, text: str) -> None:
        """Adds a warning."""
        self.warnings.append(f'{where}: {text}')

    def lines(self) -> list[str]:
        """One line per problem: its places, what is wrong, what to do."""
        lines = []
        for (text, remedy), places in self.found.items():
            words = [' '.join(word.replace('{where}', place) for place in places)
                     if '{where}' in word else word for word in remedy.split()]
            lines.append(f'{", ".join(places)}: {text}' + (f'; {" ".join(words)}' if words else ''))
        return lines

    def stop(self) -> None:
        """Raises RunError if there are problems; otherwise prints the warnings."""
        if self.found:
            raise RunError(self.lines())
        for warning in self.warnings if rank() == 0 else ():
            print(f'warning: {warning}', file=sys.stderr, flush=True)
        self.warnings.clear()


def exit_status(run: Callable[[], None]) -> int:
    """Calls ``run`` and returns 0; on RunError, prints its problems and returns its status."""
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
