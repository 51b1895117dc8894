"""Following a run in TensorBoard and W&B, by the options that docs/your_own_data.md names."""
import os
import time

import pytest

pytest.importorskip('mmengine')

from mmengine.config import Config  # noqa: E402
from quickstarts import FEW, arguments, shorter  # noqa: E402

from lape_mm.runs.checks.preflight import check_values  # noqa: E402
from lape_mm.runs.config import merge_options  # noqa: E402
from lape_mm.runs.errors import Report, RunError  # noqa: E402
from lape_mm.runs.session import train  # noqa: E402

METRIC = {'deit': 'accuracy/top1', 'mask_rcnn': 'coco/segm_mAP', 'upernet': 'mIoU',
          'segmenter': 'mIoU'}
BACKEND = 'visualizer.vis_backends.1.type'
EVERY_STEP = {'default_hooks.position.type': 'lape_mm.PositionHook',
              'default_hooks.position.interval': 1, 'default_hooks.logger.interval': 1}


@pytest.fixture
def run(monkeypatch, tmp_path, tmp_path_factory, forgetful):
    """Trains a quick start for two steps with some options; its folder."""
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'scenes'))
    monkeypatch.chdir(tmp_path)  # W&B copies all Python files below the current folder

    def start(task, **options):
        train(arguments(task, tmp_path, 'mpvg', **FEW, **shorter(task), **options))
        return tmp_path
    return start


@pytest.mark.parametrize('task', [
    'deit', *(pytest.param(task, marks=pytest.mark.long)
              for task in ('mask_rcnn', 'upernet', 'segmenter'))])
def test_tensorboard_gets_losses_rates_metrics_and_position_embedding(run, task):
    pytest.importorskip('tensorboard', reason='tensorboard is not installed')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    folder = run(task, **{BACKEND: 'TensorboardVisBackend', **EVERY_STEP})
    events, = folder.glob('*/vis_data/events.out.tfevents.*')
    seen = EventAccumulator(str(events)).Reload()
    for name in ('loss', 'lr', METRIC[task], 'position/correlation/layer1',
                 'position/norm/layer1'):
        assert seen.Scalars(name), (name, seen.Tags()['scalars'])
    assert [event.step for event in seen.Scalars('loss')] == [1, 2]
    assert [event.step for event in seen.Scalars('position/norm/layer1')] == [1, 2]
    assert list(folder.glob('*/vis_data/scalars.json'))  # beside it, not instead


def test_wandb_offline(run, monkeypatch):
    pytest.importorskip('wandb', reason='wandb is not installed')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    folder = run('deit', **{BACKEND: 'WandbVisBackend', **EVERY_STEP,
                            'visualizer.vis_backends.1.init_kwargs.project': 'lape_mm'})
    import wandb
    wandb.finish()
    offline, = folder.glob('*/vis_data/wandb/offline-run-*')
    log, deadline = next(offline.glob('run-*.wandb')), time.monotonic() + 20
    while os.path.getsize(log) < 1000:  # W&B writes it in a process of its own
        assert time.monotonic() < deadline
        time.sleep(.1)


class TestOption:
    def test_the_next_number_adds_an_entry(self):
        cfg = Config(dict(visualizer=dict(vis_backends=[dict(type='LocalVisBackend')])))
        merge_options(cfg, {BACKEND: 'WandbVisBackend',
                            'visualizer.vis_backends.1.init_kwargs.project': 'x'})
        assert cfg.visualizer.vis_backends == [
            dict(type='LocalVisBackend'),
            dict(type='WandbVisBackend', init_kwargs=dict(project='x'))]

    @pytest.mark.parametrize('key', ['vis_backends.2.type', 'vis_backends.1.save_dir'])
    def test_no_other_does(self, key):
        with pytest.raises(RunError, match='--cfg-options'):
            merge_options(Config(dict(vis_backends=[dict(type='LocalVisBackend')])), {key: 'x'})

    def test_a_missing_package_is_named_before_the_run(self, monkeypatch):
        monkeypatch.setattr('lape_mm.runs.checks.preflight.missing', lambda module: [module])
        report = Report(Config(dict(visualizer=dict(vis_backends=[
            dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')]))))
        check_values(report, 'train')
        assert 'visualizer.vis_backends.1: tensorboard is not installed: pip install tensorboard' \
            in report.lines()
