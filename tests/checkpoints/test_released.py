"""Files of today's releases, in their own names: every weight finds its place."""
import re

import pytest
import torch
from timm.layers import resample_patch_embed

from lape_mm.backbones import DeiT, ViTAdapter
from lape_mm.checkpoints import CheckpointError, load_backbone
from lape_mm.checkpoints.transfer import match

SIZES = dict(embed_dim=24, depth=2, num_heads=2)
DINOV2 = dict(arch=dict(SIZES, layer_scale=1., reg_tokens=4), img_size=70, patch_size=14)
PLUS = dict(arch=dict(SIZES, layer_scale=1., reg_tokens=4, qkv_bias='qv', mlp='swiglu_split'),
            img_size=64, position='rope_dinov3')
EVA02 = dict(arch=dict(SIZES, qkv_bias='qv', mlp='swiglu_norm', mlp_ratio=2.5),
             img_size=64, position='learnable+rope_eva02')
OFFICIAL = {r'reg_token': 'register_tokens', r'\.gamma(\d)': r'.ls\1.gamma'}
# our name -> theirs, in order; theirs are spelt out here, and not derived from the package's rules
FILES = {
    'dinov2': (DINOV2, OFFICIAL, {'mask_token': (1, 24)}),
    'dinov2 hf': (DINOV2, {
        r'patch_embed\.proj': 'embeddings.patch_embeddings.projection',
        r'^(cls_token)': r'embeddings.\1', 'reg_token': 'embeddings.register_tokens',
        'pos_embed': 'embeddings.position_embeddings', r'^norm\.': 'layernorm.',
        r'\.gamma(\d)': r'.layer_scale\1.lambda1', r'\.attn\.(q|k|v)\.': lambda part: (
            '.attention.attention.' + dict(q='query.', k='key.', v='value.')[part[1]]),
        r'\.attn\.proj': '.attention.output.dense', r'^blocks': 'dinov2.encoder.layer',
        r'^(embeddings|layernorm)': r'dinov2.\1'}, {}),
    'dinov3': (PLUS, {**OFFICIAL, 'register_tokens': 'storage_tokens', 'fc1_g': 'w1', 'fc1_x': 'w2',
                      'fc2': 'w3'}, {'rope_embed.periods': (4,), 'mask_token': (1, 24)}),
    'dinov3 hf': (PLUS, {
        r'patch_embed\.proj': 'embeddings.patch_embeddings', '^(cls_token)': r'embeddings.\1',
        'reg_token': 'embeddings.register_tokens', r'\.gamma(\d)': r'.layer_scale\1.lambda1',
        r'attn\.(q|k|v)\.': r'attention.\1_proj.', r'attn\.proj': 'attention.o_proj',
        'fc1_g': 'gate_proj', 'fc1_x': 'up_proj', 'fc2': 'down_proj', '^blocks': 'layer'}, {}),
    'eva02': (EVA02, {
        r'attn\.(q|k|v)\.weight': r'attn.\1_proj.weight', r'attn\.(q|v)\.bias': r'attn.\1_bias',
        'fc1_g': 'w1', 'fc1_x': 'w2', r'mlp\.norm': 'mlp.ffn_ln', 'fc2': 'w3'},
        {'rope.freqs_cos': (16, 12), 'blocks.0.attn.rope.freqs_sin': (16, 12)}),
}


