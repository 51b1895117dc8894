#!/usr/bin/env python
"""The records of the benchmarks and studies as tables and plots of the docs.

    python benchmarks/tables.py             # prints the tables
    python benchmarks/tables.py --write     # writes them between the marks of their pages
"""
import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import large_runs
import measure
import studies

from lape_mm.runs.results import markdown

HERE = Path(__file__).resolve().parent
RECORDS = ('classification_tiny', 'classification_small', 'vit_adapter', 'vit_adapter_mask_rcnn',
           'startup', 'onnx_latency')
MARKS = '<!-- python benchmarks/tables.py --write -->', '<!-- end of the tables -->'


def read(name: str) -> dict:
    """A record beside this file."""
    return json.loads((HERE / f'{name}.json').read_text())


def origin(name: str, record: Mapping) -> str:
    """Where a record was measured and with what."""
    return (f'`{name}.json`: {record["cpu"]}, {record["threads"]} threads, torch '
            f'{record["torch"]}, commit {record["commit"]}')


def speed() -> str:
    """The figures with a limit, then all figures of each record."""
    records = {name: read(name) for name in RECORDS}
    parts = [measure.limits_table(list(records.values()))]
    for name, record in records.items():
        parts.append(f'**{record["claim"]}** ({origin(name, record)})')
        parts += measure.figures_tables(record)
    return '\n\n'.join(parts)


def reliability() -> str:
    """How many kills, files, sizes and mistakes were tried and survived."""
    record = read('reliability')
    rows = record['reliability']
    table = markdown(list(rows[0]), [list(map(str, row.values())) for row in rows])
    minutes = ', '.join(f'{part} {round(seconds / 60)} min'
                        for part, seconds in record['seconds'].items())
    return f'{table}\n\nMeasured on {record["date"]}, {origin("reliability", record)}; {minutes}.'


def evidence() -> str:
    """The studies, and what the full-scale runs would cost."""
    return f'{studies.page()}\n\n{large_runs.page()}'


PAGES = {HERE.parent / 'docs/speed.md': speed, HERE.parent / 'docs/reliability.md': reliability,
         HERE.parent / 'docs/evidence.md': evidence}


def write(page: Path, text: str) -> None:
    """Puts the text between the marks of a page."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f'{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}')


def main() -> None:
    """Prints the tables, or writes them and the plots of the studies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='tables and plots of the docs')
    args = parser.parse_args()
    for page, made in PAGES.items():
        if args.write:
            write(page, made())
        else:
            print(made(), end='\n\n')
    if args.write:
        for study in studies.begun():
            studies.plot(study)


if __name__ == '__main__':
    main()
