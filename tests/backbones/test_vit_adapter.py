from collections import Counter

import pytest
import torch

from lape_mm.backbones import ViTAdapter
from lape_mm.backbones.sampling import (
    DeformableAttention,
    SampleRows,
    mmcv_cuda_op,
    sample,
    sample_grid,
)

TINY = dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8, deform_num_heads=4)


def tiny(**options):
    return ViTAdapter(**{'arch': TINY, 'img_size': 64, **options})


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


def test_detection_windows_leave_the_last_layer_of_each_interaction_global():
    with torch.device('meta'):
        model = ViTAdapter(variant='detection')
    assert [block.attn.window_size for block in model.blocks] == [14, 14, None] * 4


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


def test_deformable_attention_starts_as_a_ring_of_points():
    attention = DeformableAttention(dim=24, num_heads=4, levels=3, points=2)
    attention.init_weights()
    offsets = attention.sampling_offsets.bias.reshape(4, 3, 2, 2)
    expected = torch.tensor([[1., 0.], [0., 1.], [-1., 0.], [0., -1.]])
    for point in (1, 2):
        torch.testing.assert_close(offsets[:, 0, point - 1], point * expected, atol=1e-6, rtol=0)
    assert not attention.attention_weights.weight.any()


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


@pytest.mark.parametrize('variant', ['detection', 'segmentation'])
def test_levels_may_repeat_and_unread_ones_leave_no_parameters(variant):
    torch.manual_seed(0)
    whole, some = tiny(variant=variant), tiny(variant=variant, out_indices=(3, 1, 1))
    names = dict(some.named_parameters())
    lacking = {name.split('.')[0] for name, _ in whole.named_parameters() if name not in names}
    assert lacking == {'up', 'spm', 'norm1', 'norm3'}  # of the stem, fc1
    some.load_state_dict(whole.state_dict(), strict=False)
    image = torch.randn(2, 3, 64, 96)
    expected = whole(image)
    maps = some(image)
    for found, level in zip(maps, (3, 1, 1)):
        torch.testing.assert_close(found, expected[level])
    sum(one.square().sum() for one in maps).backward()
    assert all(parameter.grad is not None for parameter in some.parameters())


@pytest.mark.parametrize('levels', [(), (4,), (-1,), 2, (0, 1.5)])
def test_levels_outside_the_pyramid_are_refused(levels):
    with pytest.raises(ValueError, match='expected levels, each 0, 1, 2 or 3'):
        tiny(out_indices=levels)
