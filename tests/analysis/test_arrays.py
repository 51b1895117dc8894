"""Arrays against hand computation on tiny models, and against LaPE's official script."""
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lape_mm.analysis import pe_per_layer, record, sections, similarity
from lape_mm.analysis.measures import center, correlation, cosine, distances
from lape_mm.backbones import DeiT, Swin, ViTAdapter, fold
from lape_mm.checkpoints import load_backbone, read_checkpoint

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = Path(os.environ.get('LAPE_GOLDENS') or ROOT / 'data/goldens')
CASES = sorted(path for path in GOLDENS.glob('lape_*.pt')
               if re.search('basic|share|LaPE', path.stem) and 'unshare' not in path.stem
               and 'RPE' not in path.stem)
ARCH = dict(embed_dim=12, depth=3, num_heads=3)


def deit(**options):
    torch.manual_seed(0)
    model = DeiT(arch=ARCH, img_size=(48, 32), **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=.5)
    return model


def norm(x, layer, eps=1e-6):
    """LayerNorm written out."""
    x = x.double()
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    return x * layer.weight.double() + layer.bias.double()


def close(array, tensor, atol=1e-5):
    np.testing.assert_allclose(array, tensor.detach().double().numpy(), rtol=0, atol=atol)


@pytest.mark.parametrize('joining', ['default', 'share', 'unshare'])
def test_pe_of_the_residual_stream_goes_through_the_layers_own_norm(joining):
    model = deit(joining=joining)
    for layer, entry in enumerate(pe_per_layer(model, (48, 32))):
        assert (entry.way, entry.grid, entry.num_prefix_tokens) == ('residual', (3, 2), 1)
        table = getattr(model, f'pos_embed{layer}' if joining == 'unshare' else 'pos_embed')
        close(entry.values, norm(table[0], model.blocks[layer].norm1))
        assert entry.patches.shape == (6, 12)


def test_lape_and_mpvg_give_the_chain():
    model = deit(joining='lape')
    pe = model.pos_embed[0]
    for layer, entry in enumerate(pe_per_layer(model, (48, 32))):
        pe = norm(pe, model.blocks[layer].pe_norm)
        assert entry.way == 'pre_attn'
        close(entry.values, pe)
    model = deit(joining='mpvg')
    first, second, third = pe_per_layer(model, (48, 32))
    assert (first.way, second.way, first.num_prefix_tokens) == ('residual', 'pre_attn', 0)
    close(first.values, norm(model.pos_embed[0], model.blocks[0].norm1))
    pe = norm(model.pos_embed[0], model.blocks[1].pe_norm)
    close(second.values, pe)
    close(third.values, norm(pe, model.blocks[2].pe_norm))


def test_a_layer_without_pe_has_no_values():
    model = deit(joining=dict(add_to_input=False, first_layer=1))
    entries = pe_per_layer(model, (48, 32))
    assert entries[0].values is None and entries[0].patches is None
    assert entries[1].values is not None


def test_relative_position_gives_the_bias_of_the_heads():
    model = deit(joining='lape', position='relative')
    entry = pe_per_layer(model, (48, 32))[1]
    assert (entry.way, entry.values.shape, entry.patches.shape) == \
        ('attn_bias', (3, 7, 7), (3, 6, 6))
    close(entry.values, model.plan((3, 2)).attn_bias[1][0])


def test_swins_pe_crosses_to_the_later_grids_under_default_too():
    torch.manual_seed(0)
    model = Swin(arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), window_size=4),
                 img_size=32).eval()
    first, second = pe_per_layer(model, 32)
    assert (first.grid, second.grid) == ((8, 8), (4, 4))
    carried = model.layers[0].merge(model.pos_embed.unflatten(1, (8, 8))).flatten(1, 2)[0]
    close(second.values, norm(carried, model.layers[1].blocks[0].norm1, eps=1e-5))


def test_a_folded_model_is_refused():
    with pytest.raises(ValueError, match='folded'):
        pe_per_layer(fold(deit(joining='lape'), (48, 32)), (48, 32))


def official(state, depth, joining, slots):
    """LaPE's official script by layer: PE without prefix tokens, torch's eps."""
    pe = state['pos_embed'].double().reshape(-1, state['pos_embed'].shape[-1])[slots:]
    for layer in range(depth):
        name = f'blocks.{layer}.{"pe_norm" if joining == "LaPE" else "norm1"}'
        normed = F.layer_norm(pe, pe.shape[-1:], eps=1e-5)
        normed = state[f'{name}.weight'].double() * normed + state[f'{name}.bias'].double()
        yield F.cosine_similarity(normed[:, None], normed[None], dim=-1)
        if joining == 'LaPE':
            pe = normed


