
import torch
import torch.nn.functional as F
from torch import nn

from lape_mm.backbones import T2TViT
from lape_mm.backbones.t2t_vit import TokenPerformer, TokenTransformer

TINY = dict(embed_dim=24, depth=3, num_heads=3, token_dim=8)
def tiny(**options):
    return T2TViT(**{'arch': TINY, 'img_size': 32, **options})


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
def test_transformer_is_scaled_by_the_width_of_its_input():
    torch.manual_seed(0)
    layer, x = shaken(TokenTransformer(dim=12, token_dim=8)), torch.randn(2, 5, 12).double()
    q, k, v = split_rows(layer, layer.attn.qkv, x)
    mix = (q @ k.transpose(1, 2) / 12 ** .5).softmax(-1) @ v
    expected = v + F.linear(mix, layer.attn.proj.weight, layer.attn.proj.bias)
    y = F.layer_norm(expected, (8,), layer.norm2.weight, layer.norm2.bias, 1e-5)
    expected = expected + layer.mlp.fc2(F.gelu(layer.mlp.fc1(y)))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


def test_random_features_are_orthogonal_and_frozen():
    layer = tiny().patch_embed.attention2
    assert layer.w.shape == (4, 8) and not layer.w.requires_grad
    torch.testing.assert_close(layer.w @ layer.w.T, 4 * torch.eye(4))


@torch.no_grad()
def test_autocast_leaves_the_features_in_single_precision():
    layer, seen = TokenPerformer(dim=12, token_dim=8), []
    kernel = layer.features
    layer.features = lambda x: seen.append((x.dtype, kernel(x).dtype)) or kernel(x)
    with torch.autocast('cpu', torch.bfloat16):
        layer(torch.randn(2, 5, 12))
    assert seen == [(torch.float32, torch.float32)] * 2
