#!/usr/bin/env python
"""Compares joinings on small real data, most of it in short runs on one CPU thread each.

    python benchmarks/studies.py imagenet_mini        # under an hour on two cores
    python benchmarks/studies.py --list               # all of them, and what is there already
    python benchmarks/studies.py ade_mini --check mpvg 1          # again: the very same figures?
    python benchmarks/studies.py --write              # tables and plots of docs/evidence.md
    python benchmarks/studies.py cifar100_table2 --jobs 4 --minutes 9     # on a GPU, in pieces

What is compared: study_cells.py. Data: LAPE_MM_IMAGENET, LAPE_MM_CIFAR100, LAPE_MM_ADE20K and
LAPE_MM_COCO. A run that is killed goes on where it was; one whose record is in benchmarks/ledger is
not run again, unless its config has changed since. Studies share runs: two at a time want a
--work-dir each.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from study_cells import STUDIES

from lape_mm.engine.record_hook import RECORD, fingerprint
from lape_mm.runs import results
from lape_mm.runs.amp import set_amp
from lape_mm.runs.config import load_config, settle_loaders
from lape_mm.runs.errors import RunError, exit_status

ROOT = Path(__file__).resolve().parents[1]
LEDGER = ROOT / 'benchmarks/ledger'
# the folders of data sets that are read, and what is read there; CIFAR's have no suffix
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
    """Sixteen letters that say which images and labels a data set's folder holds.

    Raises:
        RunError: it holds none.
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
    """Compares what a study and those that it starts from would be run on with their records' data.

    Raises:
        RunError: it is another data set.
    """
    for name in dict.fromkeys([study, *(cell.start[0] for cell in STUDIES[study].cells.values()
                                        if cell.start)]):
        folder = load_config(f'configs/{STUDIES[name].config}.py').data_root
        if (found := digest(folder)) != STUDIES[name].data:
            raise RunError(f'{folder}: not the images and labels of the study {name}, see '
                           f'docs/evidence.md: digest {found}, expected {STUDIES[name].data}')


class OutOfTime(Exception):
    """The minutes of a call are over."""


