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
from lape_mm.runs.engine import ExactRunHook  # noqa: E402

LONG = pytest.mark.long
CASES = [('deit', 'mpvg'), *(pytest.param(*case, marks=LONG) for case in (
    ('deit', 'default'), ('deit', 'lape'), ('deit', 'pvg'), ('mask_rcnn', 'lape'),
    ('upernet', 'mpvg'), ('segmenter', 'default')))]


@pytest.fixture(autouse=True)
def scenes(monkeypatch, tmp_path_factory):
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'small_scenes'))
    if not torch.distributed.is_gloo_available():
        pytest.skip('torch was built without gloo')


def options(task, batch):
    found = {'train_dataloader.batch_size': batch, 'model.backbone.drop_path_rate': 0.,
             # small, because Adam turns rounding errors into steps of this size
             'optim_wrapper.optimizer.lr': 5e-4,
             # it averages differently over one process than over two
             'optim_wrapper.clip_grad': None}
    if task == 'mask_rcnn':
        # one image for all processes, because mmdet divides losses by the objects of a process;
        # small steps, because rounding errors reorder boxes of similar scores
        found.update({
            'optim_wrapper.optimizer.lr': 1e-4,
            'train_dataloader.dataset': dict(
                type='RepeatDataset', times=12, _delete_=True,
                dataset=runs.setting(task, 'train_dataloader.dataset', indices=1)),
            'train_dataloader.dataset.dataset.pipeline.3.prob': 0.,
            'train_dataloader.batch_sampler': None})
    for head in dict(upernet=('decode_head', 'auxiliary_head'),
                     segmenter=('decode_head', )).get(task, ()):
        # else mmseg divides losses by the labelled pixels of a process
        found[f'model.{head}.loss_decode.avg_non_ignore'] = False
    return found


def record(folder):
    """In a child: writes the losses, fixes BatchNorm's statistics, removes a random choice."""
    def write(self, runner, batch_idx, data_batch=None, outputs=None):
        with (folder / f'losses_{runner.rank}').open('a') as file:
            file.write(json.dumps([runner.iter, float(outputs['loss'])]) + '\n')
    ExactRunHook.after_train_iter = write
    nn.modules.batchnorm._BatchNorm.train = lambda self, mode=True: nn.Module.train(self, False)
    if not missing(*TOOLBOXES['mmdet']):
        from mmdet.models.task_modules.samplers import RandomSampler
        RandomSampler.random_choice = lambda self, gallery, num: gallery[:num]


def losses(folder, processes):
    """Mean loss of the processes, by iteration."""
    found = [dict(json.loads(line) for line in (folder / f'losses_{rank}').open())
             for rank in range(processes)]
    return [sum(one[step] for one in found) / processes for step in sorted(found[0])]


def go(folder, task, processes, **given):
    """Trains in so many processes, with a batch of four images in all; the losses."""
    if lacking := missing(*TOOLBOXES[runs.SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    folder.mkdir(exist_ok=True)
    given = runs.arguments(task, folder / 'run', options=options(task, 4 // processes), **given)
    statuses = runs.run_all(given, folder / 'log', processes, before=partial(record, folder))
    assert statuses == [0] * processes, (folder / 'log').read_text()
    return losses(folder, processes)


@pytest.mark.parametrize('task, joining', CASES)
def test_two_processes_train_as_one(task, joining, tmp_path):
    one, two = (go(tmp_path / str(processes), task, processes, joining=joining)
                for processes in (1, 2))
    assert len(one) >= 12 and len(set(one)) == len(one)
    assert two == pytest.approx(one, rel=1e-5, abs=1e-5)


def test_from_one_process_to_two(tmp_path):
    """The batch of all processes stays the same, and so do the losses."""
    folder = tmp_path / 'run'
    expected = go(folder, 'segmenter', 1)
    (folder / 'run/iter_12.pth').unlink()
    (folder / 'losses_0').unlink()
    assert go(folder, 'segmenter', 2, resume='auto') == pytest.approx(
        expected[9:], rel=1e-5, abs=1e-5)


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
