import pytest
import torch
import torch.nn.functional as F

from lape_mm.backbones import Swin
from lape_mm.checkpoints import load_backbone
from lape_mm.mmcv_ext import compiled
from lape_mm.position import PRESETS

TINY = dict(embed_dim=8, depths=(2, 1, 2, 2), num_heads=(1, 2, 2, 4), window_size=3, mlp_ratio=2.)
NAMES = [name for name in PRESETS if name != 'unshare']
ALL = [*NAMES, dict(first_layer=1, last=0), dict(last=0), dict(first_layer=1, last=2),
       dict(add_to_input=False, first_layer=1, last=0), dict(first_layer=1, hierarchical=False),
       dict(add_to_input=False, first_layer=0, norm='norm_scalar')]


def tiny(**options):
    """Grids of 10, 5, 3 and 2 tokens a side for the images that the table is made for."""
    return Swin(**{'arch': TINY, 'img_size': 40, **options})


def randomise(model, std=.3):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * std)
    return model


@pytest.mark.parametrize('options, expected', [  # the papers' counts, with 1000 classes
    (dict(joining='default'), 28_589_410), (dict(joining='lape'), 28_598_242),
    (dict(joining='pvg'), 28_598_242), (dict(joining='mpvg'), 28_599_778),
    (dict(position=None), 28_288_354), (dict(arch='small', position=None), 49_606_258),
    (dict(arch='base', position=None), 87_768_224)])
def test_parameter_counts(options, expected):
    with torch.device('meta'):
        model = Swin(**options)
        head = torch.nn.Linear(model.norm.weight.numel(), 1000)
    assert sum(p.numel() for part in (model, head) for p in part.parameters()) == expected


