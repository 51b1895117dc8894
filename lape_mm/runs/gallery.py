"""tools/gallery.py: pictures of predictions of several models, side by side on one page."""
from __future__ import annotations

import base64
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from lape_mm.analysis.page import HEAD, fill

from .errors import RunError
from .images import SUFFIXES
from .progress import progress
from .summary import short

TEMPLATE = HEAD + '''.row { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: .4rem 0 0; flex: 1 1 200px; max-width: 520px; }
figure img { display: block; width: 100%; height: auto; border-radius: 4px; }
figcaption { font-size: .85rem; color: var(--soft); }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
<p class="soft">Each model's picture has ground truth and prediction, as tools/test.py --show-dir
drew it. {% if differs %}Pictures that differ most come first; in the difference black is equal and
white the largest difference of that picture.{% endif %}</p>
{% for row in rows %}
<section>
<h2>{{ row.name }}</h2>
{% if differs %}<p class="soft">{{ row.share }} of the pixels differ</p>{% endif %}
<div class="row">{% for label, image in row.pictures %}
<figure><img alt="{{ label }}: {{ row.name }}" src="data:image/jpeg;base64,{{ image }}">
<figcaption>{{ label }}</figcaption></figure>{% endfor %}
</div>
</section>
{% endfor %}
</main>
</body>
</html>
'''
NOTICED = 8  # levels of 255 that a pixel has to differ by: JPEG artefacts do not count


def gallery(args: Namespace) -> None:
    """Writes the page and prints where it is.

    Args:
        args: folders (LABEL=FOLDER texts), images (None or the folder of the inputs), out (the
            page), most (pictures).

    Raises:
        RunError: a folder has no pictures, they have none in common, or one cannot be read.
    """
    folders = dict(read_folder(text) for text in args.folders)
    if len(folders) < len(args.folders):
        raise RunError('two folders have the same LABEL')
    found = {label: pictures_in(folder) for label, folder in folders.items()}
    names = sorted(set.intersection(*(set(pictures) for pictures in found.values())))
    if not names:
        raise RunError(f'{" and ".join(map(str, folders.values()))} have no picture of the same '
                       'name: let tools/test.py --show-dir draw the same test set')
    inputs = pictures_in(Path(args.images)) if args.images else {}
    rows = [row_of(name, {label: pictures[name] for label, pictures in found.items()},
                   input_of(name, inputs)) for name in progress(names, 'pictures')]
    rows.sort(key=lambda row: -row['differs'])
    page = fill(TEMPLATE, title=f'Predictions of {", ".join(folders)}', rows=rows[:args.most],
                differs=len(folders) == 2)
    try:
        Path(args.out).write_text(page)
    except OSError as error:
        raise RunError(f'{args.out}: {error}') from error
    print(f'{min(len(rows), args.most)} of {len(names)} pictures: {short(args.out)}')


def read_folder(text: str) -> tuple[str, Path]:
    """LABEL=FOLDER.

    Raises:
        RunError: it is not, or there is no such folder.
    """
    label, joint, folder = text.partition('=')
    if not (label and joint and folder):
        raise RunError(f'{text}: expected LABEL=FOLDER')
    return label, Path(folder)


def pictures_in(folder: Path) -> dict[str, Path]:
    """File name -> path of the pictures below a folder.

    Raises:
        RunError: there are none.
    """
    found = {path.name: path for path in sorted(folder.rglob('*'))
             if path.suffix.lower() in SUFFIXES}
    if not found:
        raise RunError(f'{folder}: holds no picture ({", ".join(SUFFIXES)})')
    return found


def input_of(name: str, inputs: Mapping[str, Path]) -> Path | None:
    """The input of a picture: its name, apart from what the toolbox has put around it.

    mmdet keeps the name, mmpretrain puts a number behind it, and mmseg a number behind and
    ``test_`` before the file's whole name: ``test_IMAGE.jpg_7.png``.
    """
    stems = {Path(file).stem: path for file, path in inputs.items()}
    stem = Path(name).stem
    shorter = stem.rpartition('_')[0]
    whole = shorter.removeprefix('test_').removeprefix('val_')
    return next((stems[one] for one in (stem, shorter, whole, Path(whole).stem) if one in stems),
                None)


def row_of(name: str, pictures: Mapping[str, Path], source: Path | None) -> dict:
    """What the page shows of one picture."""
    images = {label: read(path) for label, path in pictures.items()}
    shown = [('input', encode(read(source)))] if source else []
    shown += [(label, encode(image)) for label, image in images.items()]
    share = 0.
    if len(images) == 2:
        one, other = images.values()
        if one.shape == other.shape:
            apart = cv2.absdiff(one, other).max(axis=2)
            share = float((apart > NOTICED).mean())
            scaled = apart.astype(np.float32) * (255 / max(int(apart.max()), 1))
            shown.append(('difference', encode(scaled.astype(np.uint8))))
    return dict(name=name, pictures=shown, differs=share, share=f'{share:.1%}')


def read(path: Path) -> np.ndarray:
    """(H, W, 3), BGR.

    Raises:
        RunError: it is no picture.
    """
    image = cv2.imread(str(path))
    if image is None:
        raise RunError(f'{path}: cannot be read as an image')
    return image


def encode(image: np.ndarray) -> str:
    """A JPEG file in base64."""
    encoded = cv2.imencode('.jpg', image, (cv2.IMWRITE_JPEG_QUALITY, 88))[1]
    return base64.b64encode(encoded.tobytes()).decode()
