"""What the CIFAR-100 configs amount to: images, learning rates, frozen parts."""
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')

from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing(*TOOLBOXES['mmpretrain'])), reason='needs mmpretrain')
CONFIGS = Path(__file__).parents[1] / 'configs'
VIT_LITE = CONFIGS / 'vit_lite/vit-lite-7-mpvg_1xb128-310e_cifar100.py'
T2T = CONFIGS / 't2t_vit/t2t-vit-7-mpvg_1xb128-60e_cifar100.py'


def images(cfg, image, leave_out=()):
    """The train pipeline's tensor of an image, (H, W, 3) uint8 RGB as CIFAR has it."""
    from mmengine.dataset import Compose
    from mmengine.registry import TRANSFORMS
    init_default_scope('mmpretrain')
    import mmpretrain.datasets  # noqa: F401
    pipeline = Compose([TRANSFORMS.build(step) for step in cfg.train_dataloader.dataset.pipeline
                        if step.type not in leave_out])
    return pipeline(dict(img=image, gt_label=3))['inputs']


@pytest.mark.parametrize('path, size', [(VIT_LITE, 32), (T2T, 224)])
def test_images_stay_rgb(path, size):
    image = np.full((32, 32, 3), (200, 50, 10), np.uint8)
    cfg = Config.fromfile(path)
    np.random.seed(0)
    tensor = images(cfg, image, leave_out=('RandAugment', 'RandomErasing', 'RandomCrop'))
    assert tensor.shape == (3, size, size) and tensor.dtype == torch.uint8
    assert tensor.float().mean((1, 2)).tolist() == [200, 50, 10]
    assert images(cfg, image).shape == (3, size, size)


def rates(cfg, epochs):
    """The learning rate of each iteration, three an epoch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))],
                                lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = []
    for settings in cfg.param_scheduler:
        settings = dict(settings)
        build = PARAM_SCHEDULERS.get(settings.pop('type'))
        if settings.pop('convert_to_iter_based', False):
            build, settings['epoch_length'] = build.build_iter_from_epoch, 3
        schedulers.append(build(optimizer, **settings))
    found = []
    for _ in range(epochs):
        for _ in range(3):
            found.append(optimizer.param_groups[0]['lr'])
            for scheduler in schedulers:
                if not scheduler.by_epoch:
                    scheduler.step()
        for scheduler in schedulers:
            if scheduler.by_epoch:
                scheduler.step()
    return found


def test_compact_transformers_schedule():
    cfg = Config.fromfile(VIT_LITE)
    found = rates(cfg, cfg.train_cfg.max_epochs)
    assert len(found) == 3 * 310 and cfg.auto_scale_lr.base_batch_size == 128
    assert found[0] == pytest.approx(1e-6) and max(found) == pytest.approx(6e-4)
    assert found.index(max(found)) == pytest.approx(30, abs=1)
    assert found[3 * 155] == pytest.approx((6e-4 + 1e-5) / 2, rel=.01)  # half-way of the cosine
    assert found[900:] == pytest.approx([1e-5] * 30, rel=1e-3)          # the cooldown


def test_t2t_transfer_trains_what_the_official_code_trains():
    cfg = Config.fromfile(T2T)
    found = rates(cfg, 60)
    assert found[0] == .05 and found[-1] == pytest.approx(2e-4, rel=.2)
    init_default_scope('mmpretrain')
    model = MODELS.build(cfg.model)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    learnt = {names[id(parameter)]: group for group in optimizer.param_groups
              for parameter in group['params']}
    assert all(group['weight_decay'] == 5e-4 for group in learnt.values())
    for name, parameter in model.named_parameters():
        part = name.split('.')[1] if name.startswith('backbone.') else 'head'
        rate = {'patch_embed': 5e-4, 'blocks': 5e-4, 'head': .05}.get(part)
        if not parameter.requires_grad or rate is None:
            assert name not in learnt
            assert not parameter.requires_grad or part in ('norm', 'last_pe_norm', 'cls_token')
        else:
            assert learnt[name]['lr'] == pytest.approx(rate), name
    assert 'backbone.blocks.1.pe_norm.weight' in learnt
