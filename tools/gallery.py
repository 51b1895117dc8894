#!/usr/bin/env python
"""Show several tested models' pictures side by side on one page.

    python tools/test.py CONFIG LAPE.pth --joining lape --show-dir pictures/lape
    python tools/test.py CONFIG MPVG.pth --joining mpvg --show-dir pictures/mpvg
    python tools/gallery.py lape=pictures/lape mpvg=pictures/mpvg --out gallery.html
"""
import argparse
import sys

from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folders', nargs='+', metavar='LABEL=FOLDER',
                        help='folders that tools/test.py --show-dir wrote; for two folders, '
                        'also shows how their pictures differ')
    parser.add_argument('--out', required=True, metavar='PAGE.html', help='file to write')
    parser.add_argument('--most', type=int, default=24, help='most pictures to show (default: 24)')
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs.gallery import gallery
        gallery(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
