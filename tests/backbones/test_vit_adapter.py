from collections import Counter

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lape_mm.backbones import ViTAdapter
from lape_mm.backbones.deformable import DeformableAttention
from lape_mm.backbones.sampling import SampleRows, mmcv_cuda_op, sample, sample_grid
from lape_mm.mmcv_ext import compiled
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8, deform_num_heads=4)


def tiny(**options):
    return ViTAdapter(**{'arch': TINY, 'img_size': 64, **options})


@pytest.mark.parametrize('variant', ['detection', 'segmentation'])
@pytest.mark.parametrize('joining, count', [
    ('default', 7_966_640), ('lape', 7_971_248), ('pvg', 7_970_672),
    ('mpvg', 7_970_672 + 384 + 384)])  # LaPE: 12 norms; PVG: 11, no slot; MPVG: two norms more
def test_parameter_counts(variant, joining, count):
    with torch.device('meta'):
        model = ViTAdapter(arch='tiny', variant=variant, joining=joining)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize('arch, count', [('small', 27_503_888), ('base', 99_495_392)])
def test_parameter_counts_of_the_larger_ones(arch, count):
    with torch.device('meta'):
        assert sum(p.numel() for p in ViTAdapter(arch=arch).parameters()) == count


@torch.no_grad()
@pytest.mark.parametrize('variant', ['detection', 'segmentation'])
@pytest.mark.parametrize('size', [(64, 64), (32, 96), (33, 70), (97, 31), (16, 16)])
def test_any_image_size(variant, size):
    model = tiny(variant=variant, joining='mpvg').eval()
    maps = model(torch.randn(2, 3, *size))
    assert [tuple(m.shape) for m in maps] == [
        (2, 24, -(-size[0] // stride), -(-size[1] // stride)) for stride in (4, 8, 16, 32)]
    # mmcv's compiled operators count on it
    assert not compiled() or all(m.is_contiguous() for m in maps)


@pytest.mark.parametrize('joining', [*PRESETS, dict(first_layer=0, last=0), dict(last=0)], ids=str)
@pytest.mark.parametrize('variant', ['detection', 'segmentation'])
@pytest.mark.parametrize('frozen', [False, True])
def test_every_trainable_parameter_gets_a_finite_gradient(joining, variant, frozen):
    torch.manual_seed(0)
    model = tiny(joining=joining, variant=variant, frozen=frozen, windows=[2, None, 2, None])
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=.1)
    outputs = model(torch.randn(2, 3, 64, 96))
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    vit = {name for name, _ in model.vit_parameters()}
    for name, parameter in model.named_parameters():
        if frozen and name in vit:
            assert not parameter.requires_grad and parameter.grad is None, name
        else:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


def test_table_keeps_the_official_slot_without_a_token():
    for joining, tokens in (('default', 17), ('lape', 17), ('pvg', 16), ('mpvg', 16)):
        model = tiny(joining=joining)
        assert model.pos_embed.shape[1] == tokens and model.cls_token is None
        assert model.plan((4, 4)).pre_attn[3] is None or \
            model.plan((4, 4)).pre_attn[3].shape == (1, 16, 24)


@torch.no_grad()
def test_last_norm_is_one_named_setting():
    names = {joining: {name.split('.')[0] for name, _ in tiny(joining=joining).named_parameters()}
             for joining in ('pvg', 'mpvg')}
    assert names['mpvg'] - names['pvg'] == {'norm', 'last_pe_norm'}
    without = tiny(joining='mpvg', last_norm=False)
    assert {name for name, _ in without.named_parameters()} == \
        {name for name, _ in tiny(joining='pvg').named_parameters()}
    # only the last ViT map sees it: the segmentation variant's first three levels do not change
    model = tiny(joining='mpvg', variant='segmentation').eval()
    image = torch.randn(1, 3, 64, 64)
    before = model(image)
    model.last_pe_norm.bias += 1
    changed = [not torch.equal(a, b) for a, b in zip(before, model(image))]
    assert changed == [False, False, False, True]


def test_gradient_checkpointing_changes_nothing():
    image, gradients = torch.randn(1, 3, 64, 64), []
    model = tiny(joining='mpvg', variant='segmentation').eval()
    for interaction in model.interactions:
        torch.nn.init.ones_(interaction.injector.gamma)
    for with_cp in (False, 'adapter', True):
        model.with_cp = with_cp
        model.zero_grad()
        sum(level.square().sum() for level in model(image)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for each in zip(*gradients):
        for recomputed in each[1:]:
            torch.testing.assert_close(each[0], recomputed, rtol=1e-4, atol=1e-4)


def test_detection_windows_leave_the_last_layer_of_each_interaction_global():
    with torch.device('meta'):
        model = ViTAdapter(variant='detection')
    assert [block.attn.window_size for block in model.blocks] == [14, 14, None] * 4


def plain_sampling(value, shapes, locations, weights):
    """Deformable attention one sample at a time, bilinear by hand."""
    batch, _, heads, dim = value.shape
    queries = locations.shape[1]
    out = value.new_zeros(batch, queries, heads, dim)
    start = 0
    for level, (height, width) in enumerate(shapes):
        cells = value[:, start:start + height * width].unflatten(1, (height, width))
        start += height * width
        for b, q, h, p in torch.cartesian_prod(*map(torch.arange, (
                batch, queries, heads, locations.shape[4]))).tolist():
            x, y = locations[b, q, h, level, p].tolist()
            x, y = x * width - .5, y * height - .5
            for row in (int(y // 1), int(y // 1) + 1):
                for column in (int(x // 1), int(x // 1) + 1):
                    if 0 <= row < height and 0 <= column < width:
                        share = (1 - abs(y - row)) * (1 - abs(x - column))
                        out[b, q, h] += weights[b, q, h, level, p] * share * cells[b, row, column,
                                                                                   h]
    return out.flatten(2)


def test_sampling_equals_one_written_out_by_hand():
    torch.manual_seed(0)
    shapes = ((3, 4), (2, 2))
    value = torch.randn(2, 16, 2, 3, dtype=torch.float64)
    locations = torch.rand(2, 5, 2, 2, 3, 2, dtype=torch.float64) * 1.6 - .3
    weights = torch.rand(2, 5, 2, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(sample_grid(value, shapes, locations, weights),
                               plain_sampling(value, shapes, locations, weights))


@pytest.mark.parametrize('wanted', [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize('shapes, batch, queries, heads', [
    (((5, 7), (3, 4), (2, 2)), 2, 9, 2), (((4, 3), (1, 1), (1, 6)), 1, 30, 3),
    (((1, 1),), 1, 1, 1)])
def test_rows_and_grid_agree_in_values_and_gradients(shapes, batch, queries, heads, wanted,
                                                     monkeypatch):
    monkeypatch.setattr(SampleRows, 'CHUNK', 200)  # several pieces, the last one smaller
    torch.manual_seed(0)
    cells, each = sum(h * w for h, w in shapes), (batch, queries, heads, len(shapes), 4)
    inputs = [torch.randn(batch, cells, heads, 3).double(),
              torch.rand(*each, 2).double() * 1.8 - .4, torch.rand(each).double()]
    inputs[1][0, 0, 0, 0] = torch.tensor([[.5, .5], [0., 1.], [-1e9, 2.], [1e6, .1]])
    before = [x.clone() for x in inputs]
    results = []
    for way in (sample_grid, SampleRows.apply):
        given = [x.clone().requires_grad_(place in wanted) for place, x in enumerate(inputs)]
        output = way(given[0], shapes, *given[1:])
        (output * torch.arange(output.numel()).sin().view_as(output)).sum().backward()
        results.append((output, *(given[place].grad for place in wanted)))
        assert all(x.equal(y) for x, y in zip(given, before))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_a_location_that_is_not_a_number_shows():
    value, weights = torch.randn(1, 12, 1, 3), torch.full((1, 2, 1, 1, 2), .5)
    locations = torch.rand(1, 2, 1, 1, 2, 2)
    locations[0, 1, 0, 0, 0, 0] = float('nan')
    output = SampleRows.apply(value, ((3, 4),), locations, weights)
    assert output[0, 0].isfinite().all() and output[0, 1].isnan().all()


@pytest.mark.parametrize('mode', [lambda: FakeTensorMode(allow_non_fake_inputs=True),
                                  torch.inference_mode], ids=['fake', 'inference'])
def test_no_tensor_of_a_mode_outlives_it(mode):
    model = tiny(joining='lape')
    with mode():
        model(torch.zeros(2, 3, 96, 32))
    maps = model(torch.zeros(2, 3, 96, 32))
    assert all(type(level) is torch.Tensor for level in maps)
    sum(level.sum() for level in maps).backward()


@pytest.mark.parametrize('with_cp, layers, adapter', [(False, 1, 1), ('adapter', 1, 2),
                                                      (True, 2, 2)])
def test_what_is_computed_again_is_what_with_cp_says(with_cp, layers, adapter):
    model, calls = tiny(joining='mpvg', with_cp=with_cp).train(), Counter()
    for name, module in model.named_modules():
        if name.endswith(('norm1', 'query_norm')) and '.' in name:
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    sum(level.square().sum() for level in model(torch.randn(1, 3, 64, 64))).backward()
    assert {name: count for name, count in calls.items()} == {
        name: adapter if 'query' in name else layers for name in calls}
    assert len(calls) == 4 + 4 + 6


def test_sampling_equals_mmcv():
    ops = pytest.importorskip('mmcv.ops.multi_scale_deform_attn', reason='mmcv is not installed')
    torch.manual_seed(0)
    shapes = ((8, 6), (4, 3), (2, 2))
    value = torch.randn(2, 64, 4, 8)
    locations, weights = torch.rand(2, 9, 4, 3, 4, 2), torch.rand(2, 9, 4, 3, 4)
    theirs = ops.multi_scale_deformable_attn_pytorch(value, torch.tensor(shapes), locations,
                                                     weights)
    torch.testing.assert_close(sample(value, shapes, locations, weights), theirs, rtol=0,
                               atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='the CUDA op needs a GPU')
@pytest.mark.parametrize('batch', [1, 3, 70])
def test_the_cuda_op_equals_the_pytorch_path(batch):
    if mmcv_cuda_op() is None:
        pytest.skip('mmcv is not compiled for CUDA')
    shapes = ((8, 6), (4, 3))
    value = torch.randn(batch, 60, 4, 8, device='cuda')
    locations = torch.rand(batch, 9, 4, 2, 4, 2, device='cuda')
    weights = torch.rand(batch, 9, 4, 2, 4, device='cuda')
    torch.testing.assert_close(sample(value, shapes, locations, weights),
                               sample_grid(value, shapes, locations, weights), rtol=0, atol=1e-5)


@torch.no_grad()
def test_bf16_autocast_stays_close():
    torch.manual_seed(0)
    model = tiny(joining='mpvg').eval()
    image = torch.randn(1, 3, 64, 64)
    exact = model(image)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        rough = model(image)
    for a, b in zip(exact, rough):
        assert (a - b.float()).abs().mean() < .02 * a.abs().mean()


def test_deformable_attention_starts_as_a_ring_of_points():
    attention = DeformableAttention(dim=24, num_heads=4, levels=3, points=2)
    attention.init_weights()
    offsets = attention.sampling_offsets.bias.reshape(4, 3, 2, 2)
    expected = torch.tensor([[1., 0.], [0., 1.], [-1., 0.], [0., -1.]])
    for point in (1, 2):
        torch.testing.assert_close(offsets[:, 0, point - 1], point * expected, atol=1e-6, rtol=0)
    assert not attention.attention_weights.weight.any()


@pytest.mark.parametrize('options, words', [
    (dict(variant='det'), ["'det'", 'detection']),
    (dict(windows=[2, None]), ['[2, None]', '4 entries']),
    (dict(interaction_indexes=[(0, 1), (3, 3)]), ['(3, 3)', '0..3']),
    (dict(interaction_indexes=[(0, 1), (2, 3)], variant='segmentation'), ['four']),
    (dict(arch=dict(TINY, depth=6)), ['depth=6', 'interaction_indexes']),
    (dict(arch=dict(TINY, deform_num_heads=5)), ['5', '24']),
    (dict(arch='huge'), ["'huge'", 'tiny']),
    (dict(with_cp='all'), ["'all'", "'adapter'"]),
    (dict(joining='pvg', class_token=True), ["'pvg'"]),
    (dict(joining=dict(add_to_input=False, last=0), last_norm=False), ['nowhere']),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_batch_norm_where_sync_batch_norm_cannot_run(tmp_path):
    import torch.distributed as dist
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        with pytest.raises((RuntimeError, ValueError)):
            torch.nn.SyncBatchNorm(3)(torch.randn(2, 3, 4, 4))
        model = tiny(joining='lape').train()
        assert all(level.isfinite().all() for level in model(torch.randn(2, 3, 64, 64)))
        assert model.norm1.num_batches_tracked == 1
    finally:
        dist.destroy_process_group()