class Runs:
    """The runs of all studies, in one folder of work folders.

    Args:
        work_dir: for their work folders, from the repository's root.
        changes: further --cfg-options of a study, for a rehearsal.
        minutes: after which its runs are stopped.
    """

    def __init__(self, work_dir: Path, changes: Mapping[str, Mapping] | None = None,
                 minutes: float = 1e6):
        self.work_dir, self.changes = work_dir, dict(changes or {})
        self.end = time.monotonic() + 60 * minutes

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
        """What other studies start from, whatever its epoch, named after what was run for it."""
        return self.folder(study, cell, seed) / f'{self.expected(study, cell, seed)}.pth'

    def expected(self, study: str, cell: str, seed: int) -> str:
        """The fingerprint that a run's record has to have."""
        wanted = STUDIES[study]
        cfg = load_config(
            f'configs/{wanted.config}.py', joining=wanted.cells[cell].joining,
            options=self.options(study, cell, seed))
        settle_loaders(cfg)
        if wanted.amp:
            set_amp(cfg, wanted.amp)
        return fingerprint(cfg)

    def recorded(self, study: str, cell: str, seed: int) -> bool:
        """Whether the ledger has this very run."""
        path = ledger_path(study, cell, seed)
        if not path.exists():
            return False
        record = results.read_record(path)
        return record['finished'] and record['fingerprint'] == self.expected(study, cell, seed)

    @staticmethod
    def _is_of_now(folder: Path, expected: str) -> bool:
        """Whether a work folder's record, if there is one, is of the config as it is."""
        path = folder / RECORD
        return not path.exists() or results.read_record(path)['fingerprint'] == expected

    def train(self, study: str, cell: str, seed: int) -> dict:
        """Runs it to its end, from where it was; its record.

        Raises:
            RunError: it has failed, with the end of what it said.
            OutOfTime: it has been stopped, and goes on in another call.
        """
        folder, wanted = self.folder(study, cell, seed), STUDIES[study]
        if (start := wanted.cells[cell].start) and not self.weights(*start, seed).exists():
            self.train(*start, seed)
        if not self._is_of_now(folder, self.expected(study, cell, seed)):
            shutil.rmtree(folder, ignore_errors=True)  # of another config: not gone on with
        folder.mkdir(parents=True, exist_ok=True)
        joining = wanted.cells[cell].joining
        options = [f'{key}={value}' for key, value in self.options(study, cell, seed).items()]
        with open(folder / 'output.log', 'a') as log:
            child = subprocess.Popen(
                [sys.executable, 'tools/train.py', f'configs/{wanted.config}.py',
                 '--joining', str(joining), '--work-dir', str(folder), '--resume',
                 *(['--amp', wanted.amp] if wanted.amp else []), '--cfg-options', *options],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'})
            try:
                status = child.wait(max(0., self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.terminate()  # it writes a checkpoint, with which the next call goes on
                child.wait()
                raise OutOfTime from None
        if status:
            raise RunError(f'{folder / "output.log"}: status {status}\n'
                           + (folder / 'output.log').read_text()[-2000:])
        shutil.copy((folder / 'last_checkpoint').read_text(), self.weights(study, cell, seed))
        return results.read_record(folder / RECORD)

    def keep(self, study: str, cell: str, seed: int) -> None:
        """Runs what the ledger lacks, and copies the record there."""
        self.train(study, cell, seed)
        path = ledger_path(study, cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder(study, cell, seed) / RECORD, path)


def run_of(study: str, cell: str, seed: int) -> tuple[str, str, int]:
    """Study, cell and seed of the run that a cell shows: its own, or another study's."""
    return *(STUDIES[study].cells[cell].same or (study, cell)), seed


def is_earlier(study: str, cell: str) -> bool:
    """Whether a run's record is of DeviceTrainLoop, or starts from a run that is."""
    start = STUDIES[study].cells[cell].start
    return STUDIES[study].earlier or bool(start and STUDIES[start[0]].earlier)


def all_runs(study: str) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """Its cells and their runs, seed by seed: a study that is cut short compares equal seeds."""
    for seed in STUDIES[study].seeds:
        for cell in STUDIES[study].cells:
            yield cell, run_of(study, cell, seed)


def run(study: str, args: argparse.Namespace) -> None:
    """Runs what is not recorded yet."""
    runs = Runs(args.work_dir, minutes=args.minutes)
    # one chip has room for a few; on a CPU each has a core
    jobs = args.jobs or (4 if STUDIES[study].amp else os.cpu_count())
    wanted = [one for _, one in all_runs(study) if not runs.recorded(*one)]
    with Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(),
                  TimeRemainingColumn()) as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task(study, total=len(wanted))
        try:
            for _ in pool.map(lambda one: runs.keep(*one), wanted):
                progress.advance(task)
        except OutOfTime:
            pool.shutdown(cancel_futures=True)
            print(f'{args.minutes:g} minutes are over: the same command goes on with the rest')
    print(section(study) if study in begun() else overview())


def check(study: str, cell: str, seed: int) -> None:
    """Runs a recorded run again, from nothing.

    Raises:
        RunError: a figure of it differs, in any bit, or it is not recorded, or there is none.
    """
    if cell not in STUDIES[study].cells:
        raise RunError(f'{study} has no cell {cell!r}, expected one of '
                       f'{", ".join(map(repr, STUDIES[study].cells))}')
    found = run_of(study, cell, seed)
    path = ledger_path(*found)
    before = results.read_record(path)
    if is_earlier(*found[:2]):
        raise RunError(f'{path.name}: DeviceTrainLoop, which has been removed, made this record: '
                       f'check out commit {before["commit"]} to run it again')
    with tempfile.TemporaryDirectory() as folder:
        after = Runs(Path(folder)).train(*found)
    if before['metrics'] != after['metrics']:
        raise RunError(f'{path.name}: recorded {before["metrics"][-1]}, now {after["metrics"][-1]}')
    print(f'{study}, {cell}, seed {seed}: the same figures, bit for bit: {after["metrics"][-1]}')


def records(study: str) -> tuple[list[str], list[dict]]:
    """Cells and records of what the ledger has of a study."""
    found = [(cell, results.read_record(path)) for cell, one in all_runs(study)
             if (path := ledger_path(*one)).exists()]
    return [cell for cell, _ in found], [record for _, record in found]


def rows(study: str) -> list[results.Row]:
    """A row a cell, in the study's order."""
    wanted, (cells, found) = STUDIES[study], records(study)
    baselines = {cell: one.against or wanted.baseline for cell, one in wanted.cells.items()}
    made = {row.label: row for row in results.compare(
        cells, found, wanted.metric, baseline=baselines)}
    return [made[cell] for cell in wanted.cells if cell in made]


def section(study: str) -> str:
    """A study's heading, table and origin, as docs/evidence.md has them."""
    wanted = STUDIES[study]
    _, found = records(study)
    folders = dict.fromkeys(f'`benchmarks/ledger/{home}`' for _, (home, *_) in all_runs(study))
    return '\n\n'.join([
        f'### {wanted.title}',
        results.table(rows(study), wanted.metric, digits=wanted.digits),
        f'Measured by `python benchmarks/studies.py {study}`, records in '
        f'{" and ".join(folders)}: {results.origin(found)}.'
        + (' Recorded with [an earlier training loop](#records-of-an-earlier-training-loop).'
           if wanted.earlier else
           ' The pre-trained rows start from runs of '
           '[an earlier training loop](#records-of-an-earlier-training-loop).'
           if any(is_earlier(study, cell) for cell in wanted.cells) else '')])


def begun() -> list[str]:
    """The studies of which the ledger has more than other studies' runs."""
    return [study for study in STUDIES if any(
        one[0] == study and ledger_path(*one).exists() for _, one in all_runs(study))]


def page() -> str:
    """All studies that the ledger has."""
    return '\n\n'.join(
        f'{section(study)}\n\n![each dot a seed, the line their mean]({plot_path(study).name})'
        for study in begun())


def plot_path(study: str) -> Path:
    """Where a study's plot is."""
    return ROOT / f'docs/evidence_{study}.svg'


def plot(study: str) -> None:
    """Draws each seed as a dot and their mean as a line, a row of the table after the other."""
    import matplotlib
    matplotlib.use('svg')
    matplotlib.rcParams.update({'svg.hashsalt': study, 'svg.fonttype': 'path', 'font.size': 9})
    from matplotlib import pyplot
    found = rows(study)
    figure, axes = pyplot.subplots(figsize=(6.4, .7 + .3 * len(found)), layout='constrained')
    for place, row in enumerate(found):
        values = list(row.by_seed.values())
        axes.plot(values, [place] * len(values), 'o', color='tab:blue', alpha=.6, markersize=5)
        axes.plot([sum(values) / len(values)] * 2, [place - .3, place + .3], color='black')
    axes.set_yticks(range(len(found)), [row.label for row in found])
    axes.invert_yaxis()
    axes.set_xlabel(f'{STUDIES[study].metric}, {STUDIES[study].title}')
    axes.grid(axis='x', alpha=.3)
    figure.savefig(plot_path(study), metadata={'Date': None})
    pyplot.close(figure)


def overview() -> str:
    """What there is of each study."""
    lines = []
    for study, wanted in STUDIES.items():
        _, found = records(study)
        hours = sum(record['cpu_seconds'] for record in found
                    if Path(record['path']).parent.name == study) / 3600  # its own runs'
        lines.append(f'{study:<16} {len(found):>3} of {len(wanted.cells) * len(wanted.seeds):>3} '
                     f'runs, {hours:.1f} h so far  {wanted.title}')
    return '\n'.join(lines)


def main() -> int:
    """Runs a study, checks a run, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('study', nargs='?', choices=STUDIES)
    parser.add_argument('--check', nargs=2, metavar=('CELL', 'SEED'), help='run one again')
    parser.add_argument('--list', action='store_true', help='what is there')
    parser.add_argument('--write', action='store_true', help='tables and plots of docs/evidence.md')
    parser.add_argument('--jobs', type=int, help='runs at a time: as many as cores, or 4 of '
                        'those that are for a GPU')
    parser.add_argument('--minutes', type=float, default=1e6, help='of this call; another one '
                        'goes on with what is left')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/studies'))
    args = parser.parse_args()
    os.chdir(ROOT)  # the records name paths from there

    def work() -> None:
        if args.list:
            print(overview())
            return
        if args.write:
            import tables
            for study in begun():
                plot(study)
            tables.write()
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
