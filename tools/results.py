#!/usr/bin/env python
"""Compare runs over seeds in a table, from the record.json files in their work folders.

    python tools/results.py work_dirs/deit-* --baseline default
"""
import argparse
import sys

from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folders', nargs='+', help='work folders, their parents, or record files')
    parser.add_argument('--metric', help='metric to show (default: the first measured)')
    parser.add_argument('--baseline', metavar='LABEL', help='also show differences to this row, '
                        'paired by seed')
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs.results import show
        print(show(args.folders, metric=args.metric, baseline=args.baseline))

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
