#!/usr/bin/env python
"""Fold a trained model for one image size, and write it as a config and a checkpoint.

    python tools/deploy.py configs/quickstart/upernet.py CHECKPOINT deployed --img-size 128
    python tools/test.py deployed/model.py deployed/model.pth
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('out', help='folder for model.py and model.pth')
    arguments.add_size(parser, 'of the images as they enter the backbone')
    parser.add_argument('--force', action='store_true', help='overwrite what OUT holds')
    arguments.add_model(parser)
    arguments.add_trust(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs.deploy import deploy
        deploy(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
