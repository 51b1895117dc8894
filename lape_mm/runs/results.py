"""Tables of runs: mean and spread over seeds, and differences paired by seed."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from lape_mm.runs.engine.record_hook import RECORD

from .errors import RunError

SEED = 'randomness.seed'
KEYS = ('config', 'overrides', 'seed', 'metrics', 'finished', 'fingerprint', 'machine', 'versions',
        'commit', 'started', 'cpu_seconds')


def read_records(folders: Iterable[str | Path]) -> list[dict]:
    """Reads all records below folders: each ``record.json``, or else the ``*.json`` of a ledger."""
    found: list[Path] = []
    for folder in map(Path, folders):
        paths = [folder] if folder.is_file() else (
            sorted(folder.rglob(RECORD)) or sorted(folder.glob('*.json')))
        if not paths:
            raise RunError(f'{folder}: has no record of a run; training writes {RECORD} '
                           'into its work folder')
        found += paths
    return [read_record(path) for path in found]


def read_record(path: Path) -> dict:
    """Reads a `RunRecordHook`'s file and adds its ``path``; RunError if it is no record."""
    try:
        record = json.loads(path.read_text())
        if lacking := [name for name in KEYS if name not in record]:
            raise ValueError(f'without {", ".join(lacking)}')
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f'{path}: not a record of a run: {error}') from error
    return dict(record, path=str(path))


def label_runs(records: Sequence[Mapping]) -> list[str]:
    """Labels each run by its config and overrides, without the seed and shared settings."""
    settings = [{'config': Path(record['config'] or '?').stem,
                 **{key.removeprefix('--'): value for key, value in record['overrides'].items()
                    if key != SEED}} for record in records]
    shared = [key for key, value in settings[0].items()
              if all(key in one and one[key] == value for one in settings)] if settings else []
    return [', '.join(f'{value}' if key in ('config', 'joining') else f'{key}={value}'
                      for key, value in one.items() if key not in shared) or one['config']
            for one in settings]


def figure(record: Mapping, metric: str) -> float:
    """A metric of a run's last validation; RunError if the run has none."""
    values = [line[metric] for line in record['metrics'] if metric in line]
    if not values:
        known = sorted({name for line in record['metrics'] for name in line})
        raise RunError(f'{record["path"]}: no metric {metric!r}, but {", ".join(known) or "none"}')
    return values[-1]


@dataclass(frozen=True)
class Row:
    """Runs that differ only in seed: each seed's metric, and its difference from the baseline's."""

    label: str
    by_seed: dict[int, float]
    baseline: str | None
    differences: dict[int, float]


def compare(labels: Sequence[str], records: Sequence[Mapping], metric: str, *,
            baseline: str | Mapping[str, str] | None = None) -> list[Row]:
    """One row per label of finished runs, in order. ``baseline``: one for all, or one per label."""
    found: dict[str, dict[int, float]] = {}
    kinds: dict[str, str] = {}
    for label, record in zip(labels, records):
        if not record['finished']:
            continue
        kind = kinds.setdefault(label, record['fingerprint'])
        if any(part['fingerprint'] != kind for part in (record, *record.get('resumed_with', ()))):
            raise RunError(f'{label}: {record["path"]} ran another config than runs of the same '
                           'label, or changed it on resume: leave it out')
        seeds = found.setdefault(label, {})
        if record['seed'] in seeds:
            raise RunError(f'{label}: seed {record["seed"]} twice, also in {record["path"]}')
        seeds[record['seed']] = figure(record, metric)
    if not found:
        raise RunError('none of the runs has finished')
    if isinstance(baseline, str) and baseline not in found:
        raise RunError(f'baseline {baseline!r}: expected one of {", ".join(map(repr, found))}')
    rows = []
    for label, by_seed in found.items():
        against = baseline.get(label) if isinstance(baseline, Mapping) else baseline
        base = found.get(against or '', {}) if against != label else {}
        rows.append(Row(label, by_seed, None if against == label else against, {
            seed: value - base[seed] for seed, value in by_seed.items() if seed in base}))
    return rows


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation, ``12.30 ± 0.45``; a single value as it is."""
    text = f'{mean(values):.{digits}f}'
    return f'{text} ± {stdev(values):.{digits}f}' if len(values) > 1 else text


def change(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard error of paired differences, and how many go up and down."""
    if len(values) < 2:
        return ''.join(f'{value:+.{digits}f}' for value in values)
    error = stdev(values) / len(values) ** .5
    up, down = sum(value > 0 for value in values), sum(value < 0 for value in values)
    return f'{mean(values):+.{digits}f} ± {error:.{digits}f} ({up} up, {down} down)'


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    first, *rest = ('| ' + ' | '.join(row) + ' |' for row in (head, *rows))
    return '\n'.join([first, '|---' * len(head) + '|', *rest])


def table(rows: Sequence[Row], metric: str, *, digits: int = 2) -> str:
    """Rows as a Markdown table, with differences to their baselines."""
    baselines = list(dict.fromkeys(row.baseline for row in rows if row.baseline))
    head = ['', 'seeds', f'{metric}, measured', *['paired by seed'] * bool(baselines)]
    if len(baselines) == 1:
        head[-1] = f'minus {baselines[0]}, paired by seed'
    lines = []
    for row in rows:
        text = change(list(row.differences.values()), digits)
        if text and len(baselines) > 1:
            text = f'minus {row.baseline}: {text}'
        lines.append([row.label, ', '.join(map(str, sorted(row.by_seed))),
                      spread(list(row.by_seed.values()), digits), text][:len(head)])
    return markdown(head, lines)


def origin(records: Sequence[Mapping]) -> str:
    """A sentence on where results come from: machines, versions, commits, dates and hours."""
    def several(values: Iterable) -> str:
        return ', '.join(dict.fromkeys(map(str, values)))
    ended = [record for record in records if record['finished']]
    machines = several(record['machine']['gpu'] or f'{record["machine"]["cpu"]}, '
                       f'{record["machine"]["threads"]} thread a run' for record in ended)
    hours = sum(record['cpu_seconds'] for record in ended) / 3600
    commits = several(part['commit'] for record in ended
                      for part in (record, *record.get('resumed_with', ())))
    spent = f'{hours:.1f} h' if hours >= .1 else f'{hours * 60:.0f} min'
    return (f'{len(ended)} runs, {spent} on {machines}; torch '
            f'{several(record["versions"]["torch"] for record in ended)}; commit {commits}; '
            f'{several(sorted(record["started"] for record in ended))}')


def show(folders: Sequence[str], *, metric: str | None = None, baseline: str | None = None) -> str:
    """The text that tools/results.py prints; raises as `read_records` and `compare`."""
    records = read_records(folders)
    names = (name for record in records for line in record['metrics'] for name in line)
    metric = metric or next((name for name in names if name not in ('epoch', 'iter', 'loss')), None)
    if metric is None:
        raise RunError('none of the runs has been validated yet')
    rows = compare(label_runs(records), records, metric, baseline=baseline)
    small = all(abs(value) <= 1 for row in rows for value in row.by_seed.values())
    texts = [table(rows, metric, digits=4 if small else 2), f'Measured: {origin(records)}.']
    if any(len(row.by_seed) > 1 for row in rows):
        texts.append('Mean ± standard deviation over seeds' + (
            '; differences: mean ± standard error.' if baseline else '.'))
    if unfinished := [record['path'] for record in records if not record['finished']]:
        texts.append(f'Left out, unfinished: {", ".join(unfinished)}')
    return '\n\n'.join(texts)
