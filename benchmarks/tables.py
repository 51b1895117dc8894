#!/usr/bin/env python
"""The records beside this file as tables of README.md (bars) and of the docs.

    python benchmarks/tables.py             # prints them
    python benchmarks/tables.py --write     # puts them into these files, between their marks
"""
import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import large_runs
import studies
from measure import spread

from lape_mm.runs.results import markdown

HERE = Path(__file__).resolve().parent
RECORDS = ('classification_tiny', 'classification_small', 'vit_adapter', 'vit_adapter_mask_rcnn',
           'vit_adapter_profile', 'growth', 'startup', 'throughput')
MARKS = '<!-- python benchmarks/tables.py --write -->', '<!-- end of the tables -->'


def records() -> dict[str, dict]:
    """What has been measured, by name."""
    return {name: json.loads(path.read_text()) for name in RECORDS
            if (path := HERE / f'{name}.json').exists()}


def machine(name: str, record: Mapping) -> str:
    """What a record was measured on and with."""
    return (f'`{name}.json`: {record["cpu"]}, {record["threads"]} threads, torch '
            f'{record["torch"]}, commit {record["commit"]}')


def bars() -> str:
    """All bars, and below them where they were measured."""
    found = {name: record for name, record in records().items() if record.get('bars')}
    rows = [[bar['what'], spread(bar['figure']), f'{bar["limit"]:g}',
             'holds' if bar['holds'] else '**missed**']
            for record in found.values() for bar in record['bars']]
    return markdown(['measure', 'median (quartiles)', 'bar', ''], rows) + (
        '\n\nMeasured on: ' + '; '.join(machine(*item) for item in found.items()) + '.')


def tables_of(record: Mapping) -> Iterator[tuple[str, str]]:
    """Titles and tables of one record."""
    for title, ratios in record.get('ratios', {}).items():
        unit = 'MB' if 'memory' in title else 's'
        bases = list(dict.fromkeys(base for row in ratios.values() for base in row))
        yield title, markdown(
            ['', unit, *(f'/ {base}' for base in bases)],
            [[name, f'{median(record["measured"][title][name]):.3g}',
              *(spread(row[base]) if base in row else '' for base in bases)]
             for name, row in ratios.items()])
    if 'profile' in record:
        yield 'detection, 1024 px, inference, shares of the time', markdown(
            ['operator', 'share'],
            [[f'`{row["operator"]}`', f'{row["share"]:.1%}'] for row in record['profile']])
    if 'training_profile' in record:
        rows = record['training_profile']
        codes = [name for name in rows[0] if name != 'operator']
        yield 'detection, 512 px, training step, ms in each operator itself', markdown(
            ['operator', *codes],
            [[f'`{row["operator"]}`', *(f'{row[code]:.1f}' for code in codes)] for row in rows])
    for title, models in record.items():
        if isinstance(models, dict) and 'exponent_512_to_1024' in models:
            sizes = list(next(iter(models['measured'].values())))
            yield title, markdown(
                ['', *(f'{size} px' for size in sizes), 'exponent', '512 to 1024 px'],
                [[name, *(f'{median(figures):.3g}' for figures in values.values()),
                  f'{models["exponent"][name]:.2f}', spread(models['exponent_512_to_1024'][name])]
                 for name, values in models['measured'].items()])
    if 'loader_share' in record:
        yield 'training', markdown(
            ['quick start', 'images/s', 'share of the loader'],
            [[task, spread(rate), f'{record["loader_share"][task]["median"]:.1%}']
             for task, rate in record['images_per_second'].items()])
    elif 'ratios' not in record and 'measured' in record:
        yield 'start-up', markdown(['', 's'], [[name, f'{median(figures):.3g}'] for name, figures in
                                              record['measured'].items()])


def tables() -> str:
    """All tables of all records."""
    parts = []
    for name, record in records().items():
        parts.append(f'**{record["claim"]}** ({machine(name, record)})')
        parts += [f'{title}, measured:\n\n{table}' for title, table in tables_of(record)]
    return '\n\n'.join(parts)


def reliability() -> str:
    """What was tried and what survived, with date and machine."""
    path = HERE / 'reliability.json'
    if not path.exists():
        return ''
    record = json.loads(path.read_text())
    rows = record['reliability']
    table = markdown(list(rows[0]), [list(map(str, row.values())) for row in rows])
    minutes = ', '.join(f'{part} {round(seconds / 60)} min'
                        for part, seconds in record['seconds'].items())
    return f'{table}\n\nMeasured on {record["date"]}, {machine("reliability", record)}; {minutes}.'


def evidence() -> str:
    """The studies on small data, and what the large runs would cost."""
    return '\n\n'.join(filter(None, [studies.page(), large_runs.page()]))


PAGES = {HERE.parent / 'README.md': bars, HERE.parent / 'docs/speed.md': tables,
         HERE.parent / 'docs/reliability.md': reliability,
         HERE.parent / 'docs/evidence.md': evidence}


def write() -> None:
    """Puts all of them into their pages."""
    for page, made in PAGES.items():
        before, _, rest = page.read_text().partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        page.write_text(f'{before}{MARKS[0]}\n{made()}\n{MARKS[1]}{after}')


def main() -> None:
    """Prints or writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='into README.md and the docs')
    if parser.parse_args().write:
        write()
    else:
        print('\n\n'.join(made() for made in PAGES.values()))


if __name__ == '__main__':
    main()
