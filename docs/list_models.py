#!/usr/bin/env python
"""The metafiles of configs/ as the tables of model_zoo.md.

    python docs/list_models.py             # prints them
    python docs/list_models.py --write     # puts them into the page, between its marks
"""
import argparse
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs/model_zoo.md'
MARKS = '<!-- python docs/list_models.py --write -->', '<!-- end of the tables -->'


JOININGS = ('default', 'lape', 'pvg', 'mpvg')


def tables() -> str:
    """A table per algorithm: a row per model, with its parameters and the papers' results.

    A row stands for four configs; ``JOINING`` in its name is one of `JOININGS`.
    """
    parts = []
    for path in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        content = yaml.safe_load((ROOT / path).read_text())
        rows: dict[str, dict[str, dict]] = {}
        for model in content['Models']:
            joining = next(name for name in JOININGS if f'-{name}_' in model['Name'])
            rows.setdefault(model['Name'].replace(f'-{joining}_', '-JOINING_'), {})[joining] = model
        lines = ['| config | batch, recipe | default (paper) | LaPE (paper) | PVG (paper) '
                 '| MPVG (paper) |', '| --- | --- | --- | --- | --- | --- |']
        for name, models in rows.items():
            batch = next(iter(models.values()))['Metadata']['Batch Size']
            cells = [cell(models[joining]) if joining in models else '' for joining in JOININGS]
            lines.append(f'| `{name}` | {batch} | {" | ".join(cells)} |')
        parts.append(f'### {content["Collections"][0]["Name"]}: `{Path(path).parent}`\n\n'
                     + '\n'.join(lines))
    return '\n\n'.join(parts)


def cell(model: dict) -> str:
    """The papers' results of a config, with their source."""
    values = [f'{value}' for result in model['Results'] for value in result['Metrics'].values()]
    if not values:
        return ''
    paper = model['Metadata']['Source of Results'].split()[0]
    return f'{" / ".join(values)} ({paper})'


def main() -> None:
    """Prints or writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='into docs/model_zoo.md')
    if not parser.parse_args().write:
        print(tables())
        return
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f'{before}{MARKS[0]}\n{tables()}\n{MARKS[1]}{after}')


if __name__ == '__main__':
    main()
