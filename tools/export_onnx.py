#!/usr/bin/env python
"""Export a trained model to ONNX, if its outputs match those of PyTorch on real images.

    python tools/export_onnx.py configs/quickstart/upernet.py CHECKPOINT upernet.onnx
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('out', metavar='OUT.onnx', help='file to write')
    arguments.add_size(parser, "of the model's input (default: that of the config's test pipeline)")
    parser.add_argument('--images', metavar='FOLDER',
                        help='images for the comparison, and to calibrate --int8 static '
                        "(default: the config's test images)")
    parser.add_argument('--int8', choices=['dynamic', 'static'], help='dynamic '
                        'quantises linear layers; static also convolutions, calibrated on 64 '
                        'images')
    arguments.add_model(parser)
    arguments.add_trust(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs.export import export
        export(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
