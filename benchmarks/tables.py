#!/usr/bin/env python
"""The bars of all records beside this file, as the table that README.md shows.

    python benchmarks/tables.py             # prints it
    python benchmarks/tables.py --write     # puts it into README.md, between its two marks
"""
import argparse
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
README = HERE.parent / 'README.md'
RECORDS = ('classification_tiny', 'classification_small', 'vit_adapter', 'growth', 'startup')
MARKS = '<!-- python benchmarks/tables.py --write -->', '<!-- end of the table -->'


def rows(name: str) -> list[str]:
    """A record's bars, a line of the table each; none where it was not measured."""
    path = HERE / f'{name}.json'
    if not path.exists():
        return []
    made = []
    for bar in json.loads(path.read_text())['bars']:
        low, high = bar['figure']['quartiles']
        made.append(f'| {bar["what"]} | {bar["figure"]["median"]:.3g} ({low:.3g} to {high:.3g}) '
                    f'| {bar["limit"]:g} | {"holds" if bar["holds"] else "**missed**"} |')
    return made


def machine(name: str) -> str:
    """What a record was measured on and with."""
    record = json.loads((HERE / f'{name}.json').read_text())
    return (f'`{name}.json`: {record["cpu"]}, {record["threads"]} threads, torch '
            f'{record["torch"]}, commit {record["commit"]}')


def table() -> str:
    """Markdown: the bars, and below them where they were measured."""
    found = {name: made for name in RECORDS if (made := rows(name))}
    return '\n'.join([
        '| measure | median (quartiles) | bar | |', '|---|---|---|---|',
        *(row for made in found.values() for row in made), '',
        'Measured on: ' + '; '.join(machine(name) for name in found) + '.'])


def main() -> None:
    """Prints or writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='into README.md')
    if not parser.parse_args().write:
        print(table())
        return
    before, _, rest = README.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    README.write_text(f'{before}{MARKS[0]}\n{table()}\n{MARKS[1]}{after}')


if __name__ == '__main__':
    main()
