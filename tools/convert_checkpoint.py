#!/usr/bin/env python
"""Rename a checkpoint's weights from any code base's names to another's.

    python tools/convert_checkpoint.py deit_tiny_patch16_224.pth deit_tiny.safetensors --to lape_mm

To train from published weights, convert nothing: `init_cfg` reads them as they are.
Some models have the same keys, such as joinings default and share: weights do not tell them apart.
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import RunError, exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('source', metavar='IN', help='checkpoint of any known layout, '
                        '.pth or .safetensors')
    parser.add_argument('out', metavar='OUT', help='file to write, .pth or .safetensors')
    parser.add_argument('--to', required=True, metavar='NAMES', help='names to use: lape_mm, '
                        'timm, deit, lape, mmpretrain or vit_adapter')
    parser.add_argument('--force', action='store_true', help='overwrite OUT')
    arguments.add_trust(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.checkpoints import CheckpointError
        from lape_mm.checkpoints.convert import convert
        arguments.apply_trust(args)
        try:
            print(convert(args.source, args.out, args.to, force=args.force))
        except CheckpointError as error:
            raise RunError(str(error)) from error

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
