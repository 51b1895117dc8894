
import torch

from lape_mm.backbones import T2TViT
from lape_mm.backbones.t2t_vit import TokenPerformer

TINY = dict(embed_dim=24, depth=3, num_heads=3, token_dim=8)
def tiny(**options):
    return T2TViT(**{'arch': TINY, 'img_size': 32, **options})


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
