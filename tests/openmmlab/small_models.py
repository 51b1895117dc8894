"""Untrained checkpoints and a few drawn images of the quick-start configs."""
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, DefaultScope  # noqa: E402
from mmengine.utils import ManagerMixin  # noqa: E402

from lape_mm.datasets.scenes import prepare  # noqa: E402
from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

ROOT = Path(__file__).parents[2]
CONFIGS = {scope: ROOT / f'configs/quickstart/{name}.py' for scope, name in (
    ('mmdet', 'mask_rcnn'), ('mmseg', 'upernet'), ('mmpretrain', 'deit'))}


def need(scope):
    """Skips a test whose toolbox is not installed."""
    if lacking := missing(*TOOLBOXES[scope]):
        pytest.skip(f'needs {", ".join(lacking)}')


def forget(manager=ManagerMixin):
    """mmengine keeps loggers, visualizers and scopes for a whole process."""
    manager._instance_dict.clear()
    for kind in manager.__subclasses__():
        forget(kind)


def draw(scope, folder, monkeypatch):
    """Draws a few scenes below ``folder`` for a scope's config; gives the config."""
    need(scope)
    monkeypatch.setenv('LAPE_MM_SCENES', str(folder / 'scenes'))
    cfg = Config.fromfile(CONFIGS[scope])
    prepare(**{**cfg.scenes, 'num_train': 6, 'num_val': 6})
    return cfg


def save_untrained(scope, cfg, path):
    """A checkpoint as training writes it, of a model that has seen nothing."""
    forget()
    torch.manual_seed(0)
    DefaultScope.get_instance('untrained', scope_name=scope)
    with MODELS.switch_scope_and_registry(scope) as registry:
        model = registry.build(cfg.model)
    metainfo = dict(cfg.val_dataloader.dataset.get('metainfo') or {})
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=metainfo)), path)
    forget()
    return str(path)


def pictures(folder):
    """The drawn images, in order."""
    return sorted(str(path) for path in (folder / 'scenes').rglob('*')
                  if path.suffix in ('.jpg', '.png', '.JPEG') and 'annotations' not in path.parts)
