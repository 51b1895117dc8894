#!/usr/bin/env python
"""Compares joinings on small real data, most of it in short runs on one CPU thread each.

    python benchmarks/studies.py imagenet_mini        # under an hour on two cores
    python benchmarks/studies.py --list               # all of them, and what is there already
    python benchmarks/studies.py ade_mini --check mpvg 1          # again: the very same figures?

study_cells.py lists the studies. LAPE_MM_IMAGENET, LAPE_MM_CIFAR100, LAPE_MM_ADE20K and
LAPE_MM_COCO name the data. Runs of one seed come before those of the next, and a killed run
continues where it stopped. A run with a record in benchmarks/ledger is skipped unless its config
has changed. Studies share runs, so two studies at a time need a --work-dir each. tables.py --write
puts the results into docs/evidence.md.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

from rich.progress import track
from study_cells import STUDIES

from lape_mm.runs import results
from lape_mm.runs.config import load_config, settle_loaders
from lape_mm.runs.engine.record_hook import RECORD, fingerprint
from lape_mm.runs.errors import RunError, exit_status

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / 'benchmarks/ledger'
SCALE = -8, 12  # of all plots, in points
# the files of a data set that runs read; CIFAR's have no suffix
KINDS = ('', '.jpg', '.jpeg', '.png', '.json')
PARTS = ('train', 'val', 'images', 'annotations', 'train2017', 'val2017', 'cifar-100-python')


def name_of(cell: str, seed: int) -> str:
    """A file's or folder's name for a run."""
    words = ''.join(letter if letter.isalnum() else ' ' for letter in cell).split()
    return f'{"-".join(words)}_seed{seed}'


def ledger_path(study: str, cell: str, seed: int) -> Path:
    """Where a run's record is kept."""
    return LEDGER / study / f'{name_of(cell, seed)}.json'


def digest(folder: str | Path) -> str:
    """Sixteen letters that identify the images and labels in a data set's folder.

    Raises:
        RunError: the folder holds none.
    """
    found = hashlib.sha256()
    paths = sorted(path for part in PARTS for path in Path(folder, part).rglob('*')
                   if path.suffix.lower() in KINDS and path.name[0] != '.' and path.is_file())
    if not paths:
        raise RunError(f'{folder}: none of {", ".join(PARTS)} is there; LAPE_MM_IMAGENET, '
                       'LAPE_MM_CIFAR100, LAPE_MM_ADE20K and LAPE_MM_COCO name the folders, see '
                       'docs/evidence.md')
    for path in paths:
        found.update(path.relative_to(folder).as_posix().encode() + b'\0')
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def check_data(study: str) -> None:
    """Checks that a study, and each study it starts from, would run on the data of its records.

    Raises:
        RunError: the data set is another one.
    """
    for name in dict.fromkeys([study, *(cell.start[0] for cell in STUDIES[study].cells.values()
                                        if cell.start)]):
        folder = load_config(f'configs/{STUDIES[name].config}.py').data_root
        if (found := digest(folder)) != STUDIES[name].data:
            raise RunError(f'{folder}: not the images and labels of the study {name}, see '
                           f'docs/evidence.md: digest {found}, expected {STUDIES[name].data}')


