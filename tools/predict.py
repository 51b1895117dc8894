#!/usr/bin/env python
"""Predict on images, folders and videos; write pictures and predictions.json.

    python tools/predict.py mask_rcnn.onnx --inputs photos --out predictions
    python tools/predict.py configs/quickstart/mask_rcnn.py CHECKPOINT --inputs photo.jpg film.mp4
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', nargs='+', help='MODEL.onnx, or CONFIG CHECKPOINT')
    parser.add_argument('--inputs', nargs='+', required=True, metavar='PATH',
                        help='images, videos, or folders of them')
    parser.add_argument('--out', default='predictions', metavar='FOLDER',
                        help='folder of the results (default: predictions)')
    arguments.add_demo(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.demo.predict import predict
        predict(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
