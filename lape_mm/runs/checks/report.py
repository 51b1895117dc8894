"""Problems of a config: one line each, with all places that share it."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from mmengine.config import Config


@dataclass
class Report:
    """Problems, each with the places of the config that share it."""

    cfg: Config
    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def scope(self) -> str | None:
        """The toolbox in which types are looked up."""
        return self.cfg.get('default_scope')

    def add(self, where: str, text: str, remedy: str = '') -> None:
        """Adds a problem; ``{where}`` in its remedy is replaced by each of its places."""
        places = self.found.setdefault((text, remedy), [])
        if where not in places:
            places.append(where)

    def warn(self, where: str, text: str) -> None:
        """Adds a warning, which does not stop the run."""
        self.warnings.append(f'{where}: {text}')

    def lines(self) -> list[str]:
        """One line a problem: its places, what is wrong, what to do."""
        lines = []
        for (text, remedy), places in self.found.items():
            words = (' '.join(word.replace('{where}', place) for place in places)
                     if '{where}' in word else word for word in remedy.split(' '))
            line = f'{", ".join(places)}: {text}'
            lines.append(f'{line}; {" ".join(words)}' if remedy else line)
        return lines

    def path_remedy(self, path: str, key: str) -> str:
        """Says how to change a path: by its environment variable, or by --cfg-options.

        Args:
            path: what is missing.
            key: the setting that holds it, below its place in the config.
        """
        for name, default in re.findall(r'\{\{[\'"]?\s*\$(\w+)\s*:\s*(\S*?)\s*[\'"]?\}\}',
                                        self.cfg.text):
            value = os.environ.get(name, default).rstrip('/')
            if path == value or path.startswith(f'{value}/'):
                state = 'now' if name in os.environ else 'not set, its default is'
                return f'set {name} to the folder of your data ({state} {value})'
        return f'point at yours with --cfg-options {{where}}.{key}=PATH'
