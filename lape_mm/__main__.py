"""``python -m lape_mm TOOL ...`` runs a tool, wherever lape_mm is installed."""
from __future__ import annotations

import runpy
import sys

from lape_mm.shipped import shipped


def main(argv: list[str] | None = None) -> int:
    """Runs tools/TOOL.py. For an unknown name it prints all names and returns 2."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ['']
    tools = {path.stem: str(path) for path in sorted(shipped('tools').glob('*.py'))}
    if name not in tools:
        print(f'usage: python -m lape_mm {{{",".join(tools)}}} ...', file=sys.stderr)
        return 2
    sys.argv = [f'python -m lape_mm {name}', *rest]
    return runpy.run_path(tools[name])['main'](rest)


if __name__ == '__main__':
    sys.exit(main())
