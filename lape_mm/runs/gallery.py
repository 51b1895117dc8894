"""What tools/gallery.py does: puts several models' pictures side by side on one page."""
from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import cv2

from lape_mm.analysis.page import page
from lape_mm.wording import short

from .errors import RunError
from .images import find_images, jpeg, read_image
from .progress import progress

NOTE = 'Each picture shows ground truth and prediction, drawn by tools/test.py --show-dir.'
SORTED = (' Pictures that differ most come first. In the difference, black means equal and white '
          'the largest difference of that picture.')
NOTICED = 8  # of 255 levels: smaller differences may be JPEG artefacts


def gallery(args: Namespace) -> None:
    """Writes the page of tools/gallery.py and prints its path."""
    found: dict[str, dict[str, Path]] = {}
    for text in args.folders:
        label, _, folder = text.partition('=')
        if not folder or label in found:
            raise RunError(f'{text}: expected LABEL=FOLDER, with each LABEL once')
        found[label] = {path.name: path for path in find_images(folder)}
    names = sorted(set.intersection(*map(set, found.values())))
    if not names:
        raise RunError(f'{" and ".join(args.folders)} have no picture of the same name: let '
                       'tools/test.py --show-dir draw the same test set')
    rows = []
    for name in progress(names, 'pictures'):
        images = {label: read_image(paths[name]) for label, paths in found.items()}
        row: dict = dict(title=name, differs=0., note='')
        if len(images) == 2 and len({image.shape for image in images.values()}) == 1:
            apart = cv2.absdiff(*images.values()).max(axis=2)
            row.update(differs=float((apart > NOTICED).mean()),
                       note=f'{(apart > NOTICED).mean():.1%} of the pixels differ')
            images['difference'] = cv2.convertScaleAbs(apart, alpha=255 / max(apart.max(), 1))
        rows.append(dict(row, pictures=[(label, jpeg(image)) for label, image in images.items()]))
    rows.sort(key=lambda row: -row['differs'])
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(page(f'Predictions of {", ".join(found)}', rows[:args.most],
                                   NOTE + SORTED * (len(found) == 2)))
    print(f'{min(len(rows), args.most)} of {len(names)} pictures: {short(args.out)}')
