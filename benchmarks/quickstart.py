#!/usr/bin/env python
"""Trains the quick-start configs with each joining and records what they reach.

    python benchmarks/quickstart.py                       # 4 tasks x 4 joinings, about an hour
    python benchmarks/quickstart.py --tasks deit --joinings mpvg lape

Every run writes its record at once, so an interrupted benchmark continues where it stopped. A
record of another version of its config is measured again. The figures show that every combination
trains; single-seed runs this short cannot rank the methods. The time limits are for two idle cores.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from measure import ROOT, described
from mmengine.config import Config

from lape_mm.runs.engine.record_hook import RECORD, fingerprint
from lape_mm.runs.results import figure, markdown, read_record

RECORDS = ROOT / 'benchmarks/quickstart.json'
JOININGS = ('default', 'lape', 'pvg', 'mpvg')
# task -> metric in the log, its scale to 0..1, the target, the limit in seconds
TASKS = {
    'deit': ('accuracy/top1', .01, .80, 90),
    'mask_rcnn': ('coco/segm_mAP_50', 1., .50, 300),
    'upernet': ('mIoU', .01, .60, 300),
    'segmenter': ('mIoU', .01, .50, 300),
}


def config_of(task: str) -> str:
    """The fingerprint of a quick-start config, its bases included."""
    return fingerprint(Config.fromfile(ROOT / f'configs/quickstart/{task}.py'))


def run(task: str, joining: str, folder: Path) -> dict:
    """Trains with tools/train.py and returns the record; CalledProcessError if that fails."""
    metric, scale, target, limit = TASKS[task]
    work_dir = folder / f'{task}-{joining}'
    start = time.perf_counter()
    with open(folder / f'{task}-{joining}.log', 'w') as log:
        subprocess.run([sys.executable, 'tools/train.py', f'configs/quickstart/{task}.py',
                        '--joining', joining, '--work-dir', str(work_dir)],
                       cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=True)
    seconds = time.perf_counter() - start
    value = figure(read_record(work_dir / RECORD), metric)
    return dict(task=task, joining=joining, metric=metric, value=round(value * scale, 4),
                target=target, seconds=round(seconds), limit=limit, seed=0, config=config_of(task),
                **described())


def table(records: dict[str, dict]) -> str:
    """The records as a Markdown table, with the seconds that the runs took."""
    rows = []
    for task, (metric, _, target, _) in TASKS.items():
        found = [records.get(f'{task}-{joining}', {}) for joining in JOININGS]
        seconds = [record['seconds'] for record in found if record]
        rows.append([f'`{task}.py`', metric, f'{target:.2f}',
                     *(f'{record["value"]:.3f}' if record else '' for record in found),
                     f'{min(seconds)} to {max(seconds)}' if seconds else ''])
    return markdown(['config, measured', 'metric', 'target', *JOININGS, 'seconds'], rows)


def main() -> int:
    """Trains what has no record yet and prints the table; 1 if a run misses its target or limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=list(TASKS))
    parser.add_argument('--joinings', nargs='+', choices=JOININGS, default=list(JOININGS))
    parser.add_argument('--work-dir', type=Path, default=ROOT / 'work_dirs/benchmark')
    args = parser.parse_args()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}  # by task and joining
    for task in args.tasks:
        config = config_of(task)
        for joining in args.joinings:
            name = f'{task}-{joining}'
            if records.get(name, {}).get('config') == config:
                continue
            record = records[name] = run(task, joining, args.work_dir)
            RECORDS.write_text(json.dumps(records, indent=1) + '\n')
            print(f'{name}: {record["metric"]} {record["value"]:.3f} '
                  f'(target {record["target"]:.2f}) in {record["seconds"]} s '
                  f'(limit {record["limit"]} s)', flush=True)
    print(table(records))
    return int(any(record['value'] < record['target'] or record['seconds'] > record['limit']
                   for record in records.values()))


if __name__ == '__main__':
    sys.exit(main())
