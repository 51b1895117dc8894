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
    log = folder / 'whole.log'
    assert runs.run(runs.arguments(task, folder / 'whole', **given), log) == 0, log.read_text()
    return runs.digest(runs.last(folder / 'whole'))


def test_another_seed_is_another_run(tmp_path):
    need('deit')
    assert whole_run('deit', tmp_path / 'a') \
        != whole_run('deit', tmp_path / 'b', options={'randomness.seed': 1})


@pytest.mark.parametrize('task, workers', [
    ('deit', 0), ('mask_rcnn', 2), ('segmenter', 2), pytest.param('upernet', 2, marks=LONG)])
def test_killed_and_resumed(task, workers, tmp_path):
    need(task)
    options = {'train_dataloader.num_workers': workers}
    expected = whole_run(task, tmp_path, options=options)
    found = runs.kill_and_resume(task, tmp_path, runs.first_checkpoint, options=options)
    assert found == expected, (tmp_path / 'killed.log').read_text()


def test_while_it_writes_a_checkpoint(tmp_path):
    need('deit')
    expected = whole_run('deit', tmp_path)
    assert runs.kill_and_resume('deit', tmp_path, runs.writing) == expected
    assert not list((tmp_path / 'killed').glob('*.part'))


def test_averaged_weights_repeated_augmentation_accumulated_gradients(tmp_path):
    need('deit')
    given = dict(amp='bf16', options={
        'custom_hooks': [dict(type='EMAHook', momentum=.1, update_buffers=True)],
        'train_dataloader.sampler': dict(type='RepeatAugSampler', shuffle=True, _delete_=True),
        'train_dataloader.num_workers': 2, 'model.backbone.drop_path_rate': .3,
        'optim_wrapper.accumulative_counts': 2,
        'model.train_cfg': dict(augments=[dict(type='Mixup', alpha=.8),
                                          dict(type='CutMix', alpha=1.)])})
    expected = whole_run('deit', tmp_path, **given)
    content = torch.load(runs.last(tmp_path / 'whole'), weights_only=False)
    assert 'ema_state_dict' in content
    assert runs.kill_and_resume('deit', tmp_path, runs.first_checkpoint, **given) == expected


@pytest.mark.parametrize('task, moment, number', [
    ('deit', 'mid-epoch', signal.SIGTERM), ('deit', 'validation', signal.SIGINT),
    ('segmenter', 'mid-epoch', signal.SIGINT),
    pytest.param('upernet', 'validation', signal.SIGTERM, marks=LONG)])
def test_interrupted_and_resumed(task, moment, number, tmp_path):
    """Between its checkpoints: the interrupt writes one of its own."""
    need(task)
    options = {'train_dataloader.num_workers': 2,
               'custom_hooks': [dict(type='EMAHook', momentum=.1)],
               'default_hooks.checkpoint.interval': 100}
    expected = whole_run(task, tmp_path, options=options)
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


def after_another_run(tmp_path, name):
    """A learning rate, its whole run's digest, and a folder with a run of another, and its log."""
    need('deit')
    rate = {'optim_wrapper.optimizer.lr': 2e-4, 'default_hooks.checkpoint.interval': 100}
    expected = whole_run('deit', tmp_path, options=rate)
    folder, log = tmp_path / name, tmp_path / f'{name}.log'
    assert runs.run(runs.arguments('deit', folder), log) == 0
    return rate, expected, folder, log


def test_an_older_runs_checkpoints_are_not_gone_on_from(tmp_path):
    """A whole run, then one of another learning rate in the same folder, interrupted."""
    rate, expected, folder, log = after_another_run(tmp_path, 'shared')
    assert 'holds a run already' not in log.read_text()
    given = runs.arguments('deit', folder, options=rate)
    status = runs.run(given, log, before=partial(runs.signal_itself, signal.SIGINT, 'mid-epoch'))
    text = log.read_text()
    assert status == 130, text
    assert text.count(f'{folder} holds a run already (record.json, epoch_3.pth, epoch_4.pth') == 1
    given.resume = 'auto'
    assert runs.run(given, log) == 0
    assert f'resumes from {folder}/interrupted.pth' in log.read_text()
    assert log.read_text().count('holds a run already') == 1
    assert runs.digest(runs.last(folder)) == expected


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path):
    """In a folder with an earlier run's checkpoints, which are named."""
    rate, expected, folder, log = after_another_run(tmp_path, 'killed')
    logs = folder / 'log_folders.txt'
    earlier = logs.read_text()

    def started(work_dir):
        runs.until(lambda: logs.read_text() != earlier)
    assert runs.kill_and_resume('deit', tmp_path, started, options=rate) == expected
    assert f'{folder}/epoch_4.pth is of an earlier run; --resume' in log.read_text()


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(tmp_path):
    need('deit')
    expected = whole_run('deit', tmp_path)
    newest = runs.last(tmp_path / 'whole')
    newest.write_bytes(newest.read_bytes()[:-2000])
    (tmp_path / 'whole/last_checkpoint').write_text('')
    log = tmp_path / 'again.log'
    assert runs.run(runs.arguments('deit', tmp_path / 'whole', resume='auto'), log) == 0
    text = log.read_text()
    assert f'warning: not used: {newest}: ' in text and 'resumes from' in text
    assert runs.digest(runs.last(tmp_path / 'whole')) == expected


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    need('deit')
    log = tmp_path / 'log'
    status = runs.run(runs.arguments('deit', tmp_path / 'full'), log,
                      before=partial(runs.fill_disk_at, 'epoch_3.pth'))
    assert status == 1
    closing = log.read_text().splitlines()[-1]
    assert closing.startswith('error: a checkpoint cannot be written')
    assert 'No space left' in closing
    assert closing.endswith(f'the last whole one is {tmp_path}/full/epoch_2.pth')
    assert {path.name for path in (tmp_path / 'full').glob('*.pth*')} == {
        'epoch_1.pth', 'epoch_2.pth'}
    # with room again it goes on
    assert runs.run(runs.arguments('deit', tmp_path / 'full', resume='auto'), log) == 0
    assert runs.last(tmp_path / 'full').name == 'epoch_4.pth'


def test_the_only_checkpoint_is_kept_until_the_next_is_there(tmp_path):
    need('deit')
    options = {'default_hooks.checkpoint.max_keep_ckpts': 1}
    status = runs.run(runs.arguments('deit', tmp_path / 'full', options=options), tmp_path / 'log',
                      before=partial(runs.fill_disk_at, 'epoch_3.pth'))
    assert status == 1 and (tmp_path / 'full/epoch_2.pth').is_file()
    assert not (tmp_path / 'full/epoch_1.pth').exists()


def test_nothing_to_resume_is_said(tmp_path):
    need('deit')
    log = tmp_path / 'log'
    assert runs.run(runs.arguments('deit', tmp_path / 'new', resume='auto'), log) == 0
    assert 'starts from its beginning' in log.read_text()


@LONG
@pytest.mark.parametrize('task', runs.TASKS)
def test_kills_at_random_moments(task, tmp_path):
    """Four of them; benchmarks/reliability.py does twenty of each task."""
    need(task)
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
