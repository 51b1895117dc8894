#!/usr/bin/env python
"""Training throughput of the quick-start configs, end to end, and the loader's share of it.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --tasks mask_rcnn --joining lape --iterations 60

As tools/train.py runs them, loader, hooks and log included, over the first iterations; the time
that an iteration waits for its batch is the one that mmengine logs as data_time.
"""
import sys
from statistics import median

import measure
from training_run import QUICKSTART, quickstart, training_run


def figures(found: dict, skipped: int) -> tuple[float, float]:
    """Images a second, and the share of the time spent in the loader, 0..1.

    Args:
        found: what `training_run` returns.
        skipped: iterations at the start that only warm up.
    """
    times, waits = found['time'][skipped:], found['data_time'][skipped:]
    return found['images'] * len(times) / sum(times), sum(waits) / sum(times)


def main() -> int:
    """Measures, prints and writes."""
    parser = measure.parser(__doc__, 'throughput', rounds=3)
    parser.add_argument('--tasks', nargs='+', choices=QUICKSTART, default=list(QUICKSTART))
    parser.add_argument('--joining', default='mpvg')
    # not more than the shortest epoch: what lies between epochs is no training
    parser.add_argument('--iterations', type=int, default=36)
    parser.add_argument('--skipped', type=int, default=4, help='at the start, to warm up')
    args = parser.parse_args()
    shares: dict[str, list[float]] = {task: [] for task in args.tasks}

    def run(task: str) -> float:
        rate, share = figures(training_run(quickstart(task), args.iterations, args.threads,
                                           args.joining), args.skipped)
        shares[task].append(share)
        return rate

    rates = measure.interleave({task: lambda task=task: run(task) for task in args.tasks},
                               args.rounds, warm_up=0)
    measure.print_table(
        f'quick-start training, {args.joining}, {args.threads} threads',
        ['', 'images/s', 'in the loader'],
        [[task, measure.spread(measure.summary(rates[task]), 1), f'{median(shares[task]):.1%}']
         for task in args.tasks])
    measure.write(args.out, dict(
        claim=__doc__.splitlines()[0], **{**measure.describe(args), 'threads': args.threads},
        images_per_second={task: measure.summary(rates[task]) for task in args.tasks},
        loader_share={task: measure.summary(shares[task]) for task in args.tasks},
        measured=dict(images_per_second=rates, loader_share=shares)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
