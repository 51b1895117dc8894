"""What a plain ViT is; tests/test_goldens.py holds its outputs to the equations."""
import pytest
import torch

from lape_mm.backbones import DeiT
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=3, num_heads=3)
def tiny(**options):
    return DeiT(**{'arch': TINY, 'img_size': 32, 'patch_size': 8, **options})


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
