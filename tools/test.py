#!/usr/bin/env python
"""Evaluate a checkpoint with a config of mmpretrain, mmdet or mmseg.

    python tools/test.py configs/quickstart/mask_rcnn.py CHECKPOINT --show-dir pictures
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint')
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', metavar='FILE.pkl', help='write the predictions to this file')
    parser.add_argument('--show-dir', metavar='FOLDER',
                        help='draw predictions and ground truth into this folder')
    parser.add_argument('--tta', action='store_true', help='average the predictions over flips '
                        'and, in detection and segmentation, scales')
    arguments.add_common(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs import session
        session.test(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
