#!/usr/bin/env python
"""Show what position embedding does in a trained model: figures, arrays and one HTML page.

    python tools/analyze_position.py configs/quickstart/deit.py MPVG.pth --joining mpvg \\
        --images data/scenes/imagenet/val --out analysis --compare pvg=PVG.pth lape=LAPE.pth
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of the model, or of only its backbone')
    parser.add_argument('--images', required=True, metavar='FOLDER', help='images to run on')
    parser.add_argument('--out', required=True, metavar='FOLDER', help='folder for report.html, '
                        'summary.json, figures and arrays')
    parser.add_argument('--compare', nargs='+', metavar='JOINING=CHECKPOINT',
                        help='more models to show: the same config with another joining, or '
                        'CONFIG.py=CHECKPOINT')
    parser.add_argument('--num-images', type=arguments.above_zero(int), default=16,
                        help='use at most this many images (default: 16)')
    arguments.add_size(parser, 'that images are resized to (default: the size that the position '
                       'embedding was made for)')
    arguments.add_model(parser)
    arguments.add_trust(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs.analysis import analyze
        analyze(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
