"""The device's augmentation against the transforms that it stands for, and its loader and loop."""
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')

from mmengine.config import Config  # noqa: E402
from mmengine.registry import TRANSFORMS, init_default_scope  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.engine import DeviceLoader  # noqa: E402
from lape_mm.engine.device_augment import BUILDERS, magnitudes, split_pipeline  # noqa: E402
from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402

pytestmark = pytest.mark.skipif(bool(missing(*TOOLBOXES['mmpretrain'])), reason='needs mmpretrain')
CONFIG = Path(__file__).parents[2] / 'configs/vit_lite/vit-lite-7-mpvg_1xb128-310e_cifar100.py'
PACK = dict(type='PackInputs')


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    import mmpretrain.datasets  # noqa: F401


def smooth(side=32):
    """A picture without sharp edges, (side, side, 3) uint8 RGB."""
    y, x = np.mgrid[:side, :side] / side
    channels = [np.sin(5 * x + y), np.cos(3 * y), np.sin(4 * x * y + 1)]
    return (120 + 90 * np.stack(channels, -1)).astype(np.uint8)


def tensor(image, count=4):
    return torch.from_numpy(image.copy()).permute(2, 0, 1).expand(count, -1, -1, -1).contiguous()


def on_device(settings, images, seed=0):
    _, (step,) = split_pipeline([settings, PACK])
    return step(images, np.random.default_rng(seed))


@pytest.mark.parametrize('policy', [
    dict(type='AutoContrast'), dict(type='Equalize'), dict(type='Invert'),
    dict(type='Rotate', magnitude_range=(0, 30)), dict(type='Posterize', magnitude_range=(4, 0)),
    dict(type='Posterize', magnitude_range=(0, 4)), dict(type='Solarize', magnitude_range=(256, 0)),
    dict(type='SolarizeAdd', magnitude_range=(0, 110)),
    dict(type='ColorTransform', magnitude_range=(0, .9)),
    dict(type='Contrast', magnitude_range=(0, .9)),
    dict(type='Brightness', magnitude_range=(0, .9)),
    dict(type='Sharpness', magnitude_range=(0, .9)),
    dict(type='Shear', magnitude_range=(0, .3), direction='horizontal'),
    dict(type='Shear', magnitude_range=(0, .3), direction='vertical'),
    dict(type='Translate', magnitude_range=(0, .45), direction='horizontal'),
    dict(type='Translate', magnitude_range=(0, .45), direction='vertical')], ids=str)
def test_operations_are_those_of_the_pipeline(policy):
    policy = dict(policy, prob=1.)
    if policy['type'] in ('Rotate', 'Shear', 'Translate', 'ColorTransform', 'Contrast',
                          'Brightness', 'Sharpness'):
        policy['random_negative_prob'] = 0.
    for level in (2, 7):
        def settings(colour, level=level):
            return dict(type='RandAugment', policies=[policy], num_policies=1,
                        magnitude_level=level,
                        hparams=dict(pad_val=colour, interpolation='bilinear'))

        image = smooth()
        pipeline = TRANSFORMS.build(settings([10, 120, 220]))
        expected = pipeline(dict(img=image[..., ::-1].copy()))['img'][..., ::-1]
        images = on_device(settings([220, 120, 10]), tensor(image))
        assert images.dtype == torch.uint8 and (images == images[0]).all()
        difference = np.abs(images[0].permute(1, 2, 0).numpy().astype(int) - expected)
        # at the border of what is filled, interpolation weighs the colour a little otherwise
        assert np.quantile(difference, .9) <= 2 and difference.mean() < 2.5, difference.mean()


def test_magnitudes_and_signs_are_an_images_own():
    op = TRANSFORMS.build(dict(type='Rotate', magnitude_range=(0, 30), magnitude_level=9,
                               magnitude_std=.5, total_level=10))
    drawn = magnitudes(op, 4000, np.random.default_rng(0))
    assert (drawn < 0).mean() == pytest.approx(.5, abs=.05)
    assert np.abs(drawn).mean() == pytest.approx(27, abs=.2) and np.abs(drawn).max() <= 30
    assert np.abs(drawn).std() == pytest.approx(1.4, abs=.2)
    solarize = TRANSFORMS.build(dict(type='Solarize', magnitude_range=(256, 0), magnitude_level=9))
    assert magnitudes(solarize, 9, np.random.default_rng(0)) == pytest.approx([25.6] * 9)


