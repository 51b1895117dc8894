"""Tiny runs of the studies: records, restarts, repeats and tables."""
import json
import os
import subprocess
from pathlib import Path

import pytest
import studies

from lape_mm.position import build_joining
from lape_mm.requirements import TOOLBOXES, missing
from lape_mm.runs.errors import RunError

ROOT = studies.ROOT
DATA = ('LAPE_MM_IMAGENET', 'LAPE_MM_ADE20K', 'LAPE_MM_COCO')  # the studies' folders
EPOCH = {'train_cfg.max_epochs': 1, 'train_cfg.val_interval': 1}
TINY = {
    'imagenet_mini': {**EPOCH, 'train_dataloader.dataset.indices': 20,
                      'train_dataloader.batch_size': 10, 'val_dataloader.dataset.indices': 10},
    'ade_mini': {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2,
                 'train_dataloader.batch_size': 2, 'val_dataloader.dataset.indices': 2},
    'coco_mini': {**EPOCH, 'train_dataloader.dataset.indices': 4,
                  'train_dataloader.batch_size': 2, 'val_dataloader.dataset.indices': 2},
}


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, 'LEDGER', tmp_path / 'ledger')
    monkeypatch.chdir(ROOT)
    return tmp_path / 'ledger'


@pytest.fixture
def toolboxes():
    if lacking := missing(*TOOLBOXES['mmdet'], 'mmseg', 'mmpretrain'):
        pytest.skip(f'needs {", ".join(lacking)}')


@pytest.fixture
def runs(tmp_path, ledger, toolboxes):
    if not all(name in os.environ for name in DATA):
        pytest.skip(f'needs {", ".join(DATA)}')
    return studies.Runs(tmp_path / 'runs', TINY)


@pytest.mark.long
def test_a_run_is_recorded_once(runs, ledger):
    given = ('imagenet_mini', 'mpvg', 1)
    assert not runs.recorded(*given)
    runs.keep(*given)
    record = json.loads((ledger / 'imagenet_mini/mpvg_seed1.json').read_text())
    assert record['seed'] == 1 and record['overrides']['--joining'] == 'mpvg'
    assert record['config'] == 'configs/studies/deit_imagenet-mini.py'
    assert record['machine']['threads'] == 1 and record['metrics'][-1]['epoch'] == 1
    # the record is of today's config, but not with other options
    assert runs.recorded(*given)
    assert not studies.Runs(runs.work_dir).recorded(*given)
    # it can be committed: it holds no path of the machine
    text = json.dumps(record)
    assert os.environ['LAPE_MM_IMAGENET'] not in text and '/tmp' not in text


@pytest.mark.long
@pytest.mark.parametrize('study', ['ade_mini', 'coco_mini'])
def test_a_detector_starts_from_the_classifier_of_its_seed(study, runs, ledger):
    runs.keep(study, 'mpvg, pre-trained', 2)
    start = runs.folder('imagenet_mini', 'mpvg', 2)
    assert json.loads((start / 'record.json').read_text())['seed'] == 2
    log = (runs.folder(study, 'mpvg, pre-trained', 2) / 'output.log').read_text()
    assert '100.00 %' in log, log[-3000:]
    assert runs.recorded(study, 'mpvg, pre-trained', 2)
    assert not runs.recorded(study, 'mpvg', 2)
    # the folder of the runs does not matter; the config of the run it starts from does
    moved = studies.Runs(runs.work_dir / 'elsewhere', runs.changes)
    assert moved.recorded(study, 'mpvg, pre-trained', 2)
    moved.changes['imagenet_mini'] = {**TINY['imagenet_mini'], 'optim_wrapper.optimizer.lr': .5}
    assert not moved.recorded(study, 'mpvg, pre-trained', 2)


def test_other_data_are_refused(tmp_path, monkeypatch, ledger):
    monkeypatch.setenv('LAPE_MM_IMAGENET', str(tmp_path))
    with pytest.raises(RunError, match=f'{tmp_path}: none of train, val'):
        studies.check_data('imagenet_mini')
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train/a.JPEG').write_bytes(b'1')
    first = studies.digest(tmp_path)
    for name in ('notes.txt', 'train/.DS_Store', 'train/Thumbs.db', 'train/a.JPEG~'):
        (tmp_path / name).write_text('no run reads this')
    assert studies.digest(tmp_path) == first
    for study in ('imagenet_mini', 'ablations', 'kinds'):
        data = studies.STUDIES[study].data
        with pytest.raises(RunError, match=f'digest {first}, expected {data}'):
            studies.check_data(study)
    (tmp_path / 'train/a.JPEG').write_bytes(b'2')
    second = studies.digest(tmp_path)
    (tmp_path / 'train/a.JPEG').rename(tmp_path / 'train/b.JPEG')
    assert len({first, second, studies.digest(tmp_path)}) == 3


def test_the_data_of_the_records(runs, monkeypatch, capsys):
    for study in ('imagenet_mini', 'ade_mini', 'coco_mini'):
        studies.check_data(study)
    monkeypatch.setenv('LAPE_MM_IMAGENET', os.environ['LAPE_MM_COCO'])
    for study in ('imagenet_mini', 'ade_mini'):  # the second starts from the first
        assert studies.main([study, '--check', 'mpvg', '0']) == 2
        assert 'the images and labels of the study imagenet_mini' in capsys.readouterr().err


@pytest.mark.long
def test_the_same_figures_again(runs, monkeypatch):
    runs.keep('ade_mini', 'lape', 0)
    made = studies.Runs
    monkeypatch.setattr(studies, 'Runs', lambda folder: made(folder, TINY))
    studies.check('ade_mini', 'lape', 0)
    path = studies.ledger_path('ade_mini', 'lape', 0)
    record = json.loads(path.read_text())
    record['metrics'][-1]['loss'] += 1e-7
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match='lape_seed0.json: recorded .* now '):
        studies.check('ade_mini', 'lape', 0)