class Runs:
    """The runs of all studies, in one folder of work folders.

    Args:
        work_dir: parent of the work folders, from the repository's root.
        changes: study -> further --cfg-options, for tests.
    """

    def __init__(self, work_dir: Path, changes: Mapping[str, Mapping] | None = None):
        self.work_dir, self.changes = work_dir, dict(changes or {})

    def folder(self, study: str, cell: str, seed: int) -> Path:
        """A run's work folder."""
        return self.work_dir / study / name_of(cell, seed)

    def options(self, study: str, cell: str, seed: int) -> dict:
        """--cfg-options of a run."""
        wanted = STUDIES[study].cells[cell]
        found = {'randomness.seed': seed, **STUDIES[study].options, **wanted.options,
                 **self.changes.get(study, {})}
        if wanted.start:
            found['model.backbone.init_cfg'] = dict(
                type='Pretrained',
                checkpoint=os.path.relpath(self.weights(*wanted.start, seed), ROOT))
        return found

    def weights(self, study: str, cell: str, seed: int) -> Path:
        """The weights that other studies start from, named after their run's fingerprint."""
        return self.folder(study, cell, seed) / f'{self.expected(study, cell, seed)}.pth'

    def expected(self, study: str, cell: str, seed: int) -> str:
        """The fingerprint of a run with today's config."""
        wanted = STUDIES[study]
        cfg = load_config(
            f'configs/{wanted.config}.py', joining=wanted.cells[cell].joining,
            options=self.options(study, cell, seed))
        settle_loaders(cfg)
        return fingerprint(cfg)

    def recorded(self, study: str, cell: str, seed: int) -> bool:
        """Whether the ledger has this run, finished and with today's config."""
        path = ledger_path(study, cell, seed)
        if not path.exists():
            return False
        record = results.read_record(path)
        return record['finished'] and record['fingerprint'] == self.expected(study, cell, seed)

    def train(self, study: str, cell: str, seed: int) -> dict:
        """Trains a run to its end, from where it stopped, and returns its record.

        Raises:
            RunError: the run failed; the message ends with its output.
        """
        folder, wanted = self.folder(study, cell, seed), STUDIES[study]
        if (start := wanted.cells[cell].start) and not self.weights(*start, seed).exists():
            self.train(*start, seed)
        path = folder / RECORD
        if path.exists() and results.read_record(path)['fingerprint'] != self.expected(
                study, cell, seed):
            shutil.rmtree(folder)  # a run with another config cannot be continued
        folder.mkdir(parents=True, exist_ok=True)
        joining = wanted.cells[cell].joining
        options = [f'{key}={value}' for key, value in self.options(study, cell, seed).items()]
        with open(folder / 'output.log', 'a') as log:
            status = subprocess.run(
                [sys.executable, 'tools/train.py', f'configs/{wanted.config}.py',
                 '--joining', str(joining), '--work-dir', str(folder), '--resume',
                 '--cfg-options', *options],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'}).returncode
        if status:
            raise RunError(f'{folder / "output.log"}: status {status}\n'
                           + (folder / 'output.log').read_text()[-2000:])
        shutil.copy((folder / 'last_checkpoint').read_text(), self.weights(study, cell, seed))
        return results.read_record(folder / RECORD)

    def keep(self, study: str, cell: str, seed: int) -> None:
        """Trains a run and copies its record into the ledger."""
        self.train(study, cell, seed)
        path = ledger_path(study, cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder(study, cell, seed) / RECORD, path)


def run_of(study: str, cell: str, seed: int) -> tuple[str, str, int]:
    """Study, cell and seed of a cell's run, which may be another study's."""
    return *(STUDIES[study].cells[cell].same or (study, cell)), seed


def earlier(study: str, cell: str) -> str:
    """The removed loop that made a run's record, or that of the run it starts from; '' if none."""
    start = STUDIES[study].cells[cell].start
    return STUDIES[study].earlier or (STUDIES[start[0]].earlier if start else '')


def all_runs(study: str) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """A study's cells and their runs, seed by seed, so that unfinished studies share seeds."""
    for seed in STUDIES[study].seeds:
        for cell in STUDIES[study].cells:
            yield cell, run_of(study, cell, seed)


def run(study: str, args: argparse.Namespace) -> None:
    """Runs a study's missing runs."""
    runs = Runs(args.work_dir)
    wanted = [one for _, one in all_runs(study) if not runs.recorded(*one)]
    with ThreadPoolExecutor(args.jobs) as pool:
        for _ in track(pool.map(lambda one: runs.keep(*one), wanted), study, len(wanted)):
            pass
    print(section(study) if study in begun() else overview())


def check(study: str, cell: str, seed: int) -> None:
    """Repeats a recorded run from nothing.

    Raises:
        RunError: a figure differs in any bit, or there is no such record or cell.
    """
    if cell not in STUDIES[study].cells:
        raise RunError(f'{study} has no cell {cell!r}, expected one of '
                       f'{", ".join(map(repr, STUDIES[study].cells))}')
    found = run_of(study, cell, seed)
    path = ledger_path(*found)
    before = results.read_record(path)
    if loop := earlier(*found[:2]):
        raise RunError(f'{path.name}: {loop}, which has been removed, made this record: '
                       f'check out commit {before["commit"]} to run it again')
    with tempfile.TemporaryDirectory() as folder:
        after = Runs(Path(folder)).train(*found)
    if before['metrics'] != after['metrics']:
        raise RunError(f'{path.name}: recorded {before["metrics"][-1]}, now {after["metrics"][-1]}')
    print(f'{study}, {cell}, seed {seed}: the same figures, bit for bit: {after["metrics"][-1]}')


def records(study: str) -> tuple[list[str], list[dict]]:
    """Cells and records of a study's finished runs."""
    found = [(cell, results.read_record(path)) for cell, one in all_runs(study)
             if (path := ledger_path(*one)).exists()]
    return [cell for cell, _ in found], [record for _, record in found]


def rows(study: str) -> list[results.Row]:
    """One row for each cell, in the study's order."""
    wanted, (cells, found) = STUDIES[study], records(study)
    baselines = {cell: one.against or wanted.baseline for cell, one in wanted.cells.items()}
    made = {row.label: row for row in results.compare(
        cells, found, wanted.metric, baseline=baselines)}
    return [made[cell] for cell in wanted.cells if cell in made]


def section(study: str) -> str:
    """A study's heading, table and origin for docs/evidence.md."""
    wanted = STUDIES[study]
    _, found = records(study)
    folders = dict.fromkeys(f'`benchmarks/ledger/{home}`' for _, (home, *_) in all_runs(study))
    note = ''
    if any(earlier(study, cell) for cell in wanted.cells):
        note = (' Recorded with' if wanted.earlier else ' The pre-trained rows start from runs of')
        note += ' [an earlier training loop](#records-of-an-earlier-training-loop).'
    return '\n\n'.join([
        f'### {wanted.title}',
        results.table(rows(study), wanted.metric, digits=wanted.digits),
        f'Measured by `python benchmarks/studies.py {study}` ({", ".join(folders)}): '
        f'{results.origin(found)}.{note}'])


def begun() -> list[str]:
    """The studies with records of their own."""
    return [study for study in STUDIES if any(
        one[0] == study and ledger_path(*one).exists() for _, one in all_runs(study))]


def page() -> str:
    """The sections of all studies with records, each with its plot."""
    caption = 'differences by seed, with 95 % intervals'
    return '\n\n'.join(f'{section(study)}\n\n![{caption}]({plot_path(study).name})'
                       for study in begun())


def plot_path(study: str) -> Path:
    """The file of a study's plot."""
    return ROOT / f'docs/evidence_{study}.svg'


def plot(study: str) -> None:
    """Draws each row's differences from its baseline, in points: seeds, mean, 95 % interval.

    All studies have the same scale.
    """
    import matplotlib
    matplotlib.use('svg')
    matplotlib.rcParams.update({'svg.hashsalt': study, 'svg.fonttype': 'path', 'font.size': 9})
    from matplotlib import pyplot
    from scipy.stats import t
    found = [row for row in rows(study) if row.differences]
    points = 100 if all(value <= 1 for row in found for value in row.by_seed.values()) else 1
    figure, axes = pyplot.subplots(figsize=(6.4, .8 + .3 * len(found)), layout='constrained')
    for place, row in enumerate(found):
        values = [points * value for value in row.differences.values()]
        axes.plot(values, [place] * len(values), 'o', color='tab:blue', alpha=.5, markersize=4)
        if (count := len(values)) > 1:  # Student's t
            half = float(t.ppf(.975, count - 1)) * stdev(values) / count ** .5
        axes.errorbar(mean(values), place, fmt='|', color='black', capsize=3,
                      xerr=half if count > 1 else None)
    axes.axvline(0, color='grey', linewidth=.8)
    axes.set_yticks(range(len(found)), [f'{row.label} - {row.baseline}' for row in found])
    axes.set(xlim=SCALE, xlabel=f'difference in points of {STUDIES[study].metric}')
    axes.invert_yaxis()
    axes.grid(axis='x', alpha=.3)
    figure.savefig(plot_path(study), metadata={'Date': None})
    pyplot.close(figure)


def overview() -> str:
    """How many runs of each study are recorded, and the hours they took."""
    lines = []
    for study, wanted in STUDIES.items():
        _, found = records(study)
        hours = sum(record['cpu_seconds'] for record in found
                    if Path(record['path']).parent.name == study) / 3600  # its own runs'
        lines.append(f'{study:<16} {len(found):>3} of {len(wanted.cells) * len(wanted.seeds):>3} '
                     f'runs, {hours:.1f} h so far  {wanted.title}')
    return '\n'.join(lines)


def main(argv: list[str] | None = None) -> int:
    """Runs a study, or repeats one of its runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('study', nargs='?', choices=STUDIES)
    parser.add_argument('--check', nargs=2, metavar=('CELL', 'SEED'), help='repeat a recorded run')
    parser.add_argument('--list', action='store_true', help='show what is recorded')
    parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='runs at a time')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/studies'))
    args = parser.parse_args(argv)
    os.chdir(ROOT)  # the records name paths from there

    def work() -> None:
        if args.list:
            print(overview())
            return
        if not args.study:
            parser.error(f'a study is needed: {", ".join(STUDIES)}')
        check_data(args.study)
        if args.check:
            check(args.study, args.check[0], int(args.check[1]))
        else:
            run(args.study, args)
    return exit_status(work)


if __name__ == '__main__':
    sys.exit(main())