def test_crop_is_a_resized_part_of_the_image():
    y, x = np.mgrid[:32, :32].astype(np.float32)
    image = np.stack([x, y, np.zeros_like(x)], -1).astype(np.uint8) * 8
    whole = dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(1., 1.),
                 aspect_ratio_range=(1., 1.))
    assert torch.equal(on_device(whole, tensor(image)), tensor(image))
    part = on_device(dict(whole, crop_ratio_range=(.25, .5), aspect_ratio_range=(.75, 1.33)),
                     tensor(image, 500)).float() / 8
    widths = part[:, 0, :, -1].mean(1) - part[:, 0, :, 0].mean(1)
    heights = part[:, 1, -1].mean(1) - part[:, 1, 0].mean(1)
    area = (widths + 1) * (heights + 1) / 32 ** 2
    assert .2 < area.min() and area.max() < .6 and area.mean() == pytest.approx(.375, abs=.03)
    ratio = widths / heights
    assert .6 < ratio.min() < .85 and 1.2 < ratio.max() < 1.6
    assert part[:, 0].min() < 1 and part[:, 0].max() > 30  # anywhere in the image


def test_flip_and_choice():
    images = tensor(smooth(), 400)
    flipped = on_device(dict(type='RandomFlip', prob=.25), images)
    turned = (flipped == images.flip(-1)).flatten(1).all(1)
    assert ((flipped == images).flatten(1).all(1) ^ turned).all()
    assert turned.float().mean() == pytest.approx(.25, abs=.06)
    step = dict(type='RandomResizedCrop', scale=16, crop_ratio_range=(.8, 1.))
    chosen = on_device(dict(type='RandomChoice', transforms=[
        [dict(step, interpolation='bilinear')], [dict(step, interpolation='bicubic')]]), images)
    assert chosen.shape == (400, 3, 16, 16) and len(chosen.flatten(1).unique(dim=0)) > 100


@pytest.mark.parametrize('mode', ['const', 'rand'])
def test_erasing(mode):
    images = torch.zeros(600, 3, 32, 32, dtype=torch.uint8)
    erased = on_device(dict(type='RandomErasing', erase_prob=.25, mode=mode, min_area_ratio=.02,
                            max_area_ratio=1 / 3, fill_color=[50, 100, 150],
                            fill_std=[5, 5, 5]), images).float()
    touched = erased.flatten(1).any(1)
    assert touched.float().mean() == pytest.approx(.25, abs=.06)
    inside = (erased[touched] > 0).all(1)
    share = inside.float().mean((1, 2))
    assert share.min() > .01 and share.max() < .4
    for channel, colour in enumerate([50, 100, 150]):
        values = erased[touched][:, channel][inside]
        assert values.mean() == pytest.approx(colour, abs=.5)
        assert values.std() == pytest.approx(0 if mode == 'const' else 5, abs=.3)


@pytest.mark.parametrize('more', [dict(), dict(fill_std=[5, 5, 5])])
def test_erasing_leaves_torchs_generator_alone(more):
    """It differs in a run that is resumed between two batches."""
    images, state = torch.zeros(9, 3, 32, 32, dtype=torch.uint8), torch.get_rng_state()
    step = dict(type='RandomErasing', erase_prob=1., mode='rand', **more)
    first = on_device(step, images)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(int(state[0]) + 1)
    assert torch.equal(on_device(step, images), first)
    assert not torch.equal(on_device(step, images, seed=1), first)


def test_colours_follow_the_channels():
    pipeline = Config.fromfile(CONFIG).train_dataloader.dataset.pipeline
    erasing = next(dict(step, erase_prob=1., fill_std=[0, 0, 0], min_area_ratio=1.,
                        max_area_ratio=1., aspect_range=(1., 1.)) for step in pipeline
                   if step.type == 'RandomErasing')
    kept, (step,) = split_pipeline([*pipeline[:2], erasing, *pipeline[-3:]])
    assert [entry['type'] for entry in kept] == ['NumpyToPIL', 'PILToNumpy'] * 2 + ['PackInputs']
    image = step(tensor(smooth(), 1), np.random.default_rng(0))[0]
    assert image[:, 5, 5].tolist() == [129, 124, 112]  # CIFAR's mean in RGB


