"""Two processes train as one does with the same batch."""
import json
import os
import signal
from functools import partial

import pytest

pytest.importorskip('mmengine', reason='runs need a toolbox')

import small_runs as runs  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

JOININGS = ['default', 'lape', 'pvg', 'mpvg']
QUICK = [('deit', 'mpvg'), ('mask_rcnn', 'lape')]


@pytest.fixture(autouse=True)
def scenes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'small_scenes'))
    if not torch.distributed.is_gloo_available():
        pytest.skip('torch was built without gloo')


def options(task, batch, **more):
    found = {'train_dataloader.batch_size': batch, 'model.backbone.drop_path_rate': 0.,
             # Adam makes steps of this size even of gradients that are rounding errors
             'optim_wrapper.optimizer.lr': 5e-4,
             # of which one process makes another average than two
             'optim_wrapper.clip_grad': None, **more}
    if task == 'mask_rcnn':
        # mmdet divides by the objects of a process: an image that all of them have. Small steps:
        # rounding errors reorder boxes of like scores sooner or later
        found.update({
            'optim_wrapper.optimizer.lr': 1e-4,
            'train_dataloader.dataset': dict(
                type='RepeatDataset', times=12, _delete_=True,
                dataset=runs.setting(task, 'train_dataloader.dataset', indices=1)),
            'train_dataloader.dataset.dataset.pipeline.3.prob': 0.,
            'train_dataloader.batch_sampler': None})
    for head in dict(upernet=('decode_head', 'auxiliary_head'),
                     segmenter=('decode_head', )).get(task, ()):
        # nor by the labelled pixels of a process
        found[f'model.{head}.loss_decode.avg_non_ignore'] = False
    return found


def record(folder):
    """In a child: losses by iteration, BatchNorm by its running mean, no random choice."""
    from mmengine.hooks import IterTimerHook
    after = IterTimerHook._after_iter

    def write(self, runner, batch_idx, data_batch=None, outputs=None, mode='train'):
        if mode == 'train':
            with (folder / f'losses_{runner.rank}').open('a') as file:
                file.write(json.dumps([runner.iter, float(outputs['loss'])]) + '\n')
        return after(self, runner, batch_idx, data_batch, outputs, mode)
    IterTimerHook._after_iter = write
    nn.modules.batchnorm._BatchNorm.train = lambda self, mode=True: nn.Module.train(self, False)
    if not missing(*TOOLBOXES['mmdet']):
        from mmdet.models.task_modules.samplers import RandomSampler
        RandomSampler.random_choice = lambda self, gallery, num: gallery[:num]


def losses(folder, processes):
    """Mean over the processes, by iteration."""
    found = [dict(json.loads(line) for line in (folder / f'losses_{rank}').open())
             for rank in range(processes)]
    return [sum(one[step] for one in found) / processes for step in sorted(found[0])]


@pytest.mark.parametrize('task, joining', [
    pytest.param(task, joining, marks=[] if (task, joining) in QUICK else pytest.mark.long)
    for task in runs.TASKS for joining in JOININGS])
def test_two_processes_are_one(task, joining, tmp_path):
    if lacking := missing(*TOOLBOXES[runs.SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    found = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        given = runs.arguments(task, folder / 'run', joining=joining,
                               options=options(task, 4 // processes))
        statuses = runs.run_all(given, folder / 'log', processes, before=partial(record, folder))
        assert statuses == [0] * processes, (folder / 'log').read_text()
        found[processes] = losses(folder, processes)
    assert len(found[1]) >= 12 and len(set(found[1])) == len(found[1])
    assert found[2] == pytest.approx(found[1], rel=1e-5, abs=1e-5)


def test_from_one_process_to_two(tmp_path):
    """The batch of all processes is what it was: so are the losses."""
    if lacking := missing(*TOOLBOXES['mmseg']):
        pytest.skip(f'needs {", ".join(lacking)}')

    def go(folder, processes, **more):
        folder.mkdir(exist_ok=True)
        given = runs.arguments('segmenter', folder / 'run', resume='auto',
                               options=options('segmenter', 4 // processes, **more))
        statuses = runs.run_all(given, folder / 'log', processes, before=partial(record, folder))
        assert statuses == [0] * processes, (folder / 'log').read_text()
    go(tmp_path / 'one', 1)
    go(tmp_path / 'both', 1)
    both = tmp_path / 'both'
    for checkpoint in (both / 'run').glob('iter_*.pth'):
        if checkpoint.name != 'iter_9.pth':
            checkpoint.unlink()
    for path in both.glob('losses_*'):
        path.unlink()
    go(both, 2)
    expected = losses(tmp_path / 'one', 1)[9:]
    assert losses(both, 2) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def signal_rank_1():
    if os.environ['RANK'] == '1':
        runs.signal_itself(signal.SIGTERM, 'mid-epoch')


def test_one_process_has_a_signal_and_both_end(tmp_path):
    if lacking := missing(*TOOLBOXES['mmpretrain']):
        pytest.skip(f'needs {", ".join(lacking)}')
    given = {'train_dataloader.batch_size': 2, 'default_hooks.checkpoint.interval': 100}
    whole, cut = (runs.arguments('deit', tmp_path / name, options=given)
                  for name in ('whole', 'cut'))
    assert runs.run_all(whole, tmp_path / 'log', 2) == [0, 0]
    assert runs.run_all(cut, tmp_path / 'log', 2, before=signal_rank_1) == [143, 143], \
        (tmp_path / 'log').read_text()
    assert (tmp_path / 'cut/interrupted.pth').is_file()
    cut.resume = 'auto'
    assert runs.run_all(cut, tmp_path / 'log', 2) == [0, 0]
    assert runs.digest(runs.last(tmp_path / 'cut')) == runs.digest(runs.last(tmp_path / 'whole'))
