"""On a CUDA device: the outputs of the CPU in every precision, compiled too, and the goldens.

Skipped where there is none; tests/backbones/test_cuda.py runs on fake CUDA tensors instead.
"""
import copy
from pathlib import Path

import pytest
import torch
from test_goldens import CASES, runner_of, tolerance
from tiny_models import MODELS, build, flat, gap, side_of
from torch.utils._pytree import tree_map_only

from lape_mm.checkpoints import read_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
PAIRS = [(name, joining) for name in MODELS for joining in ('default', 'lape', 'mpvg')]


@pytest.fixture(autouse=True)
def exact():
    """Products in float32; convolutions are in TF32 by default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.compiler.reset()
    yield
    torch.backends.cudnn.allow_tf32 = before


def pair(name, joining):
    torch.manual_seed(0)
    model = build(name, joining).eval()
    side = side_of(name)
    return model, copy.deepcopy(model).cuda(), torch.randn(2, 3, side, side)


def gradients(model, outputs):
    sum(output.float().square().mean() for output in flat(outputs)).backward()
    return {name: value.grad.cpu() for name, value in model.named_parameters()
            if value.grad is not None}


def assert_same(model, ours, expected, outputs):
    """Outputs, and gradients relative to the largest."""
    assert gap([part.cpu() for part in flat(outputs)], expected) <= 1e-4
    theirs, found = gradients(model, expected), gradients(ours, outputs)
    scale = max(value.abs().max() for value in theirs.values())
    assert set(found) == set(theirs)
    for key, value in theirs.items():
        assert (found[key] - value).abs().max() <= 1e-3 * scale, key


@pytest.mark.parametrize('name, joining', PAIRS)
def test_outputs_and_gradients(name, joining):
    model, ours, image = pair(name, joining)
    assert_same(model, ours, model(image), ours(image.cuda()))


@pytest.mark.parametrize('dtype, atol', [(torch.bfloat16, .05), (torch.float16, .01)], ids=str)
@pytest.mark.parametrize('name, joining', PAIRS)
def test_half_precision(name, joining, dtype, atol):
    model, ours, image = pair(name, joining)
    expected = model(image)
    with torch.autocast('cuda', dtype):
        outputs = ours(image.cuda())
    assert gap([part.cpu() for part in flat(outputs)], expected) <= atol
    assert all(value.isfinite().all() for value in gradients(ours, outputs).values())


@pytest.mark.parametrize('name, joining', [
    *((name, 'mpvg') for name in ('DeiT', 'ViTAdapter', 'Swin', 'ViT-Lite')), ('DeiT', 'lape')])
def test_compiled(name, joining):
    model, ours, image = pair(name, joining)
    assert_same(model, ours, model(image), torch.compile(ours)(image.cuda()))


@torch.no_grad()
@pytest.mark.parametrize('path', CASES, ids=lambda path: path.stem)
def test_golden(path, tmp_path):
    case = tree_map_only(torch.Tensor, torch.Tensor.cuda, read_checkpoint(path))
    expected = case['output'] if isinstance(case['output'], (list, tuple)) else [case['output']]
    with torch.device('cuda'):
        output = runner_of(path.stem)(case, tmp_path, expected[0].dtype)
    output = output if isinstance(output, (list, tuple)) else [output]
    # the GPU sums in another order
    atol = max(tolerance(path.stem, expected[0].dtype), 1e-9) * 5
    for ours, theirs in zip(output, expected, strict=True):
        assert ours.is_cuda
        torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize('number', range(33))
def test_recorded_operators(number):
    ops = pytest.importorskip('mmcv.ops')
    cases = torch.load(Path(__file__).parent / 'data/mmcv_ops.pt', weights_only=True)['cases']
    case = tree_map_only(torch.Tensor, torch.Tensor.cuda, cases[number])
    outputs = ('dets', 'inds', 'output', 'grad_output', 'grad_input')
    given = {name: value for name, value in case.items() if name not in (*outputs, 'op', 'note')}
    if case['op'] == 'batched_nms':
        given['nms_cfg'] = dict(type='nms', iou_threshold=given.pop('iou_threshold'))
    operator = getattr(ops, case['op'])
    found = operator(**given) if 'nms' in case['op'] else operator(*given.values())
    if 'dets' in case:
        if 'ties' in case.get('note', ''):  # a GPU sorts ties in another order
            return
        torch.testing.assert_close(found[0], case['dets'])
        assert torch.equal(found[1], case['inds'])
    else:
        torch.testing.assert_close(found, case['output'], atol=1e-4, rtol=1e-4)