def dense_attention(state, name, y, heads, window, shifted):
    """Attention within windows as one over all tokens of the padded map, and a mask."""
    size = y.shape[1:3]
    shift = [window // 2 if shifted and extent > window else 0 for extent in size]
    y = F.pad(y, (0, 0, 0, -size[1] % window, 0, -size[0] % window))
    padded = y.shape[1:3]
    qkv = y.flatten(1, 2) @ state[f'{name}.qkv.weight'].T + state[f'{name}.qkv.bias']
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    places = torch.cartesian_prod(*map(torch.arange, padded))
    moved = torch.stack([(places[:, axis] - shift[axis]) % padded[axis] for axis in (0, 1)], 1)
    came_round = moved > places
    near = (moved[:, None] // window == moved // window) & (came_round[:, None] == came_round)
    offset = (moved[:, None] - moved + window - 1).clamp(0, 2 * window - 2)
    bias = state[f'{name}.relative_position_bias_table'][
        offset[..., 0] * (2 * window - 1) + offset[..., 1]].permute(2, 0, 1)
    weights = q @ k.transpose(-2, -1) / q.shape[-1] ** .5 + bias
    weights = weights.masked_fill(~near.all(-1), -torch.inf).softmax(-1)
    y = (weights @ v).transpose(1, 2).flatten(2).unflatten(1, padded)
    return (y @ state[f'{name}.proj.weight'].T
            + state[f'{name}.proj.bias'])[:, :size[0], :size[1]]


def reference(model, image, joining):
    """Swin with PE by the equations, without any of the model's methods: pooled, and the maps."""
    state = {name: value.double() for name, value in model.state_dict().items()}
    layer_norm = lambda name, x: F.layer_norm(  # noqa: E731
        x, x.shape[-1:], state[f'{name}.weight'], state[f'{name}.bias'], 1e-5)
    linear = lambda name, x: x @ state[f'{name}.weight'].T + state[f'{name}.bias']  # noqa: E731

    def merge(name, x):
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
        return layer_norm(f'{name}.norm', x) @ state[f'{name}.reduction.weight'].T

    image = F.pad(image.double(), (0, -image.shape[3] % 4, 0, -image.shape[2] % 4))
    x = F.conv2d(image, state['patch_embed.proj.weight'], state['patch_embed.proj.bias'], stride=4)
    grid = x.shape[2:]
    x = layer_norm('patch_embed.norm', x.permute(0, 2, 3, 1))
    pos = state['pos_embed'].unflatten(1, (10, 10)).permute(0, 3, 1, 2)
    if grid != pos.shape[2:]:
        pos = F.interpolate(pos, size=grid, mode='bicubic', align_corners=False)
    pos = received = pos.permute(0, 2, 3, 1)
    if joining != 'lape':
        x = x + pos
    maps = []
    for stage, (depth, heads) in enumerate(zip(TINY['depths'], TINY['num_heads'])):
        window = min(3, (10, 5, 3, 2)[stage])
        for index in range(depth):
            block = f'layers.{stage}.blocks.{index}'
            if joining == 'share' and (stage or index):
                x = x + pos
            y = layer_norm(f'{block}.norm1', x)
            if joining in ('lape', 'pvg', 'mpvg'):
                received = layer_norm(f'{block}.pe_norm', received)
                y = y + received
            x = x + dense_attention(state, f'{block}.attn', y, heads, window, index % 2)
            y = F.gelu(linear(f'{block}.mlp.fc1', layer_norm(f'{block}.norm2', x)))
            x = x + linear(f'{block}.mlp.fc2', y)
        if stage < 3:
            maps.append(layer_norm(f'norm{stage}', x))
            x, pos, received = (merge(f'layers.{stage}.downsample', each)
                                for each in (x, pos, received))
    x = layer_norm('norm', x)
    if joining == 'mpvg':
        x = x + layer_norm('last_pe_norm', pos)
    return x.mean((1, 2)), [each.permute(0, 3, 1, 2) for each in (*maps, x)]


@torch.no_grad()
@pytest.mark.parametrize('size', [(40, 40), (33, 50), (8, 5)], ids=str)
@pytest.mark.parametrize('joining', NAMES)
def test_outputs_follow_the_equations(joining, size):
    model = randomise(tiny(joining=joining, out_indices=(0, 1, 2, 3))).eval()
    image = torch.randn(2, 3, *size)
    pooled, maps = reference(model, image, joining)
    model.double()
    for ours, theirs in zip(model(image.double()), maps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    model.out_indices = ()
    torch.testing.assert_close(model(image.double())[0], pooled, rtol=0, atol=1e-10)


@torch.no_grad()
def test_position_crosses_through_the_merging_of_the_tokens():
    model = randomise(tiny(joining='mpvg'))
    plan = model.plan((5, 7))
    assert [tuple(entry.shape) for entry in plan.pre_attn] == [
        (1, 35, 8)] * 2 + [(1, 12, 16)] + [(1, 4, 32)] * 2 + [(1, 1, 64)] * 2
    # by hand from layer 1 to layer 2: the order of the neighbours, and the zeros beyond the map
    before = F.pad(plan.pre_attn[1].unflatten(1, (5, 7)), (0, 0, 0, 1, 0, 1))[0]
    first = torch.cat([before[4, 6], before[5, 6], before[4, 7], before[5, 7]])
    assert not first[8:].any()
    merging, block = model.layers[0].downsample, model.layers[1].blocks[0]
    expected = block.pe_norm(merging.reduction(merging.norm(first)))
    torch.testing.assert_close(plan.pre_attn[2][0, -1], expected)


@pytest.mark.parametrize('joining', ALL, ids=str)
@pytest.mark.parametrize('out_indices', [None, (0, 1, 2, 3), (1, 3)])
def test_every_parameter_gets_a_finite_gradient(joining, out_indices):
    model = randomise(tiny(joining=joining, out_indices=out_indices, drop_path_rate=.1), .1)
    outputs = model(torch.randn(4, 3, 44, 68))
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_without_a_table():
    model = randomise(tiny(position=None))
    assert not [name for name in model.state_dict() if 'pos_embed' in name]
    model(torch.randn(2, 3, 44, 36))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize('size', [(40, 40), (24, 90), (33, 17), (8, 8), (4, 5)], ids=str)
@pytest.mark.parametrize('position', ['learnable', 'sincos_1d', 'sincos_2d', None])
def test_any_image_size(size, position):
    model = tiny(joining='mpvg' if position else 'default', position=position,
                 out_indices=(0, 2, -1)).eval()
    maps = model(torch.randn(2, 3, *size))
    assert [tuple(m.shape) for m in maps] == [
        (2, 8 * 2 ** stage, *(-(-side // (4 * 2 ** stage)) for side in size))
        for stage in (0, 2, 3)]
    # mmcv's compiled operators count on it
    assert not compiled() or all(m.is_contiguous() for m in maps)


@torch.no_grad()
def test_windows_are_no_larger_than_the_map_they_are_made_for():
    model = tiny(img_size=(40, 24))
    assert model.grid == (10, 6) and model.pos_embed.shape == (1, 60, 8)
    windows = [block.attn.window_size for block in model.layers_in_order()]
    assert windows == [(3, 3)] * 3 + [(3, 2)] * 2 + [(2, 1)] * 2
    tables = [len(block.attn.relative_position_bias_table) for block in model.layers_in_order()]
    assert tables == [25] * 3 + [15] * 2 + [3] * 2
    assert model.eval()(torch.randn(1, 3, 52, 52))[0].isfinite().all()


@pytest.mark.parametrize('joining', ['default', 'mpvg'])
def test_bfloat16_autocast(joining):
    model = randomise(tiny(joining=joining, out_indices=(0, 1, 2, 3)), .1)
    image = torch.randn(2, 3, 44, 36)
    with torch.autocast('cpu', torch.bfloat16):
        maps = model(image)
    sum(m.float().square().mean() for m in maps).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    for ours, exact in zip(maps, model(image)):
        assert (ours.float() - exact).abs().mean() < .05 * exact.abs().mean()


def test_the_plan_is_never_stale():
    model = randomise(tiny(joining='lape')).eval()
    image = torch.randn(1, 3, 40, 40)
    before = model(image)[0].detach()
    model(torch.randn(1, 3, 64, 24))
    torch.testing.assert_close(model(image)[0], before)  # no mask of another size is left over
    model.pos_embed.data.mul_(torch.rand_like(model.pos_embed))
    assert not torch.allclose(before, model(image)[0])


def test_gradient_checkpointing_changes_nothing():
    image, gradients = torch.randn(2, 3, 40, 52), []
    model = tiny(joining='mpvg', out_indices=(1, 3))
    for with_cp in (False, True):
        model.with_cp = with_cp
        model.zero_grad()
        sum(m.square().sum() for m in model(image)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients):
        torch.testing.assert_close(plain, recomputed)


def test_frozen_takes_no_gradient_and_stays_in_evaluation_mode():
    model = tiny(joining='mpvg', frozen=True, drop_path_rate=.5, out_indices=(1, 3))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.train() is model and not model.layers.training
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(image)[1], model(image)[1])


def test_layer_depth_and_weight_decay():
    model = tiny(joining='mpvg', out_indices=(0, 3))
    depth = {name: model.get_layer_depth(f'backbone.{name}', 'backbone.')
             for name, _ in model.named_parameters()}
    assert depth['pos_embed'] == depth['patch_embed.norm.weight'] == (0, 9)
    assert depth['layers.0.blocks.0.norm1.weight'] == (1, 9)
    assert depth['layers.0.blocks.1.pe_norm.weight'] == (2, 9)
    assert depth['layers.0.downsample.reduction.weight'] == (2, 9)
    assert depth['layers.1.downsample.norm.weight'] == (3, 9)
    assert depth['layers.1.blocks.0.norm2.bias'] == (3, 9)
    assert depth['layers.3.blocks.1.attn.relative_position_bias_table'] == (7, 9)
    assert depth['last_pe_norm.bias'] == depth['norm.bias'] == depth['norm0.bias'] == (8, 9)
    exempt = model.no_weight_decay()
    assert exempt <= set(depth) and len(exempt) == 1 + 7 and 'pos_embed' in exempt
    assert 'layers.2.blocks.1.attn.relative_position_bias_table' in exempt


@pytest.mark.parametrize('table', ['absolute_pos_embed', 'pos_embed', None])
def test_checkpoints_official_and_own(tmp_path, table):
    options = {} if table else dict(position=None)
    source = randomise(tiny(**options))
    state = {{'pos_embed': table}.get(name, name): value
             for name, value in source.state_dict().items()}
    index = source.layers[0].blocks[0].attn.relative_position_index
    state['layers.0.blocks.0.attn.relative_position_index'] = index
    state['layers.0.blocks.1.attn_mask'] = torch.zeros(16, 9, 9)
    torch.save({'model': state}, tmp_path / 'swin.pth')
    model = tiny(out_indices=(1, 3), img_size=40, **options)
    report = load_backbone(model, str(tmp_path / 'swin.pth'), min_share=1.)
    assert set(report.new) == {'norm1.weight', 'norm1.bias'} and not report.missing
    assert not report.unused and not report.resized
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize('options, words', [
    (dict(arch='large'), ["'large'", 'tiny']),
    (dict(arch=dict(embed_dim=8, depths=(1, 1))), ["'num_heads'"]),
    (dict(arch=dict(TINY, width=3)), ['width=3', 'embed_dim']),
    (dict(arch=dict(TINY, num_heads=(1, 2))), ['depths', 'num_heads', '(1, 2)']),
    (dict(arch=dict(TINY, num_heads=2)), ['num_heads=2', 'each stage']),
    (dict(arch=dict(TINY, depths=(2, 0, 2, 2))), ['depths=0', 'at least 1']),
    (dict(arch=dict(TINY, window_size=0)), ['window_size=0']),
    (dict(arch=dict(TINY, num_heads=(3, 2, 2, 4))), ['8', '3']),
    (dict(joining='unshare'), ["'unshare'", "'share'", "'mpvg'"]),
    (dict(joining='none'), ["'none'", "'mpvg'"]),
    (dict(joining='lape', position=None), ["'lape'", "'default'", "'learnable'"]),
    (dict(joining='share', position=None), ["'share'", "'default'"]),
    (dict(position='relative'), ["'relative'", 'sincos_2d']),
    (dict(interpolation='nearest'), ["'nearest'", 'bicubic']),
    (dict(drop_path_rate=1.), ['1.0']),
    (dict(out_indices=(0, 1)), ['(0, 1)', '0..3']),
    (dict(out_indices=(3, 3)), ['(3, 3)']),
    (dict(out_indices=(-5, 3)), ['(-5, 3)']),
    (dict(out_indices=()), ['()']),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options)
    assert all(word in str(error.value) for word in words), error.value
