#!/usr/bin/env python
"""Writes the tables of model_zoo.md from the named architectures and the metafiles of configs/.

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
        pixels = {IMAGENET: 'ImageNet', HALF: '0.5 each', CLIP: 'CLIP'}[arch.normalisation]
        lines.append(f'| `{family}` | {", ".join(sizes)} | `{arch.timm}` | {files} | {hub} | '
                     f'{pixels} | {arch.license} |')
    return '\n'.join(lines)


def tables() -> str:
    """A row for each group of configs with published results, then the groups without.

    A group has one config for each joining; ``JOINING`` stands for it in the name.
    """
    groups: dict[str, dict[str, dict]] = {}
    for path in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        for model in yaml.safe_load((ROOT / path).read_text())['Models']:
            joining = next(name for name in JOININGS if f'-{name}_' in model['Name'])
            name = Path(model['Config']).relative_to('configs').with_suffix('').as_posix()
            groups.setdefault(name.replace(f'-{joining}_', '-JOINING_'), {})[joining] = model
    lines = ['| config, results (paper) | from | default | LaPE | PVG | MPVG |',
             '| --- | --- | --- | --- | --- | --- |']
    others = []
    for name, models in groups.items():
        found = [results(models[joining]) if joining in models else '' for joining in JOININGS]
        if not any(found):
            others.append(f'- `{name}`')
            continue
        source = models['default']['Metadata']['Source of Results']
        lines.append(f'| `{name}` | {source.split()[0]} | {" | ".join(found)} |')
    return '\n'.join([*lines, '', 'Not quoted from a paper:', '', *others])


def results(model: dict) -> str:
    """The papers' results of a config."""
    return ' / '.join(f'{value}' for result in model['Results']
                      for value in result['Metrics'].values())


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
        page = f'{before}{start}\n\n{make()}\n\n{end}{rest.partition(end)[2]}'
    PAGE.write_text(page)


if __name__ == '__main__':
    main()
