"""The quick-start configs: a step with every joining, a whole small run, and (long) their marks."""
import json
from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip('mmengine', reason='the quick start needs a toolbox')

import torch  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs.config import load_config  # noqa: E402
from lape_mm.runs.session import build_runner, train  # noqa: E402

ROOT = Path(__file__).parents[1]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
JOININGS = ['default', 'lape', 'pvg', 'mpvg']
FEW = {'scenes.num_train': 12, 'scenes.num_val': 6, 'train_dataloader.batch_size': 3,
       'train_dataloader.num_workers': 0, 'val_dataloader.num_workers': 0,
       'test_dataloader.num_workers': 0}


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path_factory, forgetful):
    """Scenes of the tests' own, drawn once; nothing of a run left behind."""
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'scenes'))


def config(task, tmp_path, **options):
    if lacking := missing(*TOOLBOXES[SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    return dict(config=str(ROOT / f'configs/quickstart/{task}.py'), work_dir=str(tmp_path),
                cfg_options={**FEW, **options})


@pytest.mark.parametrize('joining', JOININGS)
@pytest.mark.parametrize('task', SCOPES)
def test_a_step_reaches_every_parameter(task, joining, tmp_path):
    given = config(task, tmp_path)
    cfg = load_config(given['config'], options=given['cfg_options'], joining=joining,
                      work_dir=given['work_dir'])
    runner = build_runner(cfg, 'train')
    model = runner.model.train()
    for parameter in model.backbone.parameters():
        # injectors start at gamma = 0, which would hide what lies behind them
        if parameter.requires_grad and not parameter.any():
            torch.nn.init.normal_(parameter, std=.02)
    batch = next(iter(runner.build_dataloader(cfg.train_dataloader)))
    losses = model(**model.data_preprocessor(batch, True), mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    batch = next(iter(runner.build_dataloader(cfg.val_dataloader)))
    with torch.no_grad():
        assert len(model.eval().val_step(batch)) > 0


@pytest.mark.parametrize('task', SCOPES)
def test_a_small_run_trains_evaluates_and_draws(task, tmp_path, capsys):
    shorter = {'train_cfg.max_epochs': 1} if task in ('deit', 'mask_rcnn') else \
        {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2}
    picture = {'default_hooks.visualization.interval': 1}
    given = config(task, tmp_path, **shorter, **picture)
    train(Namespace(**given, resume=None, amp=None, auto_scale_lr=False, joining=None,
                    launcher='none'))
    closing = dict(line.split(':', 1) for line in capsys.readouterr().out.splitlines()[-4:])
    assert set(closing) == {'metrics', 'checkpoint', 'log', 'pictures'}
    assert list(tmp_path.glob('*/vis_data/vis_image/*')), closing
    assert Path(closing['checkpoint'].split(',')[0].strip()).resolve().is_file()
    assert Path(closing['log'].strip()).resolve().is_file()


@pytest.mark.long
def test_a_classifier_becomes_a_detectors_backbone(tmp_path):
    """Issue 2: deit.py's checkpoint loads into mask_rcnn.py with all of its ViT."""
    given = config('deit', tmp_path / 'deit', **{'train_cfg.max_epochs': 1})
    options = dict(resume=None, amp=None, auto_scale_lr=False, joining='mpvg', launcher='none')
    train(Namespace(**given, **options))
    checkpoint = next((tmp_path / 'deit').glob('epoch_*.pth'))
    given = config('mask_rcnn', tmp_path / 'det', **{
        'train_cfg.max_epochs': 1, 'model.backbone.init_cfg.checkpoint': str(checkpoint)})
    train(Namespace(**given, **options))
    log, = (tmp_path / 'det').glob('*/*.log')
    assert "100.00 % of the ViT's weights found" in log.read_text()


@pytest.mark.long
@pytest.mark.parametrize('task, metric, mark', [
    ('deit', 'accuracy/top1', 80.), ('mask_rcnn', 'coco/segm_mAP_50', .5),
    ('upernet', 'mIoU', 60.), ('segmenter', 'mIoU', 50.)])
def test_the_mark_is_reached(task, metric, mark, tmp_path, monkeypatch):
    """As a user runs it; benchmarks/quickstart.py does it for each joining."""
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path / 'scenes'))
    given = dict(config(task, tmp_path / 'run'), cfg_options=None)
    train(Namespace(**given, resume=None, amp=None, auto_scale_lr=False, joining=None,
                    launcher='none'))
    scalars, = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    values = [json.loads(line)[metric] for line in scalars.open() if f'"{metric}"' in line]
    assert values[-1] >= mark
