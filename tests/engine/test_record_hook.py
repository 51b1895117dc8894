"""RunRecordHook: what it says of a run, killed or not."""
import copy
import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.config import Config  # noqa: E402
from mmengine.logging import MessageHub  # noqa: E402
from mmengine.registry import HOOKS  # noqa: E402
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop  # noqa: E402

from lape_mm import machine  # noqa: E402
from lape_mm.engine.record_hook import RECORD, fingerprint  # noqa: E402


def config(**changes):
    return Config(dict(model=dict(type='A', sizes=[1, 2]), data_root='/one', resume=False,
                       load_from=None, train=dict(path='/one/train'), work_dir='a',
                       randomness=dict(seed=0), **changes))


def test_a_fingerprint_knows_the_config_but_not_its_place():
    same = config(overrides={'--joining': 'lape'})
    same.work_dir, same.randomness.seed = 'b', 1
    same.data_root, same.train.path = '/another', '/another/train'
    assert fingerprint(same) == fingerprint(config())
    same.resume, same.load_from = True, 'epoch_1.pth'
    assert fingerprint(same) == fingerprint(config())
    other = config()
    other.model.sizes = [2, 1]
    assert fingerprint(other) != fingerprint(config())
    started = config()
    started.load_from = 'weights.pth'
    assert fingerprint(started) != fingerprint(config())
    # what it is resumed from is not what it was started from
    resumed = copy.deepcopy(started)
    resumed.resume, resumed.load_from, resumed.started_from = True, 'epoch_1.pth', 'weights.pth'
    assert fingerprint(resumed) == fingerprint(started)


def test_a_fingerprint_knows_what_a_run_starts_from():
    def started(checkpoint):
        cfg = config()
        cfg.model.init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
        return fingerprint(cfg)
    assert started('a/epoch_1.pth') != started('b/epoch_1.pth') != fingerprint(config())
    # named after a fingerprint, it is the same wherever it lies
    assert started('a/0123456789ab.pth') == started('b/c/0123456789ab.pth')
    assert started('a/0123456789ab.pth') != started('a/0123456789ac.pth')


def runner(folder, loop=EpochBasedTrainLoop, iteration=0, epoch=0):
    return SimpleNamespace(work_dir=str(folder), cfg=config(), seed=3, iter=iteration, epoch=epoch,
                           train_loop=loop.__new__(loop), message_hub=MessageHub('record'))


def run(folder, losses, *, loop=EpochBasedTrainLoop, epoch=0, finish=True):
    """One validation an epoch of two iterations."""
    hook = HOOKS.build(dict(type='lape_mm.RunRecordHook'))
    state = runner(folder, loop, epoch, epoch)
    hook.before_train(state)
    for values in losses:
        for value in values:
            hook.after_train_iter(state, 0, outputs=dict(loss=torch.tensor(value)))
            state.iter += 1
        state.epoch += 1
        hook.after_val_epoch(state, dict(top1=10. * state.epoch, text='no number'))
    if finish:
        hook.after_train(state)
    return json.loads((folder / RECORD).read_text())


def test_metrics_with_the_loss_since_the_last(tmp_path):
    found = run(tmp_path, [[1., 2.], [5., 7.]])
    assert found['metrics'] == [{'epoch': 1, 'loss': 1.5, 'top1': 10.},
                                {'epoch': 2, 'loss': 6., 'top1': 20.}]
    assert found['finished'] and found['seed'] == 3 and found['resumed'] == 0
    assert found['fingerprint'] == fingerprint(config())
    assert found['machine']['cores'] and found['versions']['torch']


def test_a_resumed_run_goes_on_with_its_record(tmp_path):
    first = run(tmp_path, [[1., 2.], [9., 9.]], finish=False)
    assert not first['finished']
    # killed after its second validation, before that epoch's checkpoint
    found = run(tmp_path, [[5., 7.]], epoch=1)
    assert found['metrics'] == [{'epoch': 1, 'loss': 1.5, 'top1': 10.},
                                {'epoch': 2, 'loss': 6., 'top1': 20.}]
    assert found['resumed'] == 1 and found['finished']
    assert found['seconds'] >= first['seconds']


def test_a_resumed_run_keeps_what_it_was_started_as(tmp_path, monkeypatch):
    first = run(tmp_path, [[1.]], finish=False)
    assert 'resumed_with' not in run(tmp_path, [[5.]], epoch=1)
    changed = config()
    changed.model.sizes = [9]
    monkeypatch.setitem(globals(), 'config', lambda: changed)
    found = run(tmp_path, [[5.]], epoch=1)
    assert found['fingerprint'] == first['fingerprint'] != fingerprint(changed)
    assert [one['fingerprint'] for one in found['resumed_with']] == [fingerprint(changed)]


def test_the_loss_goes_on_where_a_checkpoint_was_written(tmp_path):
    hook, state = HOOKS.build(dict(type='lape_mm.RunRecordHook')), runner(tmp_path)
    hook.before_train(state)
    hook.after_train_iter(state, 0, outputs=dict(loss=torch.tensor(1.)))
    # another process, with the message hub of the checkpoint
    resumed = HOOKS.build(dict(type='lape_mm.RunRecordHook'))
    state.iter = 1
    resumed.before_train(state)
    resumed.after_train_iter(state, 0, outputs=dict(loss=torch.tensor(4.)))
    state.epoch = 1
    resumed.after_val_epoch(state, {})
    assert json.loads((tmp_path / RECORD).read_text())['metrics'] == [{'epoch': 1, 'loss': 2.5}]


def test_a_new_run_in_the_same_folder_starts_anew(tmp_path):
    run(tmp_path, [[1.], [2.]])
    found = run(tmp_path, [[3.]])
    assert len(found['metrics']) == 1 and found['resumed'] == 0


@pytest.mark.parametrize('damage', ['', '[]', '{"metrics": [{}]}'])
def test_a_damaged_record_ends_no_run(damage, tmp_path):
    (tmp_path / RECORD).write_text(damage)
    assert len(run(tmp_path, [[1.]], epoch=4)['metrics']) == 1


def test_iterations_where_the_loop_counts_them(tmp_path):
    found = run(tmp_path, [[1., 1.], [1., 1.]], loop=IterBasedTrainLoop)
    assert [line['iter'] for line in found['metrics']] == [2, 4]


def test_a_test_run_leaves_no_record(tmp_path):
    HOOKS.build(dict(type='lape_mm.RunRecordHook')).after_val_epoch(runner(tmp_path), dict(top1=1.))
    assert not (tmp_path / RECORD).exists()


def test_no_commit_outside_of_a_repository(tmp_path):
    assert machine.commit(tmp_path) is None