@pytest.mark.parametrize('study, cell, loop', [
    ('imagenet_mini', 'mpvg', 'DeviceTrainLoop'), ('cifar100_full', 'mpvg', 'gpu_study.py'),
    ('ade_mini', 'mpvg, pre-trained', 'DeviceTrainLoop')])
def test_a_record_of_a_removed_loop_is_not_run_again(study, cell, loop):
    with pytest.raises(RunError, match=f'seed0.json: {loop}, .* commit [0-9a-f]{{7}} to'):
        studies.check(study, cell, 0)


def test_cells_are_what_they_say():
    for study in studies.STUDIES.values():
        assert study.baseline in study.cells
        assert (ROOT / f'configs/{study.config}.py').exists()
        for cell in study.cells.values():
            build_joining(cell.joining, depth=6)
            assert cell.against is None or cell.against in study.cells
            if cell.same:
                other = studies.STUDIES[cell.same[0]]
                assert (other.config, other.metric, other.options) == (
                    study.config, study.metric, study.options)
                assert not other.cells[cell.same[1]].same and not cell.start
                assert set(study.seeds) <= set(other.seeds)
                assert (cell.joining, cell.options) == (
                    other.cells[cell.same[1]].joining, other.cells[cell.same[1]].options)
            if cell.start:
                assert cell.joining == studies.STUDIES[cell.start[0]].cells[cell.start[1]].joining
        assert len(study.seeds) >= 3
        names = [studies.name_of(cell, 0) for cell in study.cells]
        assert len(set(names)) == len(names)


def test_no_two_cells_are_the_same_run(tmp_path, ledger, toolboxes):
    made, found = studies.Runs(tmp_path), {}
    for name, study in studies.STUDIES.items():
        for label, cell in study.cells.items():
            # earlier runs had another loop, and those that controls shares another CPU
            if not (cell.same or study.earlier or name == 'lape_tables'):
                found.setdefault((study.config, made.expected(name, label, 0)), []).append(label)
    assert [labels for labels in found.values() if len(labels) > 1] == []


@pytest.mark.long
def test_the_ledger_is_of_the_configs_as_they_are(monkeypatch, toolboxes):
    monkeypatch.chdir(ROOT)
    made = studies.Runs(Path('work_dirs/studies'))
    for study in studies.STUDIES:
        for cell, one in studies.all_runs(study):
            if studies.ledger_path(*one).exists():
                # delete `earlier` once a study has been run again
                assert made.recorded(*one) != bool(studies.earlier(*one[:2])), (cell, one)


def test_the_ledger_is_of_commits_of_this_history():
    """Nobody else has a tree with uncommitted changes."""
    found = {commit for path in studies.LEDGER.rglob('*.json')
             for record in [studies.results.read_record(path)]
             for commit in (record['commit'], *(part['commit'] for part in
                                                record.get('resumed_with', ())))}
    assert found and not [commit for commit in found if not commit.isalnum()]

    def git(*words):
        return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True)
    if git('rev-parse', '--is-shallow-repository').stdout.strip() != 'false':
        pytest.skip('needs a clone with its history')
    assert [commit for commit in found
            if git('merge-base', '--is-ancestor', commit, 'HEAD').returncode] == []


def write_record(study, cell, seed, metrics, fingerprint=None):
    path = studies.ledger_path(study, cell, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(
        config='c', overrides={}, fingerprint=fingerprint or cell, seed=seed, commit='abc',
        finished=True, started='2026-01-01', cpu_seconds=900., versions=dict(torch='2.11'),
        machine=dict(cpu='CPU', gpu=None, threads=1), metrics=[metrics])))


def test_each_row_has_its_own_baseline(ledger):
    for seed in (0, 1):
        write_record('ade_mini', 'default', seed, {'mIoU': 10. + seed})
        write_record('ade_mini', 'default, pre-trained', seed, {'mIoU': 14.})
        write_record('ade_mini', 'mpvg, pre-trained', seed, {'mIoU': 12.})
    text = studies.section('ade_mini')
    assert '| 14.00 ± 0.00 | minus default: +3.50 ± 0.50 (2 up, 0 down) |' in text
    assert '| 12.00 ± 0.00 | minus default, pre-trained: -2.00 ± 0.00 (0 up, 2 down) |' in text
    write_record('ade_mini', 'mpvg', 0, {'mIoU': 12.}, 'one config')
    write_record('ade_mini', 'mpvg', 1, {'mIoU': 12.}, 'another')
    with pytest.raises(RunError, match='ran another config'):
        studies.section('ade_mini')


def test_table_and_plot(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, 'ROOT', tmp_path)
    (tmp_path / 'docs').mkdir()
    for seed, (default, mpvg) in enumerate([(10., 12.), (11., 12.)]):
        for cell, value in (('default', default), ('mpvg', mpvg)):
            write_record('imagenet_mini', cell, seed, {'accuracy/top1': value})
    text = studies.page()
    assert '| mpvg | 0, 1 | 12.00 ± 0.00 | +1.50 ± 0.50 (2 up, 0 down) |' in text
    assert '4 runs, 1.0 h on' in text and 'evidence_imagenet_mini.svg' in text
    assert 'imagenet_mini      4 of  20 runs, 1.0 h' in studies.overview()
    assert 'ablations          4 of  33 runs, 0.0 h' in studies.overview()  # another's
    studies.plot('imagenet_mini')
    first = (tmp_path / 'docs/evidence_imagenet_mini.svg').read_bytes()
    studies.plot('imagenet_mini')
    assert first == (tmp_path / 'docs/evidence_imagenet_mini.svg').read_bytes()
