"""Images of any size, batch, memory layout and precision; what is no image is refused.

The long part tries 200 sizes:  pytest -m long tests/reliability/test_inputs.py
"""
import random
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from lape_mm.backbones import CeiT, CompactTransformer, DeiT, Swin, T2TViT, ViTAdapter, fold

JOININGS = ('default', 'lape', 'pvg', 'mpvg')
SMALL = dict(embed_dim=24, depth=4, num_heads=3)
ADAPTER = dict(SMALL, conv_inplane=8, deform_num_heads=3)
STAGES = dict(embed_dim=8, depths=(2, 2, 2, 2), num_heads=(1, 1, 2, 2))
IN_TWO = dict(interaction_indexes=[(0, 1), (2, 3)])

DENSE = {  # class, arguments, strides of the maps, to multiples of which sides are padded
    'detection, windows': (ViTAdapter, dict(
        arch=ADAPTER, img_size=64, windows=[14, None, 5, None], **IN_TWO), (4, 8, 16, 32), 32),
    'detection, global': (ViTAdapter, dict(
        arch=ADAPTER, img_size=64, windows=[None] * 4, **IN_TWO), (4, 8, 16, 32), 32),
    'segmentation, global': (ViTAdapter, dict(
        arch=ADAPTER, img_size=64, variant='segmentation'), (4, 8, 16, 32), 32),
    'segmentation, windows': (ViTAdapter, dict(
        arch=ADAPTER, img_size=64, variant='segmentation', windows=[7, None, 7, None]),
        (4, 8, 16, 32), 32),
    'DeiT': (DeiT, dict(arch=SMALL, img_size=(48, 80), out_indices=(1, 3)), (16, 16), 16),
    'DeiT, patches of 8': (DeiT, dict(arch=SMALL, img_size=64, patch_size=8, out_indices=(3,),
                                      position='sincos_2d'), (8,), 8),
    'Swin': (Swin, dict(arch=STAGES, img_size=56, out_indices=(0, 1, 2, 3)), (4, 8, 16, 32), 4),
}
# with patches of half the side there are four times the tokens, and sixteen times the attention
MOST_TOKENS = 95 * 95


def sizes_to_try(count):
    """(h, w) from one patch to 1500 pixels: the corners first, then at random, small ones more."""
    rng = random.Random(0)
    sizes = [(16, 16), (17, 31), (1500, 16), (16, 1500), (33, 47), (224, 224), (97, 640),
             (479, 31), (640, 97), (18, 333), (128, 256), (255, 257), (1500, 1500), (1499, 1001),
             (801, 1333), (1333, 800), (1023, 1025), (1500, 33), (19, 1499), (512, 2 ** 10)]
    while len(sizes) < count:
        sizes.append(tuple(round(16 * (1500 / 16) ** rng.random()) for _ in range(2)))
    return sizes


SIZES = sizes_to_try(200)
QUICK = 12


