"""A folded model gives what the model gives, for one size, and refuses all that would be stale."""
import pytest
import torch
from tiny_models import COMPACT, MODELS, build, gap

from lape_mm import fold
from lape_mm.backbones import DeiT, ViTAdapter

OTHERS = ['default', 'share', 'pvg', dict(first_layer=0, last=1),
          dict(first_layer=0, norm='scalar')]
CASES = [*((name, joining, 'learnable') for name in MODELS for joining in ('lape', 'mpvg')),
         *(('DeiT', joining, 'learnable') for joining in OTHERS), ('Swin', 'share', 'learnable'),
         *(('DeiT', 'lape', position) for position in ('sincos_1d', 'sincos_2d', 'relative'))]
SIZE = (32, 64)


def size_of(name):
    return (16, 24) if name in COMPACT else SIZE


@torch.no_grad()
@pytest.mark.parametrize('name, joining, position', CASES, ids=str)
def test_parity(name, joining, position):
    torch.manual_seed(0)
    model = build(name, joining, position=position).eval()
    size = (32, 32) if position == 'relative' else size_of(name)
    folded, image = fold(model, size), torch.randn(2, 3, *size)
    assert gap(folded(image), model(image)) <= 1e-5
    names = [key for key in folded.state_dict() if 'folded' not in key]
    assert not [key for key in names if 'pos_embed' in key and 'layer' not in key]
    assert not [key for key in names if 'pe_norm' in key]
    assert position != 'relative' or not [key for key in names if 'bias_table' in key]
    assert not [layer for layer in folded.modules() if getattr(layer, 'pe_norm', None)]
    if joining in ('lape', 'pvg', 'mpvg'):
        assert sum(p.numel() for p in folded.parameters()) < \
            sum(p.numel() for p in model.parameters())


@torch.no_grad()
def test_maps_and_sizes_of_the_same_padded_grid():
    model = ViTAdapter(arch=dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8,
                                 deform_num_heads=3), joining='mpvg', img_size=32).eval()
    folded = fold(model, (50, 64))
    for height, width in ((50, 64), (64, 33)):
        image = torch.randn(1, 3, height, width)
        assert gap(folded(image), model(image)) <= 1e-5


@torch.no_grad()
def test_it_is_a_copy_and_never_stale():
    model = DeiT(arch=dict(embed_dim=24, depth=3, num_heads=3), img_size=32, joining='mpvg')
    before = {key: value.clone() for key, value in model.state_dict().items()}
    folded = fold(model, 32)
    assert model.training and not folded.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match='cannot be trained'):
        folded.train()
    assert folded.train(False) is folded
    with pytest.raises(ValueError, match='folded for 2 x 2 tokens, got 3 x 2'):
        folded(torch.randn(1, 3, 48, 32))
    with pytest.raises(RuntimeError, match='load them first'):
        folded.load_state_dict(model.state_dict(), strict=False)
    with pytest.raises(ValueError, match='folded already'):
        fold(folded, 32)
    again = fold(model, 32)
    model.pos_embed.add_(1.)
    assert again.load_state_dict(fold(model, 32).state_dict())
    image = torch.randn(1, 3, 32, 32)
    assert gap(again(image), model.eval()(image)) <= 1e-5
    with pytest.raises(ValueError, match='no backbone of lape_mm'):
        fold(torch.nn.Linear(2, 2), 32)
