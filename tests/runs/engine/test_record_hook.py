"""RunRecordHook: what the record says of a run, killed or not."""
import json
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')
from mmengine.config import Config  # noqa: E402
from mmengine.logging import MessageHub  # noqa: E402
from mmengine.registry import HOOKS  # noqa: E402
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop  # noqa: E402

from lape_mm.runs.engine.record_hook import RECORD, fingerprint  # noqa: E402


def config(**changes):
    settings = dict(model=dict(type='A', sizes=[1, 2]), data_root='/one', resume=False,
                    load_from=None, train=dict(path='/one/train'), work_dir='a',
                    randomness=dict(seed=0))
    return Config({**settings, **changes})


START = dict(load_from='weights.pth')


@pytest.mark.parametrize('one, other, same', [
    ({}, dict(overrides={'--joining': 'lape'}, work_dir='b', randomness=dict(seed=1)), True),
    ({}, dict(data_root='/two', train=dict(path='/two/train')), True),
    ({}, dict(data_root='/two'), False),
    ({}, dict(model=dict(type='A', sizes=[2, 1])), False),
    ({}, START, False),
    ({}, dict(resume=True, load_from='epoch_1.pth'), True),
    (START, dict(resume=True, load_from='epoch_1.pth', started_from='weights.pth'), True),
    # a checkpoint named after a fingerprint is the same in any folder
    (dict(load_from='a/epoch_1.pth'), dict(load_from='b/epoch_1.pth'), False),
    (dict(load_from='a/0123456789ab.pth'), dict(load_from='b/c/0123456789ab.pth'), True),
    (dict(load_from='a/0123456789ab.pth'), dict(load_from='a/0123456789ac.pth'), False)])
def test_fingerprint(one, other, same):
    assert (fingerprint(config(**one)) == fingerprint(config(**other))) == same


def run(folder, losses, *, loop=EpochBasedTrainLoop, epoch=0, finish=True, cfg=None, hub=None):
    """One validation after each epoch of ``losses``; the record."""
    hook, hub = HOOKS.build(dict(type='lape_mm.RunRecordHook')), hub or MessageHub('record')
    state = SimpleNamespace(work_dir=str(folder), cfg=cfg or config(), seed=3, iter=epoch,
                            epoch=epoch, train_loop=loop.__new__(loop), message_hub=hub)
    hub.update_info('last_recorded_iter', epoch)
    hook.before_train(state)
    for values in losses:
        for value in values:
            hub.update_scalar('train/loss', value)
            state.iter += 1
        state.epoch += 1
        hook.after_val_epoch(state, dict(top1=10. * state.epoch, text='no number'))
    if finish:
        hook.after_train(state)
    return json.loads((folder / RECORD).read_text())


def test_metrics_with_the_loss_since_the_last_validation(tmp_path):
    found = run(tmp_path, [[1., 2.], [5., 7.]])
    assert found['metrics'] == [{'epoch': 1, 'loss': 1.5, 'top1': 10.},
                                {'epoch': 2, 'loss': 6., 'top1': 20.}]
    assert found['finished'] and found['seed'] == 3 and found['resumed'] == 0
    assert found['fingerprint'] == fingerprint(config())
    assert found['machine']['cores'] and found['versions']['torch']
    found = run(tmp_path, [[1.]])  # a new run in the same folder
    assert len(found['metrics']) == 1 and found['resumed'] == 0
    found = run(tmp_path, [[1., 1.], [1., 1.]], loop=IterBasedTrainLoop)
    assert [line['iter'] for line in found['metrics']] == [2, 4]


def test_a_resumed_run_continues_its_record(tmp_path):
    first = run(tmp_path, [[1., 2.], [9., 9.]], finish=False)
    assert not first['finished']
    # killed after its second validation, before that epoch's checkpoint
    found = run(tmp_path, [[5., 7.]], epoch=1)
    assert found['metrics'] == [{'epoch': 1, 'loss': 1.5, 'top1': 10.},
                                {'epoch': 2, 'loss': 6., 'top1': 20.}]
    assert found['resumed'] == 1 and found['finished'] and 'resumed_with' not in found
    assert found['seconds'] >= first['seconds']
    changed = config(model=dict(type='B'))
    found = run(tmp_path, [[5.]], epoch=1, cfg=changed)
    assert found['fingerprint'] == first['fingerprint'] != fingerprint(changed)
    assert [one['fingerprint'] for one in found['resumed_with']] == [fingerprint(changed)]


def test_the_loss_counts_iterations_before_the_kill(tmp_path):
    hub = MessageHub('record')
    hub.update_scalar('train/loss', 1.)
    hub.update_info('last_recorded_iter', 0)
    resumed = MessageHub('resumed')
    resumed.load_state_dict(hub.state_dict())  # from the checkpoint
    hook = HOOKS.build(dict(type='lape_mm.RunRecordHook'))
    state = SimpleNamespace(work_dir=str(tmp_path), cfg=config(), seed=3, iter=1, epoch=0,
                            train_loop=EpochBasedTrainLoop.__new__(EpochBasedTrainLoop),
                            message_hub=resumed)
    hook.before_train(state)
    resumed.update_scalar('train/loss', 4.)
    state.iter, state.epoch = 2, 1
    hook.after_val_epoch(state, {})
    assert json.loads((tmp_path / RECORD).read_text())['metrics'] == [{'epoch': 1, 'loss': 2.5}]


@pytest.mark.parametrize('damage', ['', '[]', '{"metrics": [{}]}'])
def test_a_damaged_record_ends_no_run(damage, tmp_path):
    (tmp_path / RECORD).write_text(damage)
    assert len(run(tmp_path, [[1.]], epoch=4)['metrics']) == 1