@cache
def dense(name, joining):
    torch.manual_seed(0)
    kind, arguments, *_ = DENSE[name]
    model = kind(joining=joining, **arguments).eval()
    for parameter in model.parameters():  # injectors start at 0, which would hide all beyond them
        torch.nn.init.normal_(parameter, std=.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize('number, size', [
    pytest.param(number, size, id=f'{size[0]}x{size[1]}',
                 marks=[pytest.mark.long] if number >= QUICK else [])
    for number, size in enumerate(SIZES)])
def test_sizes(number, size):
    height, width = size
    for which, (name, (_, _, strides, multiple)) in enumerate(DENSE.items()):
        if -(-height // multiple) * -(-width // multiple) > MOST_TOKENS and name != 'Swin':
            continue
        # each joining meets each backbone, in another place of the list
        model = dense(name, JOININGS[(number + which) % len(JOININGS)])
        image = torch.rand(1, 3, height, width)
        maps = model(image)
        assert len(maps) == len(strides)
        for found, stride in zip(maps, strides):
            assert found.shape[2:] == (-(-height // stride), -(-width // stride)), (name, stride)
            assert found.isfinite().all(), (name, stride)
        if number >= QUICK or height * width > 2 ** 17:
            continue
        # what is padded is zeros at the bottom and right, and cut off again
        padded = model(F.pad(image, (0, -width % multiple, 0, -height % multiple)))
        for found, whole in zip(maps, padded):
            torch.testing.assert_close(found, whole[..., :found.shape[2], :found.shape[3]],
                                       msg=lambda text, name=name: f'{name}: {text}')


EVERY = {  # class, arguments, size of an image, side of a patch
    'DeiT': (DeiT, dict(arch=SMALL, img_size=32), (48, 32), 16),
    'DeiT maps': (DeiT, dict(arch=SMALL, img_size=32, out_indices=(0, 3)), (48, 40), 16),
    'DeiT relative': (DeiT, dict(arch=SMALL, img_size=32, position='relative'), (32, 32), 16),
    'DeiT distilled': (DeiT, dict(arch=SMALL, img_size=32, distilled=True), (48, 32), 16),
    'ViTAdapter detection': (ViTAdapter, dict(
        arch=ADAPTER, img_size=32, windows=[2, None, 3, None], **IN_TWO), (70, 50), 16),
    'ViTAdapter segmentation': (ViTAdapter, dict(
        arch=ADAPTER, img_size=32, variant='segmentation'), (70, 50), 16),
    'Swin': (Swin, dict(arch=STAGES, img_size=32), (40, 36), 4),
    'Swin maps': (Swin, dict(arch=STAGES, img_size=32, out_indices=(0, 3)), (40, 36), 4),
    'CeiT': (CeiT, dict(arch=SMALL, img_size=32), (48, 32), 16),
    'T2TViT performer': (T2TViT, dict(arch=dict(SMALL, token_dim=16), img_size=32), (48, 36), 16),
    'T2TViT transformer': (T2TViT, dict(arch=dict(SMALL, token_dim=16), img_size=32,
                                        tokens='transformer'), (48, 36), 16),
    'ViT-Lite': (CompactTransformer, dict(arch=SMALL, img_size=16), (18, 24), 4),
    'CVT': (CompactTransformer, dict(arch=dict(SMALL, pool='sequence'), img_size=16), (18, 24), 4),
    'CCT': (CompactTransformer, dict(arch=dict(SMALL, kernel_size=3, conv_layers=2,
                                               pool='sequence'), img_size=16), (18, 24), 4),
}


def build(name, joining='default'):
    torch.manual_seed(0)
    kind, arguments, *_ = EVERY[name]
    if arguments.get('position') == 'relative' and joining == 'mpvg':
        joining = 'lape'
    model = kind(joining=joining, **arguments)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=.1)
    return model


def flat(outputs):
    """Maps, a vector, or a distilled model's pair of vectors, one after the other."""
    return [part for output in outputs
            for part in (output if isinstance(output, tuple) else (output,))]


def layouts(image):
    """The same numbers in other strides."""
    batch, _, height, width = image.shape
    wide = torch.zeros(batch, 5, 2 * height, width + 7)
    wide[:, 1:4, ::2, 3:-4] = image
    return {
        'a slice': wide[:, 1:4, ::2, 3:-4],
        'from NHWC': image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        'channels_last': image.contiguous(memory_format=torch.channels_last),
        'from NCWH': image.transpose(2, 3).contiguous().transpose(2, 3),
        'batch innermost': image.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    }


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'mpvg'])
@pytest.mark.parametrize('name', EVERY)
def test_layouts_and_precision(name, joining):
    model, (height, width) = build(name, joining).eval(), EVERY[name][2]
    image = torch.randn(3, 3, height, width)
    expected = flat(model(image))
    for layout, same in layouts(image).items():
        before = same.clone()
        assert not same.is_contiguous() and torch.equal(same, image)
        for found, wanted in zip(flat(model(same)), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4,
                                       msg=lambda text, layout=layout: f'{layout}: {text}')
        assert torch.equal(same, before), f'{layout}: the image itself was changed'
    # one image all along, which has no memory of its own for the others
    for found, wanted in zip(flat(model(image[:1].expand(3, -1, -1, -1))), expected):
        torch.testing.assert_close(found, wanted[:1].expand_as(found), rtol=1e-4, atol=1e-4)
    for found, wanted in zip(flat(model(image[:1])), expected):
        torch.testing.assert_close(found, wanted[:1], rtol=1e-4, atol=1e-4)
    for found, wanted in zip(flat(model.double()(image.double())), expected):
        assert found.dtype == torch.float64
        torch.testing.assert_close(found.float(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', EVERY)
def test_double_precision_learns(name):
    model, size = build(name, 'mpvg').double(), EVERY[name][2]
    sum(output.square().sum()
        for output in flat(model(torch.randn(2, 3, *size).double()))).backward()
    for part, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.dtype == torch.float64 and parameter.grad.isfinite().all(), part


@pytest.mark.parametrize('mode', ['evaluation', 'training', 'folded'])
@pytest.mark.parametrize('joining', ['default', 'mpvg'])
@pytest.mark.parametrize('name', EVERY)
def test_an_empty_batch(name, joining, mode):
    model, size = build(name, joining), EVERY[name][2]
    with torch.no_grad():
        expected = flat(model.eval()(torch.randn(1, 3, *size)))
    statistics = {key: value.clone() for key, value in model.named_buffers()}
    model = fold(model, size) if mode == 'folded' else model.train(mode == 'training')
    outputs = flat(model(torch.zeros(0, 3, *size)))
    assert [output.shape for output in outputs] == [(0, *one.shape[1:]) for one in expected]
    if mode != 'training':
        return
    sum(output.sum() for output in outputs).backward()
    for part, parameter in model.named_parameters():  # DDP waits for every one of them
        if parameter.requires_grad:
            assert parameter.grad is not None and not parameter.grad.any(), part
    for part, value in model.named_buffers():  # the mean of no image is no number
        assert part.endswith('num_batches_tracked') or torch.equal(value, statistics[part]), part


@pytest.mark.parametrize('image, said', [
    (torch.zeros(3, 48, 48), 'shape (3, 48, 48)'),
    (torch.zeros(1, 1, 3, 48, 48), 'shape (1, 1, 3, 48, 48)'),
    (torch.zeros(2, 1, 48, 48), 'shape (2, 1, 48, 48)'),
    (torch.zeros(2, 4, 48, 48), 'shape (2, 4, 48, 48)'),
    (torch.zeros(2, 48, 48, 3), 'shape (2, 48, 48, 3)'),
    (torch.zeros(2, 3, 48, 48, dtype=torch.uint8), 'torch.uint8'),
    (torch.zeros(2, 3, 48, 48, dtype=torch.int64), 'torch.int64'),
    (torch.zeros(2, 3, 48, 48, dtype=torch.bool), 'torch.bool')],
    ids=lambda value: value if isinstance(value, str) else '')
@pytest.mark.parametrize('name', EVERY)
def test_what_is_no_batch_of_images(name, image, said):
    for model in (build(name).eval(), build(name).train()):
        with pytest.raises(ValueError) as error:
            model(image)
        assert said in str(error.value) and '(B, 3, H, W)' in str(error.value)


@pytest.mark.parametrize('name', EVERY)
def test_smaller_than_a_patch(name):
    model, patch = build(name).eval(), EVERY[name][3]
    for size in ((patch - 1, 3 * patch), (3 * patch, patch - 1), (1, 1), (0, 64), (64, 0), (0, 0)):
        with pytest.raises(ValueError) as error:
            model(torch.zeros(2, 3, *size))
        assert f'{size[0]} x {size[1]}' in str(error.value)
        assert f'{patch} x {patch}, the size of a patch' in str(error.value)
    if 'relative' not in name:
        with torch.no_grad():
            assert all(output.isfinite().all()
                       for output in flat(model(torch.randn(2, 3, patch, patch))))
    kind, arguments, *_ = EVERY[name]
    own = kind.__name__ in ('DeiT', 'ViTAdapter')  # None is the arch's own size
    for side in (patch - 1, 0, -32, (patch, patch - 1), (64, 64, 64), '32', 32.5,
                 *([] if own else [None])):
        with pytest.raises(ValueError, match='img_size=.*of a patch'):
            kind(**dict(arguments, img_size=side))
