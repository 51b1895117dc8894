"""Self-contained HTML pages of tables and pictures, without scripts or external files."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment  # comes with torch

TEMPLATE = '''<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
p { max-width: 46rem; }
p:empty { display: none; }
.soft, figcaption { opacity: .75; font-size: .9rem; }
section { border-top: 1px solid #8888; margin-top: 1.5rem; }
.wide { overflow-x: auto; }
.wide img { max-width: 100%; min-width: 40rem; }
.row { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: .4rem 0 0; flex: 1 1 320px; max-width: 800px; }
figure img { width: 100%; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8884;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.settings td, .settings th { text-align: left; white-space: normal; min-width: 7rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="soft">{{ note }}</p>
{% for one in sections %}<section>
<h2>{{ one.title }}</h2>
<p class="soft">{{ one.note }}</p>
<p>{{ one.text }}</p>
{% if one.figure %}<div class="wide"><img alt="{{ one.title }}"
 src="data:image/png;base64,{{ one.figure }}"></div>
{% endif %}{% for table in one.tables %}<div class="wide"><table class="{{ table.style }}">
{% if table.head %}<tr>{% for cell in table.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% endif %}{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}<div class="row">{% for caption, image in one.pictures %}
<figure><img alt="{{ caption }}" src="data:image/jpeg;base64,{{ image }}">
<figcaption>{{ caption }}</figcaption></figure>{% endfor %}
</div>
</section>
{% endfor %}</body>
</html>
'''


def page(title: str, sections: Sequence[Mapping], note: str = '') -> str:
    """Renders a page as HTML.

    A section has a title. It may have a note, text, a figure (PNG in base64), tables (rows, head,
    style) and pictures (caption, JPEG in base64).
    """
    return Environment(autoescape=True).from_string(TEMPLATE).render(
        title=title, sections=sections, note=note)