@pytest.mark.skipif(not CASES, reason=f'no LaPE goldens in {GOLDENS}')
@pytest.mark.parametrize('path', CASES, ids=lambda path: path.stem)
def test_the_official_scripts_similarity(path, tmp_path):
    case = read_checkpoint(path)
    config, state = case['config'], case['state_dict']
    positions = {'learnable': 'learnable', '1D_sin': 'sincos_1d', '2D_sin': 'sincos_2d'}
    joinings = {'basic': 'default', 'LaPE': 'lape', 'share': 'share'}
    distilled = 'dist_token' in state
    model = DeiT(arch={key: config[key] for key in ('embed_dim', 'depth', 'num_heads',
                                                    'mlp_ratio', 'qkv_bias')},
                 img_size=config['img_size'], patch_size=config['patch_size'],
                 position=positions[config['pe']], joining=joinings[config['join_type']],
                 distilled=distilled, norm_eps=config['norm_eps'])
    state = {key: value.float() for key, value in state.items()}
    torch.save({'model': state}, tmp_path / 'case.pth')
    load_backbone(model, tmp_path / 'case.pth', min_share=1., source_grid=model.grid)
    model = model.double().eval()
    ours = [similarity(entry.patches) for entry in pe_per_layer(model, config['img_size'])]
    # the script always normalises with torch's default eps; ours is the model's
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
    theirs = official(state, config['depth'], config['join_type'], 1 + distilled)
    same = [similarity(entry.patches) for entry in pe_per_layer(model, config['img_size'])]
    for layer, expected in enumerate(theirs):
        close(same[layer], expected, atol=1e-6)
        close(ours[layer], expected, atol=1e-3)


@torch.no_grad()
def test_a_record_of_two_images():
    model = deit(joining='mpvg').double()
    images = torch.randn(2, 3, 48, 32, dtype=torch.float64)
    seen = record(model, images)
    x = model.patch_embed(images).flatten(2).transpose(1, 2) + model.pos_embed
    pe = None
    for layer, block in enumerate(model.blocks):
        close(seen.tokens[layer], norm(x, block.norm1).mean(0), atol=1e-12)
        y = norm(x, block.norm1)
        if layer:
            pe = norm(model.pos_embed if pe is None else pe, block.pe_norm)
            y = y + pe
        q, k, v = block.attn.qkv(y).unflatten(2, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 2).softmax(-1)
        far = torch.tensor([[((a // 2 - b // 2) ** 2 + (a % 2 - b % 2) ** 2) ** .5 * 16
                             for b in range(6)] for a in range(6)], dtype=torch.float64)
        close(seen.attention_distance[layer], (weights * far).sum(-1).mean((0, 2)), atol=1e-10)
        # the patch in the middle of 3 x 2 is row 1, column 0
        close(seen.attention_maps[layer], weights[:, :, 2].mean(0).unflatten(-1, (3, 2)),
              atol=1e-12)
        x = x + block.attn.proj((weights @ v).transpose(1, 2).flatten(2))
        x = x + block.mlp(norm(x, block.norm2))
    close(seen.last.before, x, atol=1e-10)
    close(seen.last.after, norm(x, model.norm), atol=1e-10)
    final = norm(model.pos_embed[0], model.last_pe_norm)
    close(seen.last.post_norm, final, atol=1e-12)
    close(seen.last.with_position, norm(x, model.norm) + final, atol=1e-10)
    assert seen.grids == [(3, 2)] * 3 and seen.num_prefix_tokens == 0 and not seen.class_token
    assert seen.feature_maps == []


@torch.no_grad()
def test_a_classifiers_last_layer_is_seen_for_all_tokens_and_left_as_it_is():
    model = deit(joining='lape').double()
    image = torch.randn(1, 3, 48, 32, dtype=torch.float64)
    before, = model(image)
    seen = record(model, image)
    maps = deit(joining='lape', out_indices=(2,)).double()
    maps.load_state_dict(model.state_dict())
    patches = maps(image)[0].flatten(2).transpose(1, 2)
    assert seen.last.after.shape == (1, 7, 12) and seen.class_token
    close(seen.last.after[:, 1:], patches, atol=1e-10)
    close(seen.last.after[:, 0], before, atol=1e-10)
    close(model(image)[0].numpy(), before, atol=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks
                   for module in model.modules())


@torch.no_grad()
def test_windows_are_those_of_the_model():
    torch.manual_seed(0)
    model = ViTAdapter(arch=dict(embed_dim=12, depth=4, num_heads=3, conv_inplane=8,
                                 deform_num_heads=3), img_size=64, windows=[3, 3, 3, None])
    seen = record(model, torch.randn(2, 3, 64, 64))
    assert [maps.shape for maps in seen.attention_maps] == [(3, 3, 3)] * 3 + [(3, 4, 4)]
    # the farthest two patches of a 3 x 3 window are two rows and two columns apart
    assert all(value.max() <= 16 * 8 ** .5 for value in seen.attention_distance[:3])
    assert [level.shape for level in seen.feature_maps] == \
        [(2, 16, 16), (2, 8, 8), (2, 4, 4), (2, 2, 2)]
    outputs = model.eval()(torch.zeros(1, 3, 64, 64))
    close(record(model, torch.zeros(1, 3, 64, 64)).feature_maps[3][0], outputs[3][0].norm(dim=0))
    assert seen.last is None


def test_a_record_leaves_the_training_mode_alone():
    model = deit(joining='pvg').train()
    model.blocks[1].eval()
    record(model, torch.randn(1, 3, 48, 32))
    assert model.training and model.blocks[0].training and not model.blocks[1].training


@pytest.mark.parametrize('images', [[], [torch.zeros(3, 32, 32), torch.zeros(3, 48, 32)]])
def test_images_have_one_size(images):
    with pytest.raises(ValueError, match='images of one size'):
        record(deit(), images)


def test_measures_by_hand():
    assert correlation(np.array([1., 2, 3]), np.array([-2., -4, -6])) == pytest.approx(-1)
    a, b = np.random.default_rng(0).normal(size=(2, 4, 5))
    assert correlation(a, b) == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1])
    assert np.isnan(correlation(np.ones(3), b[0, :3]))
    assert cosine(np.array([1., 0]), np.array([1., 1])) == pytest.approx(.5 ** .5)
    assert center((14, 14)) == 90 and center((5, 5)) == 12 and center((3, 2)) == 2
    assert distances((2, 3), (16, 8))[0, 5] == pytest.approx((16 ** 2 + 16 ** 2) ** .5)


