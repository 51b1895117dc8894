"""Every config parses, keeps the house's rules, and builds its model through its own toolbox.

Those over further heads and data sets take a step of training and of validation, too.
"""
import re
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

import sweep  # noqa: E402
import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from tiny_models import ADAPTER, SIZES  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs.config import our_backbones, walk  # noqa: E402

ROOT = Path(__file__).parents[1] / 'configs'
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob('*.py')
                 if '_base_' not in path.parts)

def size_of(name: str) -> str | None:
    return next((size for size in ('tiny', 'small', 'base', 'large') if f'-{size}-' in name), None)


def published(name: str) -> str | None:
    return next((family for family in ('dinov2', 'dinov3', 'mae') if f'-{family}-' in name), None)


@pytest.mark.parametrize('name', CONFIGS)
def test_config_keeps_the_rules(name):
    cfg = Config.fromfile(ROOT / name)
    assert cfg.default_scope in TOOLBOXES
    assert cfg.auto_scale_lr.base_batch_size > 0
    (_, backbone), = our_backbones(cfg)
    if family := published(name):  # a file of the release, and grafted unless it is the default
        assert re.match(rf'weights/{family}_', backbone.init_cfg.checkpoint)
        assert backbone.init_cfg.get('graft', False) == (backbone.joining != 'default')
    else:
        assert 'init_cfg' not in backbone or name.startswith('studies/')
    assert 'visualization' in cfg.default_hooks
    if batch := re.search(r'_(\d+)xb(\d+)-', name):
        gpus, images = map(int, batch.groups())
        assert cfg.train_dataloader.batch_size == images
        assert cfg.auto_scale_lr.base_batch_size == gpus * images
    if named := re.search(r'-(default|lape|pvg|mpvg)_', name):
        assert cfg.model.backbone.joining == named[1]
    if size := size_of(name):
        assert backbone.arch == (f'{family}_{size}' if family else size)


@cache
def build(scope: str, model: str) -> None:
    """Several configs share a model: each is built once, most without memory for weights."""
    init_default_scope(scope)
    # the segmenter's head reads its drop rates from a tensor
    with torch.device('cpu' if 'SegmenterMask' in model else 'meta'):
        MODELS.build(Config.fromstring(model, file_format='.py').model)


@pytest.mark.parametrize('name', CONFIGS)
def test_model_builds(name):
    cfg = Config.fromfile(ROOT / name)
    if lacking := missing(*TOOLBOXES[cfg.default_scope]):
        pytest.skip(f'needs {", ".join(lacking)}')
    build(cfg.default_scope, f'model = {cfg.model.to_dict()!r}')


FURTHER = [name for name in CONFIGS if '-default_' in name and (
    name.split('/')[0] in ('atss', 'cascade_rcnn', 'lvis', 'mask2former', 'sem_fpn', 'vitdet')
    or re.search('-large-|_cityscapes|_voc12', name))]


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[] if name.split('/')[0] in ('sem_fpn', 'vitdet')
                 else [pytest.mark.long]) for name in FURTHER])
def test_a_step_of_training_and_of_validation(name):
    cfg = Config.fromfile(ROOT / name)
    if lacking := missing(*TOOLBOXES[cfg.default_scope]):
        pytest.skip(f'needs {", ".join(lacking)}')
    plain = cfg.model.backbone.type == 'lape_mm.DeiT'
    options: dict = {'model.backbone.arch': dict(SIZES, depth=4) if plain else ADAPTER}
    if plain:
        options['model.backbone.out_indices'] = (3,)
    for path, node in walk({'model': cfg.model}):
        given = node.get('in_channels')
        if given in (192, 1024):
            options[f'{path}.in_channels'] = 24
        elif given in ([192] * 3, [192] * 4, [1024] * 4):
            options[f'{path}.in_channels'] = [24] * len(given)
    size = sweep.SIZES[cfg.default_scope][0]
    # every parameter of the backbone gets a gradient
    assert sweep.try_config(str(ROOT / name), None, size, options) == ''