def source(**options):
    torch.manual_seed(1)
    model = DeiT(**options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def theirs(name, model, rules, more):
    """The state dict as the release spells it: q, k and v apart, or one bias with a mask."""
    state = {}
    for key, value in model.state_dict().items():
        if '.qkv.' in key and name != 'dinov2' and name != 'dinov3':
            for part, third in zip('qkv', value.chunk(3)):
                state[key.replace('qkv', part)] = third
        elif key.endswith(('q_bias', 'v_bias')) and name == 'dinov3':
            whole = state.setdefault(f'{key[:-6]}qkv.bias', torch.ones(3 * 24))
            (whole[:24] if key.endswith('q_bias') else whole[48:]).copy_(value)
            state[f'{key[:-6]}qkv.bias_mask'] = torch.tensor([1.] * 24 + [0.] * 24 + [1.] * 24)
        else:
            state[re.sub(r'attn\.(q|v)_bias', r'attn.\1.bias', key)] = value
    for ours, other in rules.items():
        state = {re.sub(ours, other, key): value for key, value in state.items()}
    return {**state, **{key: torch.ones(shape) for key, shape in more.items()}}


@pytest.mark.parametrize('name', FILES)
def test_every_weight_of_a_release_finds_its_place(tmp_path, name):
    options, rules, more = FILES[name]
    model = source(**options)
    torch.save(theirs(name, model, rules, more), tmp_path / 'file.pth')
    other = DeiT(**options)
    report = load_backbone(other, str(tmp_path / 'file.pth'))
    assert report.share == 1. and not report.missing and not report.resized
    assert set(report.unused) <= {'mask_token'}
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_one_meaning_in_two_forms():
    model = source(**PLUS)
    state = model.state_dict()
    for layer in (0, 1):  # timm: gate and value together, zeros for no bias
        for part in ('weight', 'bias'):
            state[f'blocks.{layer}.mlp.fc1.{part}'] = torch.cat(
                [state.pop(f'blocks.{layer}.mlp.fc1_{half}.{part}') for half in 'gx'])
        del state[f'blocks.{layer}.attn.q_bias'], state[f'blocks.{layer}.attn.v_bias']
    fitting, report = match(model, dict(state))
    assert report.share == 1.
    assert torch.equal(fitting['blocks.1.mlp.fc1_x.weight'], model.blocks[1].mlp.fc1_x.weight)
    assert not fitting['blocks.1.attn.v_bias'].any()
    packed = DeiT(**{**PLUS, 'arch': dict(PLUS['arch'], mlp='swiglu', qkv_bias=True)})
    fitting, report = match(packed, model.state_dict())
    assert report.share == 1.
    assert torch.equal(fitting['blocks.0.mlp.fc1.weight'], state['blocks.0.mlp.fc1.weight'])
    assert torch.equal(fitting['blocks.0.attn.qkv.bias'], torch.cat(
        [model.blocks[0].attn.q_bias, torch.zeros(24), model.blocks[0].attn.v_bias]))


PLAIN = dict(DINOV2, arch=dict(SIZES, layer_scale=1.))
ADAPTER = dict(arch=dict(SIZES, conv_inplane=8, deform_num_heads=4),
               interaction_indexes=[(0, 0), (1, 1)])


def dinov2(path, **changes):
    """A file of DINOv2's layout with patches of 14 x 14, and what is changed in it."""
    state = theirs('dinov2', source(**PLAIN), OFFICIAL, {'mask_token': (1, 24)})
    state = {key: value for key, value in {**state, **changes}.items() if value is not None}
    torch.save(state, path)
    return state, str(path)


@torch.no_grad()
def test_patches_of_another_size_are_resampled_and_never_left_random(tmp_path):
    state, path = dinov2(tmp_path / 'dinov2.pth')
    model = ViTAdapter(**ADAPTER, img_size=64)
    report = load_backbone(model, path)
    assert report.share == 1.
    assert report.resized == {'patch_embed.proj.weight': '14 x 14 to 16 x 16 pixels',
                              'pos_embed': '5 x 5 to 4 x 4 tokens'}
    assert torch.equal(model.patch_embed.proj.weight, resample_patch_embed(
        state['patch_embed.proj.weight'], [16, 16]))
    # a smooth patch keeps its embedding when the image is resized with it
    ramp = torch.linspace(-1, 1, 4).expand(1, 3, 4, 4)
    small, large = (torch.nn.functional.interpolate(ramp, size=(side, side), mode='bicubic')
                    for side in (14, 16))
    torch.testing.assert_close(
        model.patch_embed.proj(large),
        torch.nn.functional.conv2d(small, state['patch_embed.proj.weight'],
                                   state['patch_embed.proj.bias']), rtol=.02, atol=.5)


@pytest.mark.parametrize('name, shape', [
    ('patch_embed.proj.weight', (24, 3, 2, 14, 14)), ('patch_embed.proj.weight', (24, 4, 14, 14)),
    ('patch_embed.proj.bias', None), ('norm.weight', None)])
def test_no_share_outvotes_what_every_token_passes(tmp_path, name, shape):
    _, path = dinov2(tmp_path / 'file.pth',
                           **{name: None if shape is None else torch.ones(shape)})
    model = ViTAdapter(**ADAPTER, img_size=64, last_norm=True)
    before = model.patch_embed.proj.weight.clone()
    with pytest.raises(CheckpointError, match=f'{name}.*allow_missing'):
        load_backbone(model, path, min_share=0)
    assert torch.equal(model.patch_embed.proj.weight, before)
    report = load_backbone(model, path, min_share=0, allow_missing=[name.split('.')[0]])
    assert name in report.missing
