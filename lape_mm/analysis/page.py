"""Self-contained HTML pages of tables and pictures, without scripts or external files."""
from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment  # comes with torch
from markupsafe import Markup

STYLE = '''
:root { --page: #fbfaf8; --card: #ffffff; --text: #1d2126; --soft: #5d6670; --line: #dfe2e6;
        --link: #1f5f99; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1d2126; --text: #e8eaed; --soft: #a3adb8; --line: #353c45;
          --link: #86bdf0; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .2rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft { color: var(--soft); font-size: .9rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 1rem 0; font-size: .95rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
          padding: 1rem; margin: 1.2rem 0; }
.wide { overflow-x: auto; margin: .8rem 0 0; }
.wide img { display: block; background: #ffffff; border-radius: 6px; padding: .4rem;
            height: auto; max-width: 100%; min-width: 40rem; }
figure { margin: .4rem 0 0; flex: 1 1 320px; max-width: 800px; }
figure img { display: block; width: 100%; height: auto; border-radius: 4px; }
figcaption { font-size: .85rem; color: var(--soft); overflow-wrap: anywhere; }
.row { display: flex; flex-wrap: wrap; gap: .8rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.settings td, .settings th { text-align: left; white-space: normal; vertical-align: top;
                             min-width: 7rem; }'''
TEMPLATE = '''<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
{{ style }}
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% if note %}<p class="soft">{{ note }}</p>
{% endif %}{% if sections|selectattr('key')|list %}<nav>{% for one in sections if one.key %}
<a href="#{{ one.key }}">{{ one.title }}</a>{% endfor %}</nav>
{% endif %}{% for one in sections %}<section{% if one.key %} id="{{ one.key }}"{% endif %}>
<h2>{{ one.title }}</h2>
{% if one.note %}<p class="soft">{{ one.note }}</p>
{% endif %}{% if one.text %}<p>{{ one.text }}</p>
{% endif %}{% if one.figure %}<div class="wide"><img alt="{{ one.alt or one.title }}"
 src="data:image/png;base64,{{ one.figure }}"></div>
{% endif %}{% for table in one.tables %}<div class="wide"><table class="{{ table.style }}">
{% if table.head %}<tr>{% for cell in table.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% endif %}{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}{% if one.pictures %}<div class="row">{% for caption, image in one.pictures %}
<figure><img alt="{{ caption }}" src="data:image/jpeg;base64,{{ image }}">
<figcaption>{{ caption }}</figcaption></figure>{% endfor %}
</div>
{% endif %}{% if one.foot %}<p class="soft">{{ one.foot }}</p>
{% endif %}</section>
{% endfor %}</main>
</body>
</html>
'''


def page(title: str, sections: Sequence[Mapping], note: str = '') -> str:
    """A page as HTML.

    Args:
        title, note: of the page.
        sections: of each a title, and what it has of key (an anchor), note, text, figure (PNG in
            base64) with its alt, tables (rows, head, style), pictures (caption, JPEG in base64)
            and foot.
    """
    return Environment(autoescape=True).from_string(TEMPLATE).render(
        style=Markup(STYLE), title=title, sections=sections, note=note)


def analysis_page(title: str, settings: Mapping[str, Mapping[str, str]], rows: Sequence[Mapping],
                  folder: Path) -> str:
    """The page of an analysis.

    Args:
        title: of the page.
        settings: label of a model -> name -> text.
        rows: of the summary.
        folder: holds the figures of the rows.
    """
    names = dict.fromkeys(name for values in settings.values() for name in values)
    table = dict(style='settings', head=['', *settings], rows=[
        (name, *(values.get(name, '') for values in settings.values())) for name in names])
    sections = [dict(title='Settings', tables=[table]), *(dict(
        key=row['key'], title=row['title'], note=row['paper'], text=row['meaning'],
        figure=base64.b64encode((folder / row['figures'][0]).read_bytes()).decode(),
        alt=f'{row["title"]} of {", ".join(row["numbers"])}', tables=tables(row['numbers']),
        foot=f'Files: {", ".join((*row["figures"], row["arrays"]))}') for row in rows)]
    models = 'this model' if len(settings) == 1 else 'these models'
    return page(title, sections, f'What position embedding (PE) does in {models}. MPVG is AAAI '
                '2025, LaPE is ICCV 2023.')


def tables(numbers: Mapping[str, Mapping]) -> list[dict]:
    """A table for each list over layers, and one for all single numbers."""
    names = list(dict.fromkeys(name for values in numbers.values() for name in values))
    lists = [name for name in names if any(isinstance(values.get(name), list)
                                           for values in numbers.values())]
    found = []
    for name in lists:
        rows = {label: values.get(name) or [] for label, values in numbers.items()}
        found.append(dict(head=[name, *range(max(map(len, rows.values())))], rows=[
            (label, *map(number, values)) for label, values in rows.items()]))
    if single := [name for name in names if name not in lists]:
        found.append(dict(head=['', *single], rows=[
            (label, *(number(values.get(name)) for name in single))
            for label, values in numbers.items()]))
    return found


def number(value: float | None) -> str:
    """Three digits, or a dash for None."""
    return '–' if value is None else f'{value:.3g}'
