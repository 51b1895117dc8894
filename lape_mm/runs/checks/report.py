"""Problems of a config: one line each, with all places that share it."""
from __future__ import annotations

import sys

from mmengine.config import Config

from ..errors import RunError, rank


class Report:
    """Problems and warnings of a config."""

    def __init__(self, cfg: Config):
        self.cfg, self.scope = cfg, cfg.get('default_scope')  # where types are looked up
        self.found: dict[tuple[str, str], dict[str, None]] = {}  # problem and remedy -> places
        self.warnings: list[str] = []

    def add(self, where: str, text: str, remedy: str = '') -> None:
        """Adds a problem; a word with ``{where}`` in its remedy is repeated for each place."""
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
