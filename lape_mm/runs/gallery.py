"""What tools/gallery.py does: puts several models' pictures side by side on one page."""
from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from lape_mm.analysis.page import page
from lape_mm.wording import short

from .errors import RunError
from .images import SUFFIXES, jpeg, read_image
from .progress import progress

NOTE = 'Each picture shows ground truth and prediction, drawn by tools/test.py --show-dir.'
SORTED = (' Pictures that differ most come first. In the difference, black means equal and white '
          'the largest difference of that picture.')
NOTICED = 8  # of 255 levels: smaller differences may be JPEG artefacts


def gallery(args: Namespace) -> None:
    """Writes the page and prints where it is.

    Args:
        args: folders (a list of LABEL=FOLDER), images (the inputs' folder or None), out (the
            page), most (the number of pictures).
    """
    found: dict[str, dict[str, Path]] = {}
    for text in args.folders:
        label, _, folder = text.partition('=')
        if not (label and folder) or label in found:
            raise RunError(f'{text}: expected LABEL=FOLDER, and no LABEL twice')
        found[label] = pictures_in(folder)
    names = sorted(set.intersection(*map(set, found.values())))
    if not names:
        raise RunError(f'{" and ".join(args.folders)} have no picture of the same name: let '
                       'tools/test.py --show-dir draw the same test set')
    inputs = pictures_in(args.images) if args.images else {}
    rows = [row_of(name, {label: pictures[name] for label, pictures in found.items()},
                   input_of(name, inputs)) for name in progress(names, 'pictures')]
    rows.sort(key=lambda row: -row['differs'])
    try:
        Path(args.out).write_text(page(f'Predictions of {", ".join(found)}', rows[:args.most],
                                       NOTE + SORTED * (len(found) == 2)))
    except OSError as error:
        raise RunError(f'{args.out}: {error}') from error
    print(f'{min(len(rows), args.most)} of {len(names)} pictures: {short(args.out)}')


def pictures_in(folder: str) -> dict[str, Path]:
    """Maps file names to paths of the pictures below a folder; RunError if there are none."""
    found = {path.name: path for path in sorted(Path(folder).rglob('*'))
             if path.suffix.lower() in SUFFIXES}
    if not found:
        raise RunError(f'{folder}: holds no picture ({", ".join(SUFFIXES)})')
    return found


def input_of(name: str, inputs: Mapping[str, Path]) -> Path | None:
    """The input of a drawn picture, by its name.

    For ``IMAGE.jpg``, mmdet draws ``IMAGE.jpg``, mmpretrain ``IMAGE_7.png`` and mmseg
    ``test_IMAGE.jpg_7.png``.
    """
    stems = {path.stem: path for path in inputs.values()}
    whole = Path(name).stem.rpartition('_')[0]
    bare = whole.removeprefix('test_').removeprefix('val_')
    return next((stems[one] for one in (Path(name).stem, whole, bare, Path(bare).stem)
                 if one in stems), None)


def row_of(name: str, pictures: Mapping[str, Path], source: Path | None) -> dict:
    """A section of the page for one picture."""
    images = {label: read_image(path) for label, path in pictures.items()}
    shown = {**({'input': read_image(source)} if source else {}), **images}
    share = 0.
    if len(images) == 2:
        one, other = images.values()
        if one.shape == other.shape:
            apart = cv2.absdiff(one, other).max(axis=2)
            share = float((apart > NOTICED).mean())
            shown['difference'] = (apart * (255 / max(int(apart.max()), 1))).astype(np.uint8)
    return dict(title=name, differs=share, pictures=[
        (label, jpeg(image)) for label, image in shown.items()],
        note=f'{share:.1%} of the pixels differ' if len(images) == 2 else '')
