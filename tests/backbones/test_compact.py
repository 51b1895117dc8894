import pytest
import torch
import torch.nn.functional as F
from reference import Reference

from lape_mm.backbones import CompactTransformer

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


def reference(model, image, joining, sequence):
    ref = Reference(model, heads=3, eps=1e-5)

    def feed_forward(block, x):
        x = ref.layer_norm(f'{block}.norm1', x)  # no residual leads around it
        return x + ref.mlp(f'{block}.linear1', f'{block}.linear2', x)
    tokenizer = 'patch_embed.conv_layers.0.0'
    if f'{tokenizer}.bias' in ref.state:
        x = ref.conv(tokenizer, image, stride=4)
    else:
        x = F.max_pool2d(F.relu(ref.conv(tokenizer, image, padding=1)), 3, stride=2, padding=1)
    x = ref.encode(ref.tokens(x), joining, depth=3, feed_forward=feed_forward, norm='pre_norm',
                   attn='self_attn')[-1]
    x = ref.layer_norm('norm', x) + ref.post_norm(joining)
    if not sequence:
        return ref.pool(x)
    weights = ref.linear('attention_pool', x).exp()
    return (weights * x).sum(1) / weights.sum(1)


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
    expected = reference(model, image, joining, kind != 'vit_lite')
    torch.testing.assert_close(model(image)[0], expected, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize('kind', KINDS)
def test_tokens_of_any_image_size(kind):
    model = tiny(kind, joining='mpvg').eval()
    for height, width in ((16, 16), (17, 30), (4, 5)):
        tokens = model.patch_embed(model.pad_image(torch.randn(2, 3, height, width)))
        assert tokens.shape[2:] == tuple(-(-side // PIXELS[kind]) for side in (height, width))


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
