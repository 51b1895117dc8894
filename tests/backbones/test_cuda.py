"""Forward passes on fake CUDA tensors: nothing stays on the CPU, no operator gets two dtypes."""
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import DTYPES, fake_cuda, precision
from tiny_models import MODELS, build, flat, side_of

from lape_mm import fold
from lape_mm.backbones import sampling

CASES = [*((name, dict(joining=joining)) for name in MODELS for joining in ('lape', 'mpvg'))] + [
    *(('DeiT', dict(joining=joining)) for joining in ('default', 'unshare', 'pvg')),
    *(('DeiT', dict(joining=joining, position='relative')) for joining in ('default', 'lape')),
    ('DeiT', dict(joining='mpvg', out_indices=(0, 2))),
    ('DeiT', dict(joining='mpvg', with_cp=True)),
    ('Swin', dict(joining='mpvg', out_indices=(0, 1))),
    ('ViTAdapter', dict(joining='mpvg', variant='segmentation')),
    ('ViTAdapter', dict(joining='mpvg', windows=[2, None, None, None])),
]


def made(name, options):
    if name == 'ViTAdapter' and sampling.mmcv_cuda_op():
        pytest.skip("mmcv's compiled operator takes no fake tensors")
    return build(name, **options)


def run(model, side, dtype=torch.float32):
    outputs = flat(model(torch.randn(2, 3, *side, device='cuda', dtype=dtype)))
    assert all(output.is_cuda for output in outputs)
    return outputs


@pytest.mark.parametrize('name, options', CASES, ids=str)
def test_forward(name, options):
    model, side = made(name, options), side_of(name)
    other = (side, side) if options.get('position') == 'relative' else (side, 2 * side)
    with fake_cuda():
        model.to('cuda')
        for dtype, training in (('fp32', False), ('bf16', True), ('fp16', False)):
            with precision(model, DTYPES[dtype]), torch.set_grad_enabled(training):
                run(model.train(training), (side, side) if training else other)


@torch.no_grad()
@pytest.mark.parametrize('name', MODELS)
def test_folded_in_half_precision(name):
    side = (side_of(name),) * 2
    folded = fold(made(name, dict(joining='mpvg')), side)
    with fake_cuda():
        outputs = run(folded.to('cuda', torch.float16), side, torch.float16)
        assert all(output.dtype == torch.float16 for output in outputs)


@pytest.fixture
def mmcv_for(monkeypatch):
    """Puts an mmcv in place that is compiled for a version of CUDA; gives its operator's calls."""
    def put(cuda):
        calls = []

        def apply(value, *rest):
            calls.append(rest)
            return value.new_zeros(len(value), rest[2].shape[1], value[0, 0].numel())
        operator = SimpleNamespace(apply=apply)
        for name, content in (
                ('mmcv.ops', dict(get_compiling_cuda_version=lambda: cuda)),
                ('mmcv.ops.multi_scale_deform_attn',
                 dict(MultiScaleDeformableAttnFunction=operator))):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content) if cuda else None)
        return calls
    sampling.mmcv_cuda_op.cache_clear()
    yield put
    sampling.mmcv_cuda_op.cache_clear()


@pytest.mark.parametrize('cuda, dtype, batch, compiling, taken', [
    ('12.8', torch.float32, 2, False, 1),
    ('12.8', torch.float64, 2, False, 0),
    ('12.8', torch.float32, 0, False, 0),
    ('12.8', torch.float32, 2, True, 0),
    ('not available', torch.float32, 2, False, 0),  # for the CPU alone, or lape_mm.mmcv_ext
    (None, torch.float32, 2, False, 0)])  # no mmcv
def test_mmcvs_operator_is_taken_where_it_is_compiled_for_cuda(
        cuda, dtype, batch, compiling, taken, mmcv_for, monkeypatch):
    calls, shapes = mmcv_for(cuda), ((5, 7), (3, 4))
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: compiling)
    with fake_cuda():
        value, locations, weights = (
            torch.zeros(batch, *shape, device='cuda', dtype=dtype)
            for shape in ((47, 3, 8), (9, 3, 2, 4, 2), (9, 3, 2, 4)))
        output = sampling.sample(value, shapes, locations, weights)
        assert output.shape == (batch, 9, 24) and output.is_cuda and len(calls) == taken
        for sizes, starts, *_, step in calls:
            assert (sizes.shape, starts.shape, step) == ((2, 2), (2,), 2)
            assert sizes.is_cuda and sizes.is_contiguous() and starts.is_contiguous()
