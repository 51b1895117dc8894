#!/usr/bin/env python
"""Serve a local page to try models: drop an image, set the score threshold, compare models.

    python tools/demo.py mask_rcnn.onnx --images photos
    python tools/demo.py configs/quickstart/mask_rcnn.py DEFAULT.pth MPVG.pth --joining default mpvg
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', nargs='+',
                        help='MODEL.onnx ..., or CONFIG CHECKPOINT ...; several models are shown '
                        'side by side')
    parser.add_argument('--images', metavar='FOLDER', help='example images to choose from')
    parser.add_argument('--port', type=int, help='port of the page (default: first free from 7860)')
    parser.add_argument('--share', action='store_true',
                        help="make the page public through Gradio's servers")
    arguments.add_demo(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.demo.page import serve
        serve(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
