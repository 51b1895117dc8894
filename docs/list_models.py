#!/usr/bin/env python
"""The named architectures, and the metafiles of configs/, as the tables of model_zoo.md.

    python docs/list_models.py             # prints them
    python docs/list_models.py --write     # puts them into the page, between its marks
"""
import argparse
import re
from pathlib import Path

import yaml

from lape_mm.backbones.archs import ARCHS, CLIP, HALF, IMAGENET

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs/model_zoo.md'
SIZE = re.compile('tiny|small_plus|small|medium|betwixt|base|large|huge_plus|huge|giant')

JOININGS = ('default', 'lape', 'pvg', 'mpvg')


def architectures() -> str:
    """A row per family of named architectures with published weights."""
    families: dict[str, list[str]] = {}
    for name, arch in ARCHS.items():
        if arch.timm:
            families.setdefault(SIZE.sub('SIZE', name), []).append(name)
    lines = ['| `arch` | sizes | timm | official file | Hub | mean, std | license |',
             '| --- | --- | --- | --- | --- | --- | --- |']
    for family, names in families.items():
        arch = ARCHS[names[0]]
        sizes = [SIZE.search(name)[0] for name in names]  # type: ignore[index]
        files, hub = (f'`{text}`' if text else '' for text in ((*arch.files, '')[0], arch.hub))
        pixels = {IMAGENET: 'ImageNet', HALF: '0.5', CLIP: 'CLIP'}[arch.normalisation]
        lines.append(f'| `{family}` | {", ".join(sizes)} | `{arch.timm}` | {files} | {hub} | '
                     f'{pixels} | {arch.license} |')
    return '\n'.join(lines)


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


PARTS = {
    ('<!-- architectures: python docs/list_models.py --write -->', '<!-- end of architectures -->'):
        architectures,
    ('<!-- python docs/list_models.py --write -->', '<!-- end of the tables -->'): tables,
}


def main() -> None:
    """Prints or writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='into docs/model_zoo.md')
    if not parser.parse_args().write:
        print(architectures(), tables(), sep='\n\n')
        return
    page = PAGE.read_text()
    for (start, end), make in PARTS.items():
        before, _, rest = page.partition(start)
        page = f'{before}{start}\n{make()}\n{end}{rest.partition(end)[2]}'
    PAGE.write_text(page)


if __name__ == '__main__':
    main()
