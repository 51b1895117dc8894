"""Records as tables: labels, pairs by seed, refusals."""
import json

import pytest

pytest.importorskip('mmengine')

from lape_mm.runs import results  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402


def record(joining, seed, *values, finished=True, **more):
    return dict(config='configs/deit.py', overrides={'--joining': joining, 'randomness.seed': seed},
                fingerprint=joining, seed=seed, commit='abc', started='2026-01-01',
                cpu_seconds=1800, versions=dict(torch='2.11'),
                machine=dict(cpu='CPU', gpu=None, threads=1), finished=finished,
                path=f'{joining}-{seed}',
                metrics=[{'epoch': number, 'loss': 1., 'top1': value}
                         for number, value in enumerate(values, 1)], **more)


RUNS = [record('default', 0, 9., 10.), record('default', 1, 14., 12.), record('lape', 0, 1., 13.),
        record('lape', 1, 1., 11.), record('lape', 2, 1., 40.)]


def test_runs_are_labelled_by_what_differs():
    assert results.label_runs(RUNS) == ['default', 'default', 'lape', 'lape', 'lape']
    assert results.label_runs(RUNS[:1]) == ['deit']
    longer = record('lape', 0, 1.)
    longer['overrides']['train_cfg.max_epochs'] = 9
    assert results.label_runs([*RUNS, longer])[-1] == 'lape, train_cfg.max_epochs=9'


def test_differences_are_paired_by_seed():
    rows = results.compare(results.label_runs(RUNS), RUNS, 'top1', baseline='default')
    assert [row.label for row in rows] == ['default', 'lape']
    assert rows[0].differences == {} and rows[1].differences == {0: 3., 1: -1.}
    assert rows[1].by_seed == {0: 13., 1: 11., 2: 40.}
    assert [row.baseline for row in rows] == [None, 'default']
    text = results.table(rows, 'top1')
    # deviation sqrt(2), and sqrt(8) / sqrt(2) for the mean of two differences
    assert '| default | 0, 1 | 11.00 ± 1.41 |  |' in text
    assert 'minus default, paired by seed' in text and '| +1.00 ± 2.00 (1 up, 1 down) |' in text
    assert results.change([0., 1.5, 0.]) == '+0.50 ± 0.50 (1 up, 0 down)'
    assert 'paired' not in results.table(results.compare(
        results.label_runs(RUNS), RUNS, 'top1'), 'top1')


def test_each_row_against_one_of_its_own():
    more = [*RUNS, record('mpvg', 0, 16.), record('mpvg', 1, 13.)]
    rows = results.compare(results.label_runs(more), more, 'top1', baseline=dict(
        default='default', lape='default', mpvg='lape'))
    assert rows[2].baseline == 'lape' and rows[2].differences == {0: 3., 1: 2.}
    text = results.table(rows, 'top1')
    assert '| paired by seed |' in text
    assert '| minus default: +1.00 ± 2.00 (1 up, 1 down) |' in text
    assert '| minus lape: +2.50 ± 0.50 (2 up, 0 down) |' in text


def test_the_last_figure():
    assert results.figure(RUNS[1], 'top1') == 12.
    with pytest.raises(RunError, match="no metric 'mIoU', but epoch, loss, top1"):
        results.figure(RUNS[1], 'mIoU')


def test_what_cannot_be_compared_is_refused():
    labels = results.label_runs(RUNS)
    with pytest.raises(RunError, match='seed 1 twice'):
        results.compare([*labels, 'default'], [*RUNS, RUNS[1]], 'top1')
    other = dict(record('default', 2, 1.), fingerprint='other')
    with pytest.raises(RunError, match='ran another config'):
        results.compare([*labels, 'default'], [*RUNS, other], 'top1')
    with pytest.raises(RunError, match="baseline 'x': expected one of 'default', 'lape'"):
        results.compare(labels, RUNS, 'top1', baseline='x')
    with pytest.raises(RunError, match='none of the runs has finished'):
        results.compare(['a'], [record('a', 0, 1., finished=False)], 'top1')


def test_records_are_found_and_read(tmp_path):
    with pytest.raises(RunError, match='has no record'):
        results.read_records([tmp_path])
    for run in RUNS:
        folder = tmp_path / run['path']
        folder.mkdir()
        (folder / 'record.json').write_text(json.dumps(run))
        (folder / 'other.json').write_text('{}')
    assert len(results.read_records([tmp_path])) == 5
    text = results.show([tmp_path], metric=None, baseline='default')
    assert '5 runs, 2.5 h on CPU, 1 thread a run; torch 2.11' in text
    (tmp_path / 'lape-0/record.json').write_text('{"config": 1}')
    with pytest.raises(RunError, match='not a record of a run: without overrides, seed, metrics'):
        results.read_records([tmp_path])


def test_an_unfinished_run_is_named_and_left_out(tmp_path):
    for run in (RUNS[0], record('lape', 0, 1., finished=False)):
        (tmp_path / f'{run["path"]}.json').write_text(json.dumps(run))
    text = results.show([tmp_path], metric='top1', baseline=None)
    assert '| default |' in text and '| lape |' not in text
    assert text.splitlines()[-1].startswith('Left out, unfinished: ')
