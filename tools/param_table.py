#!/usr/bin/env python
"""Print tables 1 and 2 of the MPVG paper: its parameter counts and ours.

    python tools/param_table.py --json
"""
import argparse
import json
import sys

from lape_mm.runs.errors import exit_status


def show(cells) -> None:
    from rich.console import Console
    from rich.table import Table
    table = Table('table', 'model', 'joining', 'paper (M)', 'ours', 'agreement', 'note')
    previous = None
    for number, model, joining, paper, ours, agreement, note in map(dict.values, cells):
        name = (number, model)
        if previous not in (None, name):
            table.add_section()
        first = [str(number), model] if name != previous else ['', '']
        table.add_row(*first, joining, paper, f'{ours:,}', agreement, note)
        previous = name
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)

    def run() -> None:
        from lape_mm.parameters import parameter_table
        cells = parameter_table()
        print(json.dumps(cells, indent=1)) if args.json else show(cells)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
