import pytest
import torch
import torch.nn.functional as F

from lape_mm.backbones import DeiT
from lape_mm.mmcv_ext import compiled
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=3, num_heads=3)
COUNTS = {  # the papers' counts, with a classifier of 1000 classes
    'tiny': (5_717_416, 5_722_024, 5_721_256, 5_721_640),
    'small': (22_050_664, 22_059_880, 22_058_344, 22_059_112),
    'base': (86_567_656, 86_586_088, 86_583_016, 86_584_552),
}
ALL = [*PRESETS, dict(first_layer=0, last=0), dict(last=0), dict(first_layer=1, last=2),
       dict(add_to_input=False, first_layer=1, last=0), dict(first_layer=1, hierarchical=False)]


def tiny(**options):
    return DeiT(**{'arch': TINY, 'img_size': 32, 'patch_size': 8, **options})


@pytest.mark.parametrize('arch', COUNTS)
@pytest.mark.parametrize('joining, index', [('default', 0), ('lape', 1), ('pvg', 2), ('mpvg', 3)])
def test_parameter_counts_are_the_papers(arch, joining, index):
    with torch.device('meta'):
        model = DeiT(arch=arch, joining=joining)
        head = torch.nn.Linear(model.embed_dim, 1000)
    count = sum(p.numel() for part in (model, head) for p in part.parameters())
    assert count == COUNTS[arch][index]


