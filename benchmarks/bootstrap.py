#!/usr/bin/env python
"""How far the differences between a study's rows depend on its test images.

    python benchmarks/studies.py grafting_ade
    python benchmarks/bootstrap.py grafting_ade

tests the weights of the study's finished runs and draws the test images anew, with replacement and
alike for all rows. Prints each row's difference from its baseline, the mean over the seeds that
both have, with the 95 % interval over the draws. Works for metrics that mmengine computes from one
entry an image, mIoU and accuracy among them; not for COCO's AP.
"""
import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from studies import ROOT, Runs
from study_cells import STUDIES

from lape_mm.runs import session
from lape_mm.runs.config import load_config
from lape_mm.runs.errors import exit_status

DRAWS = 1000


def results(runs: Runs, study: str, cell: str, seed: int) -> tuple[list, Callable]:
    """The metric's entry for each test image, and the function that sums entries up."""
    cfg = load_config(f'configs/{STUDIES[study].config}.py',
                      joining=STUDIES[study].cells[cell].joining,
                      options=runs.options(study, cell, seed))
    cfg.update(load_from=str(runs.weights(study, cell, seed)), log_level='WARNING',
               work_dir=str(runs.folder(study, cell, seed) / 'bootstrap'))
    runner = session.build_runner(cfg, 'test')
    metric = runner.test_evaluator.metrics[0]
    kept: list = []
    compute = metric.compute_metrics
    metric.compute_metrics = lambda entries: kept.extend(entries) or compute(entries)
    runner.test()
    return kept, compute


def main() -> int:
    """Prints a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('study', choices=STUDIES)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/studies'))
    args = parser.parse_args()
    os.chdir(ROOT)

    def work() -> None:
        runs, study = Runs(args.work_dir), STUDIES[args.study]
        name, drawn = study.metric.split('/')[-1], {}
        for cell in study.cells:
            for seed in study.seeds:
                if runs.weights(args.study, cell, seed).exists():
                    entries, compute = results(runs, args.study, cell, seed)
                    draws = np.random.default_rng(0).integers(
                        0, len(entries), (DRAWS, len(entries)))
                    drawn[cell, seed] = np.array([
                        compute([entries[index] for index in draw])[name]
                        for draw in (range(len(entries)), *draws)])
        for cell, one in study.cells.items():
            against = one.against or study.baseline
            both = [drawn[cell, seed] - drawn[against, seed] for seed in study.seeds
                    if {(cell, seed), (against, seed)} <= drawn.keys()]
            if both and cell != against:
                change, *rest = np.mean(both, axis=0)
                low, high = np.percentile(rest, (2.5, 97.5))
                print(f'{cell} - {against}: {change:+.2f} ({low:+.2f} to {high:+.2f}), '
                      f'{len(both)} seeds, {len(entries)} images')
    return exit_status(work)


if __name__ == '__main__':
    sys.exit(main())
