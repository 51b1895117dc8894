import pytest
import torch
import torch.nn.functional as F

from lape_mm.backbones import CompactTransformer
from lape_mm.position import PRESETS

SIZES = dict(embed_dim=24, depth=3, num_heads=3)
KINDS = {
    'vit_lite': dict(SIZES),
    'cvt': dict(SIZES, pool='sequence'),
    'cct': dict(SIZES, kernel_size=3, conv_layers=1, pool='sequence'),
    'cct_2': dict(SIZES, kernel_size=3, conv_layers=2, pool='sequence'),
    'cct_7x7': dict(SIZES, kernel_size=7, conv_layers=1, pool='sequence'),
}
PIXELS = dict(vit_lite=4, cvt=4, cct=2, cct_2=4, cct_7x7=4)  # of a token's side


def tiny(kind='vit_lite', **options):
    return CompactTransformer(**{'arch': KINDS[kind], 'img_size': 16, **options})


@pytest.mark.parametrize('arch, joining, count', [  # the papers' counts, with 100 classes
    ('vit_lite_7_4', 'default', 3_740_004), ('vit_lite_7_4', 'lape', 3_743_588),
    ('vit_lite_7_4', 'pvg', 3_742_564), ('vit_lite_7_4', 'mpvg', 3_743_076),
    ('cct_7_3x1', 'default', 3_783_269), ('cct_7_3x1', 'lape', 3_786_853),
    # ViT-Lite without class token and its slot (2 x 256), with the pooling's 256 + 1
    ('cvt_7_4', 'default', 3_740_004 - 512 + 257)])
def test_parameter_counts(arch, joining, count):
    with torch.device('meta'):
        model = CompactTransformer(arch=arch, joining=joining)
        head = torch.nn.Linear(model.embed_dim, 100)
    assert sum(p.numel() for part in (model, head) for p in part.parameters()) == count


