"""No figure in a table of the README or the docs without its origin: measured, or a paper's.

What is counted or projected by a command says that; what a user sets is a setting or a recipe.
"""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]
LABELS = re.compile(r'\b(measured|paper|counted|projected|recipe|setting)\b', re.IGNORECASE)
# a paragraph that is about the table beside it: it begins with the origin, or announces the table
ABOUT = re.compile(r'^\W*(measured|counted|projected|from the)\b|measured:$', re.IGNORECASE)
# a figure: a number by itself, perhaps with a unit or a spread; not one within a name or a command
UNIT = r'[%×x]|pp|s|ms|MB|GB|M|K|h|min|±.*|\(.*\)|/.*|to .*'
FIGURE = re.compile(rf'^[*<>~+−-]*\d[\d,.]*\s*({UNIT})?\**$')


def blocks(text):
    """Paragraphs, tables and headings; what is fenced as code is none of them."""
    text = re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL)
    return [block.strip() for block in re.split(r'\n\s*\n', text) if block.strip()]


def cells(line):
    return [cell.strip() for cell in re.split(r'(?<!\\)\|', line.strip().strip('|'))]


def unlabelled(text):
    """Cells with a figure whose origin nothing says: not the cell, its row's words, its column, the
    table's corner, nor a paragraph beside the table that is about it."""
    found, parts = [], blocks(text)
    for place, block in enumerate(parts):
        lines = block.splitlines()
        if len(lines) < 3 or not re.match(r'^\|?[\s:|-]+$', lines[1]):
            continue
        around = [part for part in parts[max(0, place - 1):place + 2] if part != block]
        if any(LABELS.search(part) and ABOUT.search(part) for part in around):
            continue
        head = cells(lines[0])
        for line in lines[2:]:
            row = cells(line)
            words = ' '.join(cell for cell in row if not FIGURE.match(cell))
            found += [cell for name, cell in zip(head, row) if FIGURE.match(cell)
                      and not LABELS.search(f'{head[0]} {name} {words} {cell}')]
    return found


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_figure_says_where_it_is_from(page):
    assert unlabelled(page.read_text()) == []
