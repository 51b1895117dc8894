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


def tables() -> str:
    """A table an algorithm: configs, parameters, data, batch, and what the paper reports."""
    parts = []
    for path in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        content = yaml.safe_load((ROOT / path).read_text())
        rows = ['| config | parameters, counted | data | batch, recipe | paper |',
                '| --- | --- | --- | --- | --- |']
        for model in content['Models']:
            about = model['Metadata']
            quoted = [f'{name.removesuffix(" (paper)")} {value}' for result in model['Results']
                      for name, value in result['Metrics'].items()]
            source = f' ({about["Source of Results"]})' if quoted else ''
            count = f'{about["Parameters"]:,}' if 'Parameters' in about else ''
            rows.append(f'| `{model["Name"]}` | {count} | {about["Training Data"]} '
                        f'| {about["Batch Size"]} | {", ".join(quoted)}{source} |')
        parts.append(f'### {content["Collections"][0]["Name"]}: `{Path(path).parent}`\n\n'
                     + '\n'.join(rows))
    return '\n\n'.join(parts)


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
