import pytest
import torch
from reference import Reference

from lape_mm.backbones import DeiT
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=3, num_heads=3)
def tiny(**options):
    return DeiT(**{'arch': TINY, 'img_size': 32, 'patch_size': 8, **options})


def reference(model, image, joining):
    ref = Reference(model, heads=3, eps=1e-6)

    def feed_forward(block, x):
        y = ref.layer_norm(f'{block}.norm2', x)
        return x + ref.mlp(f'{block}.mlp.fc1', f'{block}.mlp.fc2', y)
    x = ref.tokens(ref.conv('patch_embed.proj', image.double(), stride=8))
    x = ref.encode(x, joining, depth=3, feed_forward=feed_forward)[-1]
    return ref.pool(ref.layer_norm('norm', x) + ref.post_norm(joining))


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


@torch.no_grad()
def test_a_non_square_table_is_its_own_grid():
    model = tiny(img_size=(32, 48), joining='pvg')
    assert model.pos_embed.shape == (1, 24, 24) and model.grid == (4, 6)
    assert model.plan((4, 6)).residual[0] is model.pos_embed or \
        torch.equal(model.plan((4, 6)).residual[0], model.pos_embed)


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
