"""Pages of tables, figures and pictures in one file, for a run's report and the gallery."""
from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import cv2
import numpy as np

from lape_mm.analysis.page import HEAD, fill

TEMPLATE = HEAD + '''</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% if note %}<p class="soft">{{ note }}</p>{% endif %}
{% for section in sections %}<section>
<h2>{{ section.title }}</h2>
{% if section.note %}<p class="soft">{{ section.note }}</p>{% endif %}
{% if section.rows %}<div class="wide"><table class="{{ section.style }}">
{% for row in section.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}
{% if section.figure %}<div class="wide"><img alt="{{ section.title }}"
 src="data:image/png;base64,{{ section.figure }}"></div>{% endif %}
{% if section.pictures %}<div class="row">{% for caption, image in section.pictures %}
<figure><img alt="{{ caption }}" src="data:image/jpeg;base64,{{ image }}">
<figcaption>{{ caption }}</figcaption></figure>{% endfor %}
</div>{% endif %}
</section>
{% endfor %}</main>
</body>
</html>
'''


def page(title: str, sections: Sequence[Mapping[str, Any]], note: str = '') -> str:
    """A page of sections: title, and note, rows and style of a table, figure, or pictures."""
    return fill(TEMPLATE, title=title, sections=sections, note=note)


def figure_section(title: str, figure: Any) -> dict:
    """A section of a matplotlib figure."""
    file = BytesIO()
    figure.savefig(file, format='png', dpi=150)
    return dict(title=title, figure=base64.b64encode(file.getvalue()).decode())


def jpeg(image: np.ndarray, most: int | None = None) -> str:
    """A JPEG file in base64 of a BGR image, its longer side at most so many pixels."""
    factor = min(1., (most or np.inf) / max(image.shape[:2]))
    if factor < 1:
        image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    encoded = cv2.imencode('.jpg', image, (cv2.IMWRITE_JPEG_QUALITY, 88))[1]
    return base64.b64encode(encoded.tobytes()).decode()
