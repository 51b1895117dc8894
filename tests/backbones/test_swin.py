import pytest
import torch
import torch.nn.functional as F
from reference import Reference

from lape_mm.backbones import Swin
from lape_mm.position import PRESETS

TINY = dict(embed_dim=8, depths=(2, 1, 2, 2), num_heads=(1, 2, 2, 4), window_size=3, mlp_ratio=2.)
NAMES = [name for name in PRESETS if name != 'unshare']
def tiny(**options):
    """Grids of 10, 5, 3 and 2 tokens a side for the images that the table is made for."""
    return Swin(**{'arch': TINY, 'img_size': 40, **options})


def randomise(model, std=.3):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * std)
    return model


def dense_attention(ref, name, y, heads, window, shifted):
    """Attention within windows as one over all tokens of the padded map, and a mask."""
    size = y.shape[1:3]
    shift = [window // 2 if shifted and extent > window else 0 for extent in size]
    y = F.pad(y, (0, 0, 0, -size[1] % window, 0, -size[0] % window))
    padded = y.shape[1:3]
    qkv = ref.linear(f'{name}.qkv', y.flatten(1, 2))
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    places = torch.cartesian_prod(*map(torch.arange, padded))
    moved = torch.stack([(places[:, axis] - shift[axis]) % padded[axis] for axis in (0, 1)], 1)
    came_round = moved > places
    near = (moved[:, None] // window == moved // window) & (came_round[:, None] == came_round)
    offset = (moved[:, None] - moved + window - 1).clamp(0, 2 * window - 2)
    bias = ref.state[f'{name}.relative_position_bias_table'][
        offset[..., 0] * (2 * window - 1) + offset[..., 1]].permute(2, 0, 1)
    weights = q @ k.transpose(-2, -1) / q.shape[-1] ** .5 + bias
    weights = weights.masked_fill(~near.all(-1), -torch.inf).softmax(-1)
    y = (weights @ v).transpose(1, 2).flatten(2).unflatten(1, padded)
    return ref.linear(f'{name}.proj', y)[:, :size[0], :size[1]]


def reference(model, image, joining):
    """Swin with PE by the equations, without any of the model's methods: pooled, and the maps."""
    ref = Reference(model, heads=None, eps=1e-5)
    state, layer_norm = ref.state, ref.layer_norm

    def merge(name, x):
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
        return ref.linear(f'{name}.reduction', layer_norm(f'{name}.norm', x))

    image = F.pad(image.double(), (0, -image.shape[3] % 4, 0, -image.shape[2] % 4))
    x = ref.conv('patch_embed.proj', image, stride=4)
    grid = x.shape[2:]
    x = layer_norm('patch_embed.norm', x.permute(0, 2, 3, 1))
    pos = state['pos_embed'].unflatten(1, (10, 10)).permute(0, 3, 1, 2)
    if grid != pos.shape[2:]:
        pos = F.interpolate(pos, size=grid, mode='bicubic', align_corners=False)
    pos = received = pos.permute(0, 2, 3, 1)
    if joining != 'lape':
        x = x + pos
    maps = []
    for stage, (depth, heads) in enumerate(zip(TINY['depths'], TINY['num_heads'])):
        window = min(3, (10, 5, 3, 2)[stage])
        for index in range(depth):
            block = f'layers.{stage}.blocks.{index}'
            if joining == 'share' and (stage or index):
                x = x + pos
            y = layer_norm(f'{block}.norm1', x)
            if joining in ('lape', 'pvg', 'mpvg'):
                received = layer_norm(f'{block}.pe_norm', received)
                y = y + received
            x = x + dense_attention(ref, f'{block}.attn', y, heads, window, index % 2)
            y = layer_norm(f'{block}.norm2', x)
            x = x + ref.mlp(f'{block}.mlp.fc1', f'{block}.mlp.fc2', y)
        if stage < 3:
            maps.append(layer_norm(f'norm{stage}', x))
            x, pos, received = (merge(f'layers.{stage}.downsample', each)
                                for each in (x, pos, received))
    x = layer_norm('norm', x)
    if joining == 'mpvg':
        x = x + layer_norm('last_pe_norm', pos)
    return x.mean((1, 2)), [each.permute(0, 3, 1, 2) for each in (*maps, x)]


@torch.no_grad()
@pytest.mark.parametrize('size', [(40, 40), (33, 50)], ids=str)
@pytest.mark.parametrize('joining', NAMES)
def test_outputs_follow_the_equations(joining, size):
    model = randomise(tiny(joining=joining, out_indices=(0, 1, 2, 3))).eval()
    image = torch.randn(2, 3, *size)
    pooled, maps = reference(model, image, joining)
    model.double()
    for ours, theirs in zip(model(image.double()), maps, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    model.out_indices = ()
    torch.testing.assert_close(model(image.double())[0], pooled, rtol=0, atol=1e-10)


def test_without_a_table():
    model = randomise(tiny(position=None))
    assert not [name for name in model.state_dict() if 'pos_embed' in name]
    model(torch.randn(2, 3, 44, 36))[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_windows_are_no_larger_than_the_map_they_are_made_for():
    model = tiny(img_size=(40, 24))
    assert model.grid == (10, 6) and model.pos_embed.shape == (1, 60, 8)
    windows = [block.attn.window_size for block in model.layers_in_order()]
    assert windows == [(3, 3)] * 3 + [(3, 2)] * 2 + [(2, 1)] * 2
    tables = [len(block.attn.relative_position_bias_table) for block in model.layers_in_order()]
    assert tables == [25] * 3 + [15] * 2 + [3] * 2
    assert model.eval()(torch.randn(1, 3, 52, 52))[0].isfinite().all()


@torch.no_grad()
def test_without_relative_bias_equals_a_bias_of_zeros():
    model, plain = randomise(tiny()).eval(), tiny(relative_bias=False).eval()
    tables = [name for name, _ in model.named_parameters() if name.endswith('bias_table')]
    for name in tables:
        model.get_parameter(name).zero_()
    assert plain.load_state_dict(model.state_dict(), strict=False) == ([], tables)
    image = torch.randn(2, 3, 40, 40)
    torch.testing.assert_close(plain(image)[0], model(image)[0])