def test_sections_of_a_mpvg_model_by_hand():
    model = deit(joining='mpvg')
    entries = pe_per_layer(model, (48, 32))
    seen = record(model, torch.randn(3, 3, 48, 32))
    found = sections.measure(entries, seen)
    assert set(found) == {'similarity', 'heatmaps', 'correlation', 'last_norm', 'token_norms',
                          'attention_distance', 'attention'}
    raw = model.pos_embed[0].detach().double().numpy()
    assert found['similarity'][0]['raw'][1, 0] == pytest.approx(1)
    assert found['similarity'][0]['raw'][2, 1] == pytest.approx(cosine(raw[2], raw[5]))
    arrays, numbers = found['correlation']
    expected = [np.corrcoef(seen.tokens[layer].ravel(), entries[layer].values.ravel())[0, 1]
                for layer in range(3)]
    np.testing.assert_allclose(numbers['by layer'], expected)
    assert arrays['last'] == pytest.approx(np.corrcoef(
        seen.last.after.mean(0).ravel(), seen.last.post_norm.ravel())[0, 1])
    arrays, numbers = found['last_norm']
    beta = model.norm.bias.detach().double().numpy()
    assert numbers['variance of beta'] == pytest.approx(((beta - beta.mean()) ** 2).mean())
    constant = beta + seen.last.post_norm.mean(0)
    assert numbers['variance of the effective beta'] == pytest.approx(constant.var())
    before = seen.last.before.mean((0, 1))
    after = (seen.last.after + seen.last.post_norm).mean((0, 1))
    assert numbers['cosine before, after'] == pytest.approx(
        before @ after / np.linalg.norm(before) / np.linalg.norm(after))
    arrays, _ = found['token_norms']
    np.testing.assert_allclose(arrays['before'][2, 2, 1],
                               np.linalg.norm(seen.last.before[2, 5]))
    arrays, numbers = found['heatmaps']
    np.testing.assert_allclose(arrays['last_with_position'] - arrays['last_after'],
                               arrays['last_pe'])


def test_the_last_norm_is_measured_on_the_class_token():
    model = deit(joining='lape')
    seen = record(model, torch.randn(2, 3, 48, 32))
    arrays, _ = sections.measure(pe_per_layer(model, (48, 32)), seen)['last_norm']
    np.testing.assert_allclose(arrays['before'], seen.last.before[:, 0].mean(0))
    assert sections.measure(pe_per_layer(model, (48, 32)), seen)['heatmaps'][0][
        'tokens00'].shape == (6, 12)
    assert sections.measure(pe_per_layer(model, (48, 32)), seen)['heatmaps'][0][
        'last_after'].shape == (7, 12)
