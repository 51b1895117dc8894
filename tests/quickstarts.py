"""The quick-start configs, small enough for tests: drawn scenes and untrained checkpoints."""
from argparse import Namespace
from pathlib import Path

import pytest

from lape_mm.requirements import TOOLBOXES, missing

ROOT = Path(__file__).parents[1]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
# one a toolbox
CONFIGS = {scope: ROOT / f'configs/quickstart/{name}.py' for scope, name in (
    ('mmdet', 'mask_rcnn'), ('mmseg', 'upernet'), ('mmpretrain', 'deit'))}
FEW = {'scenes.num_train': 12, 'scenes.num_val': 6, 'train_dataloader.batch_size': 6,
       **{f'{part}_dataloader.num_workers': 0 for part in ('train', 'val', 'test')}}


def need(scope):
    """Skips a test whose toolbox is not installed."""
    if lacking := missing(*TOOLBOXES[scope]):
        pytest.skip(f'needs {", ".join(lacking)}')


def config(task):
    """The path of a quick start's config."""
    need(SCOPES[task])
    return str(ROOT / f'configs/quickstart/{task}.py')


def shorter(task, iterations=2):
    """Options for one epoch, or a few iterations."""
    return {'train_cfg.max_epochs': 1} if task in ('deit', 'mask_rcnn') else {
        'train_cfg.max_iters': iterations, 'train_cfg.val_interval': iterations}


def arguments(task, work_dir, joining=None, **options):
    """What tools/train.py parses."""
    return Namespace(config=config(task), work_dir=str(work_dir), cfg_options=options, resume=None,
                     amp=None, auto_scale_lr=False, joining=joining, launcher='none')


def forget(manager=None):
    """mmengine keeps loggers, visualizers and scopes for a whole process."""
    from mmengine.utils import ManagerMixin
    manager = manager or ManagerMixin
    manager._instance_dict.clear()
    for kind in manager.__subclasses__():
        forget(kind)


def draw(scope, folder, monkeypatch):
    """Draws six scenes below ``folder`` for a toolbox's config; gives config and pictures."""
    need(scope)
    from mmengine.config import Config

    from lape_mm.datasets.scenes import prepare
    monkeypatch.setenv('LAPE_MM_SCENES', str(folder / 'scenes'))
    cfg = Config.fromfile(CONFIGS[scope])
    prepare(**{**cfg.scenes, 'num_train': 6, 'num_val': 6})
    return cfg, sorted(path for path in (folder / 'scenes').rglob('*') if path.suffix in (
        '.jpg', '.png', '.JPEG') and 'annotations' not in path.parts)


def save_untrained(cfg, path):
    """A checkpoint as training writes it, of a config's model that has seen nothing."""
    import torch
    from mmengine.registry import MODELS, DefaultScope
    forget()
    torch.manual_seed(0)
    DefaultScope.get_instance('untrained', scope_name=cfg.default_scope)
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        model = registry.build(cfg.model)
    metainfo = dict(cfg.val_dataloader.dataset.get('metainfo') or dict(classes=list('abcdef')))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=metainfo)), path)
    forget()
    return str(path)
