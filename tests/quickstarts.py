"""The quick-start configs, small enough for tests."""
from argparse import Namespace
from pathlib import Path

import pytest

from lape_mm.requirements import TOOLBOXES, missing

ROOT = Path(__file__).parents[1]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
FEW = {'scenes.num_train': 12, 'scenes.num_val': 6, 'train_dataloader.batch_size': 6,
       **{f'{part}_dataloader.num_workers': 0 for part in ('train', 'val', 'test')}}


def need(task):
    """Skips a test whose toolbox is not installed."""
    if lacking := missing(*TOOLBOXES[SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')


def config(task):
    """The path of a quick start's config."""
    need(task)
    return str(ROOT / f'configs/quickstart/{task}.py')


def shorter(task, iterations=2):
    """Options for one epoch, or a few iterations."""
    return {'train_cfg.max_epochs': 1} if task in ('deit', 'mask_rcnn') else {
        'train_cfg.max_iters': iterations, 'train_cfg.val_interval': iterations}


def arguments(task, work_dir, joining=None, **options):
    """What tools/train.py parses."""
    return Namespace(config=config(task), work_dir=str(work_dir), cfg_options=options, resume=None,
                     amp=None, auto_scale_lr=False, joining=joining, launcher='none')