def reference(model, image, joining):
    """The whole of equations 1-11 for one model, written out without any of its methods."""
    state = {name: value.double() for name, value in model.state_dict().items()}
    layer_norm = lambda name, x: F.layer_norm(  # noqa: E731
        x, x.shape[-1:], state[f'{name}.weight'], state[f'{name}.bias'], model_eps)
    linear = lambda name, x: x @ state[f'{name}.weight'].T + state[f'{name}.bias']  # noqa: E731
    model_eps, dim, heads = 1e-6, TINY['embed_dim'], TINY['num_heads']
    x = F.conv2d(image.double(), state['patch_embed.proj.weight'],
                 state['patch_embed.proj.bias'], stride=8).flatten(2).transpose(1, 2)
    token = 'cls_token' in state
    if token:
        x = torch.cat([state['cls_token'].expand(len(x), -1, -1), x], dim=1)
    pos = state['pos_embed']
    if joining in ('default', 'pvg', 'mpvg'):
        x = x + pos                                                            # eq. 1, 8
    received = pos
    for layer in range(TINY['depth']):
        block = f'blocks.{layer}'
        y = layer_norm(f'{block}.norm1', x)
        if joining == 'lape' or joining in ('pvg', 'mpvg') and layer:          # eq. 6, 9
            received = layer_norm(f'{block}.pe_norm', received)                # eq. 7, 10
            y = y + received
        q, k, v = linear(f'{block}.attn.qkv', y).reshape(len(x), -1, 3, heads, dim // heads) \
            .permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (dim // heads) ** .5).softmax(-1)
        y = (weights @ v).transpose(1, 2).reshape(x.shape)
        x = x + linear(f'{block}.attn.proj', y)                                # eq. 2, 6, 9
        y = F.gelu(linear(f'{block}.mlp.fc1', layer_norm(f'{block}.norm2', x)))
        x = x + linear(f'{block}.mlp.fc2', y)                                  # eq. 3
    x = layer_norm('norm', x)                                                  # eq. 4
    if joining == 'mpvg':
        x = x + layer_norm('last_pe_norm', pos)                                # eq. 11
    return x[:, 0] if token else x.mean(1)


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
def test_outputs_follow_the_equations(joining):
    torch.manual_seed(0)
    model = tiny(joining=joining).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=.2)
    image = torch.randn(2, 3, 32, 32)
    expected = reference(model, image, joining)
    torch.testing.assert_close(model.double()(image.double())[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('joining', ALL, ids=str)
@pytest.mark.parametrize('out_indices', [None, (0, 2)])
def test_every_parameter_gets_a_finite_gradient(joining, out_indices):
    torch.manual_seed(0)
    model = tiny(joining=joining, out_indices=out_indices, drop_path_rate=.1)
    for parameter in model.parameters():  # a zero bias or query would hide a missing gradient
        torch.nn.init.normal_(parameter, std=.1)
    outputs = model(torch.randn(4, 3, 40, 24))
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
@pytest.mark.parametrize('size', [(32, 32), (24, 40), (33, 17), (8, 8)])
@pytest.mark.parametrize('position', ['learnable', 'sincos_1d', 'sincos_2d'])
def test_any_image_size(size, position):
    model = tiny(joining='mpvg', position=position, out_indices=(1, -1)).eval()
    maps = model(torch.randn(2, 3, *size))
    grid = tuple(-(-side // 8) for side in size)
    assert [tuple(m.shape) for m in maps] == [(2, 24, *grid)] * 2
    # mmcv's compiled operators count on it
    assert not compiled() or all(m.is_contiguous() for m in maps)


@torch.no_grad()
def test_padding_is_zeros_at_the_bottom_and_right():
    model = tiny(joining='lape').eval()
    image = torch.randn(1, 3, 29, 26)
    torch.testing.assert_close(model(image)[0], model(F.pad(image, (0, 6, 0, 3)))[0])


@torch.no_grad()
def test_a_non_square_table_is_its_own_grid():
    model = tiny(img_size=(32, 48), joining='pvg')
    assert model.pos_embed.shape == (1, 24, 24) and model.grid == (4, 6)
    assert model.plan((4, 6)).residual[0] is model.pos_embed or \
        torch.equal(model.plan((4, 6)).residual[0], model.pos_embed)


def test_the_plan_is_never_stale():
    model = tiny(joining='mpvg').eval()
    image = torch.randn(1, 3, 32, 32)
    before = model(image)[0].detach()
    model.pos_embed.data.mul_(3.)  # as mmengine's EMA writes, past every version counter
    assert not torch.allclose(before, model(image)[0])


def test_gradient_checkpointing_changes_nothing():
    image, gradients = torch.randn(2, 3, 32, 32), []
    model = tiny(joining='mpvg')
    for with_cp in (False, True):
        model.with_cp = with_cp
        model.zero_grad()
        model(image)[0].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients):
        torch.testing.assert_close(plain, recomputed)


def test_frozen_takes_no_gradient_and_stays_in_evaluation_mode():
    model = tiny(joining='mpvg', frozen=True, drop_path_rate=.5)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.train() is model and not model.blocks.training
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(image)[0], model(image)[0])


def test_layer_depth_knows_the_new_norms():
    model = tiny(joining='mpvg')
    depth = {name: model.get_layer_depth(f'backbone.{name}', 'backbone.')
             for name, _ in model.named_parameters()}
    assert depth['pos_embed'] == depth['patch_embed.proj.weight'] == (0, 5)
    assert depth['blocks.1.pe_norm.weight'] == depth['blocks.1.attn.qkv.weight'] == (2, 5)
    assert depth['last_pe_norm.bias'] == depth['norm.bias'] == (4, 5)
    assert tiny(joining='unshare').get_layer_depth('pos_embed2') == (0, 5)


@pytest.mark.parametrize('options, words', [
    (dict(arch='large'), ["'large'", 'tiny']),
    (dict(arch=dict(embed_dim=24, depth=3)), ["'num_heads'"]),
    (dict(arch=dict(TINY, width=3)), ['width=3', 'embed_dim']),
    (dict(arch=dict(embed_dim=25, depth=3, num_heads=3)), ['25', '3']),
    (dict(position='rope'), ["'rope'", 'sincos_2d']),
    (dict(interpolation='nearest'), ["'nearest'", 'bicubic']),
    (dict(drop_path_rate=1.), ['1.0']),
    (dict(out_indices=(0, 1)), ['(0, 1)', '0..2']),
    (dict(out_indices=(2, 2)), ['(2, 2)']),
    (dict(out_indices=(-4, 2)), ['(-4, 2)']),
    (dict(out_indices=()), ['()']),
    (dict(joining='mpvg', class_token=True), ['class_token']),
    (dict(init_cfg=dict(type='Constant')), ["'Constant'", "'Pretrained'"]),
    (dict(position='relative', joining='pvg'), ['add_to_input=True', "'default'", "'lape'"]),
    (dict(with_cp='adapter'), ["'adapter'", 'True']),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options).init_weights()
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize('joining', ['default', 'lape'])
def test_a_relative_bias_goes_the_joinings_way(joining):
    model = tiny(position='relative', joining=joining)
    assert model.joining == PRESETS[joining]
    norms = [block.attn.pe_norm for block in model.blocks]
    assert all((norm is not None) == (joining == 'lape') for norm in norms)
    plan = model.plan(model.grid)
    assert plan.residual == plan.pre_attn == (None,) * 3 and plan.post_norm is None
    assert all(bias.shape == (1, 3, 17, 17) for bias in plan.attn_bias)


def test_positional_arguments_are_refused():
    with pytest.raises(TypeError):
        DeiT('tiny')
