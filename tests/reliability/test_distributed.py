"""Two processes train as one does with the same batch."""
import json

import pytest

pytest.importorskip('mmengine', reason='runs need a toolbox')

import small_runs as runs  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

JOININGS = ['default', 'lape', 'pvg', 'mpvg']


@pytest.fixture(autouse=True)
def scenes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'small_scenes'))
    if not torch.distributed.is_gloo_available():
        pytest.skip('torch was built without gloo')


def options(task, batch, **more):
    found = {'train_dataloader.batch_size': batch, 'model.backbone.drop_path_rate': 0.,
             # of which one process makes another average than two
             'optim_wrapper.clip_grad': None, **more}
    if task == 'mask_rcnn':
        # mmdet divides by the objects of a process: an image that all of them have
        found.update({'train_dataloader.dataset': dict(
            type='RepeatDataset', times=12,
            dataset=runs.setting(task, 'train_dataloader.dataset', indices=1), _delete_=True),
            'train_dataloader.dataset.dataset.pipeline.2.prob': 0.,
            'train_dataloader.batch_sampler': None})
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


@pytest.mark.parametrize('joining', [
    'mpvg', *(pytest.param(name, marks=pytest.mark.long) for name in JOININGS[:-1])])
@pytest.mark.parametrize('task', runs.TASKS)
def test_two_processes_are_one(task, joining, tmp_path):
    if lacking := missing(*TOOLBOXES[runs.SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    runs.preload([runs.SCOPES[task]])
    found = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        given = runs.arguments(task, folder / 'run', joining=joining,
                               options=options(task, 4 // processes))
        statuses = runs.run_all(given, folder / 'log', processes, before=lambda: record(folder))
        assert statuses == [0] * processes, (folder / 'log').read_text()
        found[processes] = losses(folder, processes)
    assert len(found[1]) >= 12 and len(set(found[1])) == len(found[1])
    assert found[2] == pytest.approx(found[1], rel=1e-5, abs=1e-5)


def test_from_one_process_to_two(tmp_path):
    """The global batch is what it was: so are the losses."""
    if lacking := missing(*TOOLBOXES['mmseg']):
        pytest.skip(f'needs {", ".join(lacking)}')
    runs.preload(['mmseg'])
    found = {}
    for name, plan in {'one': [(1, 12)], 'both': [(1, 6), (2, 12)]}.items():
        folder = tmp_path / name
        folder.mkdir()
        for processes, end in plan:
            more = {} if end == 12 else {
                'custom_hooks': [dict(type='EarlyEnd', end=end)]}
            given = runs.arguments('segmenter', folder / 'run', resume='auto',
                                   options=options('segmenter', 4 // processes, **more))

            def before():
                record(folder)
                early_end()
            statuses = runs.run_all(given, folder / 'log', processes, before=before)
            assert statuses == [0] * processes, (folder / 'log').read_text()
        found[name] = losses(folder, 1)
    second = losses_of(tmp_path / 'both', 1)
    whole = losses_of(tmp_path / 'one', 0)
    first = losses_of(tmp_path / 'both', 0)
    assert sorted(second) == list(range(6, 12)) and sorted(first) == list(range(12))
    for step in whole:
        mean = first[step] if step < 6 else (first[step] + second[step]) / 2
        assert mean == pytest.approx(whole[step], rel=1e-5, abs=1e-5)
