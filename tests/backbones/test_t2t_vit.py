import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lape_mm.backbones import T2TViT
from lape_mm.backbones.t2t_vit import TOKENS, TokenPerformer, TokensToToken, TokenTransformer
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=3, num_heads=3, token_dim=8)
COUNTS = {  # the papers' counts, frozen tables among them
    1000: (4_310_222, 4_313_806, 4_312_782, 4_313_294),
    100: (4_078_922, 4_082_506, 4_081_482, 4_081_994),
}
ALL = [*PRESETS, dict(first_layer=0, last=0), dict(first_layer=1, last=2),
       dict(add_to_input=False, first_layer=1, last=0)]


def tiny(**options):
    return T2TViT(**{'arch': TINY, 'img_size': 32, **options})


@pytest.mark.parametrize('classes', COUNTS)
@pytest.mark.parametrize('joining, index', [('default', 0), ('lape', 1), ('pvg', 2), ('mpvg', 3)])
def test_parameter_counts_are_the_papers(classes, joining, index):
    with torch.device('meta'):
        model = T2TViT(joining=joining)
        head = nn.Linear(model.embed_dim, classes)
    count = sum(p.numel() for part in (model, head) for p in part.parameters())
    assert count == COUNTS[classes][index]


def shaken(module):
    """The same module in float64, with parameters that hide nothing."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=.3)
    return module.double().eval()


def split_rows(module, linear, x):
    """The three parts of one Linear after norm1, in the order of its rows, (B, N, 8) each."""
    y = F.layer_norm(x, x.shape[-1:], module.norm1.weight, module.norm1.bias, 1e-5)
    bias = [None] * 3 if linear.bias is None else linear.bias.split(8)
    return [F.linear(y, weight, part) for weight, part in zip(linear.weight.split(8), bias)]


@torch.no_grad()
def test_performer_is_its_kernel_summed_pair_by_pair():
    torch.manual_seed(0)
    layer, x = shaken(TokenPerformer(dim=12, token_dim=8)), torch.randn(2, 5, 12).double()
    k, q, v = split_rows(layer, layer.kqv, x)  # the order of the official code
    expected = v.clone()
    phi = lambda x: [math.exp(w @ x - x @ x / 2) / 4 ** .5 for w in layer.w]  # noqa: E731
    for batch in range(2):
        for at in range(5):
            weights = torch.tensor(
                [[sum(one * other for one, other in zip(phi(q[batch, at]), phi(key)))]
                 for key in k[batch]], dtype=torch.float64)
            mix = (weights * v[batch]).sum(0) / (weights.sum() + 1e-8)
            expected[batch, at] += F.linear(mix, layer.proj.weight, layer.proj.bias)
    y = F.layer_norm(expected, (8,), layer.norm2.weight, layer.norm2.bias, 1e-5)
    expected = expected + layer.mlp[2](F.gelu(layer.mlp[0](y)))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_transformer_is_scaled_by_the_width_of_its_input():
    torch.manual_seed(0)
    layer, x = shaken(TokenTransformer(dim=12, token_dim=8)), torch.randn(2, 5, 12).double()
    q, k, v = split_rows(layer, layer.attn.qkv, x)
    mix = (q @ k.transpose(1, 2) / 12 ** .5).softmax(-1) @ v
    expected = v + F.linear(mix, layer.attn.proj.weight, layer.attn.proj.bias)
    y = F.layer_norm(expected, (8,), layer.norm2.weight, layer.norm2.bias, 1e-5)
    expected = expected + layer.mlp.fc2(F.gelu(layer.mlp.fc1(y)))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_stem_takes_the_neighbourhoods_of_three_convolutions():
    stem = TokensToToken(tokens='transformer', in_channels=3, token_dim=8, embed_dim=24,
                         norm_eps=1e-5)
    stem.attention1, stem.attention2 = nn.Linear(147, 8), nn.Linear(72, 8)
    x = image = torch.randn(2, 3, 48, 80)
    for layer, kernel, stride, padding in ((stem.attention1, 7, 4, 2), (stem.attention2, 3, 2, 1),
                                           (stem.project, 3, 2, 1)):
        weight = layer.weight.reshape(len(layer.weight), -1, kernel, kernel)
        x = F.conv2d(x, weight, layer.bias, stride=stride, padding=padding)
    assert x.shape == (2, 24, 3, 5)
    torch.testing.assert_close(stem(image), x)


def test_random_features_are_orthogonal_and_frozen():
    layer = tiny().patch_embed.attention2
    assert layer.w.shape == (4, 8) and not layer.w.requires_grad
    torch.testing.assert_close(layer.w @ layer.w.T, 4 * torch.eye(4))


@pytest.mark.parametrize('joining, tokens', [('default', 5), ('lape', 5), ('pvg', 4), ('mpvg', 4)])
def test_sinusoid_starts_at_the_first_token(joining, tokens):
    table = tiny(joining=joining).pos_embed
    assert table.shape == (1, tokens, 24) and not table.requires_grad
    for token in range(tokens):
        for channel in range(0, 24, 2):
            angle = token / 10000 ** (channel / 24)
            assert table[0, token, channel] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[0, token, channel + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize('joining', ALL, ids=str)
@pytest.mark.parametrize('tokens', TOKENS)
def test_every_parameter_gets_a_finite_gradient(joining, tokens):
    torch.manual_seed(0)
    model = tiny(joining=joining, tokens=tokens, position='learnable', drop_path_rate=.1)
    for parameter in model.parameters():  # a zero bias or query would hide a missing gradient
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=.1)
    output, = model(torch.randn(4, 3, 40, 24))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} \
        == ({f'patch_embed.attention{i}.w' for i in (1, 2)} if tokens == 'performer' else set())


@torch.no_grad()
@pytest.mark.parametrize('size', [(32, 32), (48, 16), (33, 17), (16, 18)])
@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('position', ['sincos_1d', 'learnable', 'sincos_2d'])
def test_any_image_size(size, tokens, position):
    model = tiny(joining='mpvg', position=position, tokens=tokens).eval()
    image = torch.randn(2, 3, *size)
    patches = model.patch_embed(model.pad_image(image))
    assert patches.shape == (2, 24, *(-(-side // 16) for side in size))
    output, = model(image)
    assert output.shape == (2, 24) and output.isfinite().all()
    padded = F.pad(image, (0, -size[1] % 16, 0, -size[0] % 16))
    torch.testing.assert_close(output, model(padded)[0])


@pytest.mark.parametrize('tokens', TOKENS)
@pytest.mark.parametrize('joining', ['default', 'mpvg'])
def test_half_precision(tokens, joining):
    torch.manual_seed(0)
    model = tiny(tokens=tokens, joining=joining)
    image = 10 * torch.randn(2, 3, 64, 48)
    with torch.autocast('cpu', torch.bfloat16):
        output, = model(image)
    output.float().square().sum().backward()
    assert output.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    assert model.bfloat16()(image.bfloat16())[0].isfinite().all()


@torch.no_grad()
def test_autocast_leaves_the_features_in_single_precision():
    layer, seen = TokenPerformer(dim=12, token_dim=8), []
    kernel = layer.features
    layer.features = lambda x: seen.append((x.dtype, kernel(x).dtype)) or kernel(x)
    with torch.autocast('cpu', torch.bfloat16):
        layer(torch.randn(2, 5, 12))
    assert seen == [(torch.float32, torch.float32)] * 2


def test_gradient_checkpointing_changes_nothing():
    image, gradients = torch.randn(2, 3, 32, 32), []
    model = tiny(joining='mpvg').eval()
    for with_cp in (False, True):
        model.with_cp = with_cp
        model.zero_grad()
        model(image)[0].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    for plain, recomputed in zip(*gradients):
        torch.testing.assert_close(plain, recomputed)


def test_frozen_takes_no_gradient_and_stays_in_evaluation_mode():
    model = tiny(joining='mpvg', frozen=True, drop_path_rate=.5)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.train() is model and not model.patch_embed.attention1.drop.training
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(image)[0], model(image)[0])


def test_dropout_is_for_training_alone():
    model, image = tiny(), torch.randn(2, 3, 32, 32)
    assert not torch.equal(model(image)[0], model(image)[0])
    assert torch.equal(model.eval()(image)[0], model(image)[0])


def test_decay_and_depth():
    model = tiny(joining='mpvg')
    assert model.no_weight_decay() == {'cls_token'}
    depth = {name: model.get_layer_depth(name) for name, _ in model.named_parameters()}
    assert depth['patch_embed.attention1.kqv.weight'] == depth['pos_embed'] == (0, 5)
    assert depth['blocks.2.pe_norm.bias'] == (3, 5) and depth['last_pe_norm.bias'] == (4, 5)


def test_relative_position():
    model = tiny(position='relative', joining='lape').eval()
    assert model(torch.randn(2, 3, 32, 32))[0].isfinite().all() and not model.table_names


@pytest.mark.parametrize('options, words', [
    (dict(arch='14'), ["'14'", "'7'"]),
    (dict(arch=dict(TINY, tokens='performer')), ["tokens='performer'", 'token_dim']),
    (dict(arch=dict(TINY, token_dim=7)), ['token_dim=7']),
    (dict(tokens='convolution'), ["'convolution'", "'performer'", "'transformer'"]),
    (dict(position='rope'), ["'rope'", 'sincos_1d']),
    (dict(joining='mpvg', class_token=True), ['class_token']),
    (dict(joining='none'), ["'none'", 'lape']),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options)
    assert all(word in str(error.value) for word in words), error.value
