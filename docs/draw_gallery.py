#!/usr/bin/env python
"""Puts the first four pictures of a run on one sheet.

    python docs/draw_gallery.py work_dirs/mask_rcnn/TIME/vis_data/vis_image sheet.jpg
"""
import sys
from pathlib import Path

from PIL import Image

COLUMNS, ROWS, GAP = 2, 2, 12


def main(folder: str, out: str) -> None:
    """Writes the sheet; all pictures have the size of the first."""
    pictures = [Image.open(path).convert('RGB')
                for path in sorted(Path(folder).iterdir())[:COLUMNS * ROWS]]
    width, height = (side + GAP for side in pictures[0].size)
    sheet = Image.new('RGB', (COLUMNS * width - GAP, ROWS * height - GAP), 'white')
    for index, picture in enumerate(pictures):
        sheet.paste(picture, (index % COLUMNS * width, index // COLUMNS * height))
    sheet.save(out, quality=90)


if __name__ == '__main__':
    main(*sys.argv[1:])
