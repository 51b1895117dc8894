"""A run that is killed at any moment and resumed ends with the weights of one that was not."""
import random
import signal
import time
from functools import partial

import pytest

pytest.importorskip('mmengine', reason='runs need a toolbox')

import small_runs as runs  # noqa: E402
import torch  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

LONG = pytest.mark.long


@pytest.fixture(autouse=True)
def scenes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'small_scenes'))


def need(task):
    if lacking := missing(*TOOLBOXES[runs.SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')


def whole_run(task, folder, **given):
    need(task)
    log = folder / 'whole.log'
    assert runs.run(runs.arguments(task, folder / 'whole', **given), log) == 0, log.read_text()
    return runs.digest(runs.last(folder / 'whole'))


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    """`runs.digest` of a run that is not killed; each is run once."""
    known = {}

    def digest(task, **given):
        if (key := repr((task, given))) not in known:
            known[key] = whole_run(task, tmp_path_factory.mktemp('unbroken'), **given)
        return known[key]
    return digest


def test_another_seed_is_another_run(unbroken):
    assert unbroken('deit') != unbroken('deit', options={'randomness.seed': 1})


EVERYTHING = dict(amp='bf16', options={
    'custom_hooks': [dict(type='EMAHook', momentum=.1, update_buffers=True)],
    'train_dataloader.sampler': dict(type='RepeatAugSampler', shuffle=True, _delete_=True),
    'train_dataloader.num_workers': 2, 'model.backbone.drop_path_rate': .3,
    'optim_wrapper.accumulative_counts': 2,
    'model.train_cfg': dict(augments=[dict(type='Mixup', alpha=.8),
                                      dict(type='CutMix', alpha=1.)])})
WORKERS = dict(options={'train_dataloader.num_workers': 2})


@pytest.mark.parametrize('task, moment, given', [
    pytest.param('deit', runs.writing, {}, id='writing a checkpoint'),
    pytest.param('deit', runs.first_checkpoint, EVERYTHING,
                 id='averaged weights, repeated augmentation, accumulated gradients'),
    pytest.param('mask_rcnn', runs.first_checkpoint, WORKERS, id='mask_rcnn'),
    pytest.param('segmenter', runs.first_checkpoint, WORKERS, id='segmenter'),
    pytest.param('upernet', runs.first_checkpoint, WORKERS, marks=LONG, id='upernet')])
def test_killed_and_resumed(task, moment, given, unbroken, tmp_path):
    expected = unbroken(task, **given)
    found = runs.kill_and_resume(task, tmp_path, moment, **given)
    assert found == expected, (tmp_path / 'killed.log').read_text()
    assert not list((tmp_path / 'killed').glob('*.part'))
    content = torch.load(runs.last(tmp_path / 'killed'), weights_only=False)
    assert ('ema_state_dict' in content) == (given is EVERYTHING)


@pytest.mark.parametrize('task, moment, number', [
    ('deit', 'mid-epoch', signal.SIGTERM), ('deit', 'validation', signal.SIGINT),
    ('segmenter', 'mid-epoch', signal.SIGINT),
    pytest.param('upernet', 'validation', signal.SIGTERM, marks=LONG)])
def test_interrupted_and_resumed(task, moment, number, unbroken, tmp_path):
    """Between two checkpoints; the interrupt writes its own."""
    options = {'train_dataloader.num_workers': 2,
               'custom_hooks': [dict(type='EMAHook', momentum=.1)],
               'default_hooks.checkpoint.interval': 100}
    expected = unbroken(task, options=options)
    given = runs.arguments(task, tmp_path / 'cut', options=options)
    log = tmp_path / 'cut.log'
    status = runs.run(given, log, before=partial(runs.signal_itself, number, moment))
    text = log.read_text()
    assert status == 128 + number, text
    assert f'error: {number.name} after iteration' in text and '--resume goes on' in text
    assert (tmp_path / 'cut/interrupted.pth').is_file() and 'Traceback' not in text
    given.resume = 'auto'
    assert runs.run(given, log) == 0, log.read_text()
    assert runs.digest(runs.last(tmp_path / 'cut')) == expected
    if moment == 'validation':
        assert 'which the resumed run missed' in log.read_text()


OTHER = {'optim_wrapper.optimizer.lr': 2e-4, 'default_hooks.checkpoint.interval': 100}


def earlier_run(folder, log):
    need('deit')
    assert runs.run(runs.arguments('deit', folder), log) == 0
    assert 'holds a run already' not in log.read_text()


def test_resume_ignores_an_earlier_runs_checkpoints(unbroken, tmp_path):
    """Two runs in one folder; the second is interrupted."""
    folder, log = tmp_path / 'shared', tmp_path / 'log'
    earlier_run(folder, log)
    given = runs.arguments('deit', folder, options=OTHER)
    status = runs.run(given, log, before=partial(runs.signal_itself, signal.SIGINT, 'mid-epoch'))
    text = log.read_text()
    assert status == 130, text
    assert text.count(f'{folder} holds a run already (epoch_3.pth, epoch_4.pth') == 1
    given.resume = 'auto'
    assert runs.run(given, log) == 0
    assert f'resumes from {folder}/interrupted.pth' in log.read_text()
    assert log.read_text().count('holds a run already') == 1
    assert runs.digest(runs.last(folder)) == unbroken('deit', options=OTHER)


def test_a_run_killed_before_its_first_checkpoint_starts_anew(unbroken, tmp_path):
    """In a folder with an earlier run's checkpoints, which are named."""
    folder, log = tmp_path / 'killed', tmp_path / 'killed.log'
    earlier_run(folder, log)
    starts = folder / 'log_folders.txt'
    earlier = starts.read_text()

    def started(work_dir):
        runs.until(lambda: starts.read_text() != earlier)
    found = runs.kill_and_resume('deit', tmp_path, started, options=OTHER)
    assert found == unbroken('deit', options=OTHER)
    assert f'{folder}/epoch_4.pth is from an earlier run; --resume' in log.read_text()


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(unbroken, tmp_path):
    folder, log = tmp_path / 'run', tmp_path / 'log'
    earlier_run(folder, log)
    newest = runs.last(folder)
    newest.write_bytes(newest.read_bytes()[:-2000])
    (folder / 'last_checkpoint').write_text('')
    assert runs.run(runs.arguments('deit', folder, resume='auto'), log) == 0
    text = log.read_text()
    assert f'warning: not used: {newest}: ' in text and 'resumes from' in text
    assert runs.digest(runs.last(folder)) == unbroken('deit')


def test_a_full_disk_leaves_the_only_checkpoint(tmp_path):
    need('deit')
    folder, log = tmp_path / 'full', tmp_path / 'log'
    given = runs.arguments('deit', folder, resume='auto',
                           options={'default_hooks.checkpoint.max_keep_ckpts': 1})
    assert runs.run(given, log, before=partial(runs.fill_disk_at, 'epoch_3.pth')) == 1
    assert 'starts from the beginning' in log.read_text()
    closing = log.read_text().splitlines()[-1]
    assert closing.startswith('error: a checkpoint cannot be written')
    assert 'No space left' in closing
    assert closing.endswith(f'the last whole one is {folder}/epoch_2.pth')
    assert [path.name for path in folder.glob('*.pth*')] == ['epoch_2.pth']
    assert runs.run(given, log) == 0  # with room again it continues
    assert runs.last(folder).name == 'epoch_4.pth'


@LONG
@pytest.mark.parametrize('task', runs.TASKS)
def test_kills_at_random_moments(task, tmp_path):
    """Four; benchmarks/reliability.py does twenty for each task."""
    start = time.monotonic()
    expected = whole_run(task, tmp_path)
    length = time.monotonic() - start
    draw = random.Random(task)
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        moment = runs.writing if number == 0 else runs.after(draw.uniform(0, length))
        assert runs.kill_and_resume(task, folder, moment) == expected, \
            (folder / 'killed.log').read_text()