def reference(state, image, joining, sequence):
    """Compact-Transformers with the equations of the MPVG paper, without any of its methods."""
    norm = lambda name, x: F.layer_norm(  # noqa: E731
        x, x.shape[-1:], state[f'{name}.weight'], state[f'{name}.bias'], 1e-5)
    linear = lambda name, x: F.linear(  # noqa: E731
        x, state[f'{name}.weight'], state.get(f'{name}.bias'))
    dim, heads = SIZES['embed_dim'], SIZES['num_heads']
    tokenizer = 'patch_embed.conv_layers.0.0'
    if f'{tokenizer}.bias' in state:
        x = F.conv2d(image, state[f'{tokenizer}.weight'], state[f'{tokenizer}.bias'], stride=4)
    else:
        x = F.conv2d(image, state[f'{tokenizer}.weight'], padding=1)
        x = F.max_pool2d(F.relu(x), kernel_size=3, stride=2, padding=1)
    x = x.flatten(2).transpose(1, 2)
    if 'cls_token' in state:
        x = torch.cat([state['cls_token'].expand(len(x), -1, -1), x], dim=1)
    pos = received = state['pos_embed']
    if joining != 'lape':
        x = x + pos
    for layer in range(SIZES['depth']):
        block = f'blocks.{layer}'
        y = norm(f'{block}.pre_norm', x)
        if joining == 'lape' or joining in ('pvg', 'mpvg') and layer:
            received = norm(f'{block}.pe_norm', received)
            y = y + received
        q, k, v = linear(f'{block}.self_attn.qkv', y).reshape(len(x), -1, 3, heads, dim // heads) \
            .permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (dim // heads) ** .5).softmax(-1)
        y = (weights @ v).transpose(1, 2).reshape(x.shape)
        x = x + linear(f'{block}.self_attn.proj', y)
        x = norm(f'{block}.norm1', x)  # no residual leads around it
        x = x + linear(f'{block}.linear2', F.gelu(linear(f'{block}.linear1', x)))
    x = norm('norm', x)
    if joining == 'mpvg':
        x = x + norm('last_pe_norm', pos)
    if sequence:
        weights = linear('attention_pool', x).exp()
        return (weights * x).sum(1) / weights.sum(1)
    return x[:, 0] if 'cls_token' in state else x.mean(1)


@torch.no_grad()
@pytest.mark.parametrize('kind', ['vit_lite', 'cvt', 'cct'])
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
def test_outputs_follow_the_equations(kind, joining):
    torch.manual_seed(0)
    model = tiny(kind, joining=joining).eval().double()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=.2)
    assert (model.cls_token is not None) == (kind == 'vit_lite' and joining in ('default', 'lape'))
    image = torch.randn(2, 3, 16, 16).double()
    expected = reference(model.state_dict(), image, joining, kind != 'vit_lite')
    torch.testing.assert_close(model(image)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize('kind', ['vit_lite', 'cvt', 'cct'])
@pytest.mark.parametrize('joining', [*PRESETS, dict(first_layer=0, last=0)], ids=str)
def test_every_parameter_gets_a_finite_gradient(kind, joining):
    torch.manual_seed(0)
    model = tiny(kind, joining=joining)
    for parameter in model.parameters():  # a zero bias or query would hide a missing gradient
        torch.nn.init.normal_(parameter, std=.1)
    output, = model(torch.randn(4, 3, 18, 11))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # a softmax over the tokens does not see what is added to all of them
        assert parameter.grad.abs().sum() > 0 or name == 'attention_pool.bias', name


@torch.no_grad()
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('position', ['learnable', 'sincos_1d', 'sincos_2d'])
def test_any_image_size(kind, position):
    model = tiny(kind, joining='mpvg', position=position).eval()
    for height, width in ((16, 16), (32, 32), (17, 30), (4, 5)):
        image = torch.randn(2, 3, height, width)
        grid = tuple(-(-side // PIXELS[kind]) for side in (height, width))
        assert tuple(model.patch_embed(model.pad_image(image)).shape[-2:]) == grid
        output, = model(image)
        assert output.shape == (2, 24) and output.isfinite().all()
    assert model.stride == PIXELS[kind] and model.grid == (16 // model.stride,) * 2


@torch.no_grad()
def test_patches_are_padded_at_the_bottom_and_right():
    model, image = tiny(joining='lape').eval(), torch.randn(1, 3, 14, 9)
    torch.testing.assert_close(model(image)[0], model(F.pad(image, (0, 3, 0, 2)))[0])


@pytest.mark.parametrize('kind', ['vit_lite', 'cct'])
def test_bfloat16_autocast(kind):
    torch.manual_seed(0)
    model, image = tiny(kind, joining='mpvg').eval(), torch.randn(2, 3, 16, 16)
    expected, = model(image)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        output, = model(image)
    assert output.isfinite().all()
    torch.testing.assert_close(output.float(), expected, rtol=.05, atol=.05)
    output.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_it_starts_as_the_official_code():
    torch.manual_seed(0)
    model = CompactTransformer(joining='default')
    assert model.cls_token.abs().sum() == 0
    assert model.pos_embed.std().item() == pytest.approx(.2, rel=.05)
    convolution = model.patch_embed.conv_layers[0][0].weight
    assert convolution.std().item() == pytest.approx((2 / 48) ** .5, rel=.05)  # kaiming, fan in
    assert model.blocks[0].linear1.weight.std().item() == pytest.approx(.02, rel=.05)
    assert model.blocks[0].self_attn.drop == .1
    assert model.drop_path_rates == pytest.approx([.1 * layer / 6 for layer in range(7)])


def test_attention_is_dropped_in_training_alone():
    model, image = tiny(drop_path_rate=0., attn_drop_rate=.5), torch.randn(2, 3, 16, 16)
    assert not torch.equal(model(image)[0], model(image)[0])
    assert torch.equal(model.eval()(image)[0], model(image)[0])


def test_frozen_covers_the_pooling():
    model = tiny('cct', joining='mpvg', frozen=True)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.train() is model and not model.blocks.training


def test_layer_depth():
    model = tiny('cct', joining='mpvg')
    assert model.get_layer_depth('patch_embed.conv_layers.0.0.weight') == (0, 5)
    assert model.get_layer_depth('blocks.1.pe_norm.weight') == (2, 5)
    assert model.get_layer_depth('attention_pool.weight') == (4, 5)


@pytest.mark.parametrize('options, words', [
    (dict(arch='cct_14'), ["'cct_14'", 'cct_7_3x1']),
    (dict(arch=dict(embed_dim=24, depth=3)), ["'num_heads'"]),
    (dict(arch=dict(SIZES, patch=3)), ['patch=3', 'kernel_size']),
    (dict(arch=dict(SIZES, pool='mean')), ["'mean'", 'sequence']),
    (dict(arch=dict(SIZES, conv_layers=1)), ['kernel_size=4', 'odd']),
    (dict(arch=dict(SIZES, conv_layers=1, kernel_size=1)), ['kernel_size=1', 'odd']),
    (dict(arch=dict(SIZES, kernel_size=0)), ['kernel_size=0', 'at least 1']),
    (dict(arch=dict(SIZES, conv_layers=-1)), ['conv_layers=-1']),
    (dict(position='sine'), ["'sine'", 'sincos_1d']),
    (dict(position='relative'), ["'relative'", 'sincos_1d']),
    (dict(attn_drop_rate=1.), ['attn_drop_rate=1.0']),
    (dict(joining='pvg', class_token=True), ['class_token']),
    (dict(arch=dict(SIZES, pool='sequence'), class_token=True), ["pool='sequence'"]),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options)
    assert all(word in str(error.value) for word in words), error.value