@pytest.mark.parametrize('steps, words', [
    ([dict(type='ColorJitter')], ["'ColorJitter'", 'RandomFlip']),
    ([dict(type='RandomFlip', prob=.5), dict(type='Resize', scale=8)], ["'Resize' after"]),
    ([dict(type='RandomFlip', prob=.5, direction='vertical')], ["'vertical'"]),
    ([dict(type='RandAugment', policies=[dict(type='Cutout', shape=3)], num_policies=1,
           magnitude_level=3)], ["'Cutout'", 'Rotate'])])
def test_errors(steps, words):
    with pytest.raises(ValueError) as error:
        split_pipeline([*steps, PACK])
    assert all(word in str(error.value) for word in words), error.value
    assert {'RandomFlip', 'RandAugment'} < set(BUILDERS)


@pytest.fixture
def folder(tmp_path):
    """Three classes of eight pictures, whose first pixel is their number times 10."""
    for number in range(24):
        picture = np.full((16, 16, 3), number * 10, np.uint8)
        path = tmp_path / 'data' / f'class{number % 3}' / f'{number:02}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return tmp_path / 'data'


def settings(folder, *random, **more):
    return {**dict(batch_size=5, num_workers=2, sampler=dict(type='DefaultSampler', shuffle=True),
                   dataset=dict(type='CustomDataset', data_root=str(folder), pipeline=[
                       dict(type='LoadImageFromFile'), *random, PACK])), **more}


def test_loader_yields_what_the_config_says(folder):
    loader = DeviceLoader(settings(folder), seed=3, device='cpu')
    assert len(loader) == 5 and loader.images.shape == (24, 3, 16, 16)
    seen = []
    for batch in loader:
        assert batch['inputs'].dtype == torch.uint8
        for image, sample in zip(batch['inputs'], batch['data_samples']):
            number = int(image[0, 0, 0]) // 10
            assert int(sample.gt_label) == number % 3
            seen.append(number)
    assert sorted(seen) == list(range(24)) != seen
    assert [len(batch['inputs']) for batch in loader] == [5, 5, 5, 5, 4]
    dropping = DeviceLoader(settings(folder, drop_last=True), seed=3, device='cpu')
    assert [len(batch['inputs']) for batch in dropping] == [5] * len(dropping) == [5] * 4


def test_draws_follow_seed_and_epoch(folder):
    def epoch(seed, number):
        loader = DeviceLoader(settings(folder, dict(type='RandomErasing', erase_prob=.5)),
                              seed=seed, device='cpu')
        loader.sampler.set_epoch(number)
        return torch.cat([batch['inputs'] for batch in loader])

    assert torch.equal(epoch(0, 1), epoch(0, 1))
    assert not torch.equal(epoch(0, 1), epoch(0, 2)) and not torch.equal(epoch(0, 1), epoch(1, 1))


def test_images_of_several_sizes_are_refused(folder):
    Image.new('RGB', (9, 9)).save(folder / 'class0' / '99.png')
    with pytest.raises(ValueError, match=r'\(3, 9, 9\)'):
        DeviceLoader(settings(folder), device='cpu')


@pytest.mark.parametrize('compile', [False, dict(backend='eager')])
def test_a_config_trains_with_the_loop(folder, tmp_path, compile):
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict({
        'train_cfg.type': 'lape_mm.DeviceTrainLoop', 'train_cfg.max_epochs': 2,
        'train_cfg.compile': compile, 'train_dataloader.batch_size': 8,
        'model.head.in_channels': 24, 'param_scheduler.1.end': 12, 'work_dir': str(tmp_path / 'w')})
    cfg.model.backbone.arch = dict(embed_dim=24, depth=2, num_heads=3)
    cfg.train_dataloader.dataset.update(type='CustomDataset', data_root=str(folder))
    for key in ('split', 'download'):
        cfg.train_dataloader.dataset.pop(key)
    cfg.train_dataloader.dataset.pipeline.insert(0, dict(type='LoadImageFromFile'))
    for name in ('val_dataloader', 'val_cfg', 'val_evaluator', 'test_dataloader', 'test_cfg',
                 'test_evaluator'):
        cfg.pop(name)
    cfg.default_hooks.checkpoint.save_best = None
    cfg.experiment_name = f'device_loop_{bool(compile)}'
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert isinstance(runner.train_dataloader, DeviceLoader) and runner.iter == 2 * 3
    assert np.isfinite(runner.message_hub.get_scalar('train/loss').current())
    saved = torch.load(tmp_path / 'w/epoch_2.pth', weights_only=False)['state_dict']
    assert 'backbone.blocks.1.pe_norm.weight' in saved and not any('_orig' in key for key in saved)
