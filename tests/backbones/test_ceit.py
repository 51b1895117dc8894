import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lape_mm.backbones import CeiT
from lape_mm.backbones.ceit import LeFF
from lape_mm.checkpoints import load_backbone
from lape_mm.position import PRESETS

TINY = dict(embed_dim=24, depth=3, num_heads=3, stem_channels=8)
ALL = [*PRESETS, dict(first_layer=0, last=0), dict(first_layer=1, last=2),
       dict(add_to_input=False, first_layer=1, last=0)]


def tiny(**options):
    return CeiT(**{'arch': TINY, 'img_size': (48, 32), **options})


def shaken(model):
    """The same model with parameters and statistics that hide nothing."""
    for name, value in model.state_dict().items():
        if name.endswith('running_var'):
            value.uniform_(.5, 2.)
        elif value.is_floating_point():
            value.normal_(std=.3)
    return model


@pytest.mark.parametrize('joining, count', [  # the papers' counts
    ('default', 6_356_904), ('lape', 6_361_512), ('pvg', 6_360_744), ('mpvg', 6_361_128)])
def test_parameter_counts(joining, count):
    with torch.device('meta'):
        model = CeiT(joining=joining)
        head = nn.Linear(model.embed_dim, 1000)
    assert sum(p.numel() for part in (model, head) for p in part.parameters()) == count
    assert model.has_class_token == (joining in ('default', 'lape'))


def reference(state, image, joining):
    """CeiT with the equations of the MPVG paper, without any of its methods."""
    dim, heads, depth = 24, 3, 3
    norm = lambda name, x: F.layer_norm(  # noqa: E731
        x, (dim,), state[f'{name}.weight'], state[f'{name}.bias'], 1e-6)
    linear = lambda name, x: F.linear(  # noqa: E731
        x, state[f'{name}.weight'], state[f'{name}.bias'])
    batch_norm = lambda name, x: F.batch_norm(  # noqa: E731
        x, state[f'{name}.running_mean'], state[f'{name}.running_var'], state[f'{name}.weight'],
        state[f'{name}.bias'])
    conv = lambda name, x, **how: F.conv2d(  # noqa: E731
        x, state[f'{name}.weight'], state.get(f'{name}.bias'), **how)

    def attention(name, x):
        q, k, v = linear(f'{name}.qkv', x).reshape(len(x), -1, 3, heads, dim // heads) \
            .permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (dim // heads) ** .5).softmax(-1)
        return linear(f'{name}.proj', (weights @ v).transpose(1, 2).reshape(x.shape))

    y = batch_norm('patch_embed.backbone.bn',
                   conv('patch_embed.backbone.conv', image, stride=2, padding=3))
    y = conv('patch_embed.proj', F.max_pool2d(y, 3, stride=2, padding=1), stride=4)
    grid, patches = y.shape[2:], y.flatten(2).transpose(1, 2)
    token = 'cls_token' in state
    x = torch.cat([state['cls_token'].expand(len(image), 1, dim), patches], 1) if token else patches
    pos = received = state['pos_embed']
    if joining != 'lape':
        x = x + pos
    noted = []
    for layer in range(depth):
        block = f'blocks.{layer}'
        y = norm(f'{block}.norm1', x)
        if joining == 'lape' or joining in ('pvg', 'mpvg') and layer:
            received = norm(f'{block}.pe_norm', received)
            y = y + received
        x = x + attention(f'{block}.attn', y)
        y = norm(f'{block}.norm2', x)
        patches = y[:, token:].transpose(1, 2).reshape(len(x), dim, *grid)
        patches = F.gelu(batch_norm(f'{block}.leff.bn1', conv(f'{block}.leff.conv1', patches)))
        patches = F.gelu(batch_norm(f'{block}.leff.bn2', conv(f'{block}.leff.conv2', patches,
                                                              padding=1, groups=4 * dim)))
        patches = batch_norm(f'{block}.leff.bn3', conv(f'{block}.leff.conv3', patches))
        rest = x[:, token:] + patches.flatten(2).transpose(1, 2)
        # the class token passes by the convolutions, but after the norm: cls + norm2(cls)
        x = torch.cat([x[:, :1] + y[:, :1], rest], 1) if token else rest
        noted.append(x[:, 0] if token else x.mean(1))
    # in full, of which the last row is what one query gives
    x = torch.stack(noted, 1) + state['pos_layer_embed']
    x = x + attention('lca.attn', norm('lca.norm1', x))
    x = x + linear('lca.feedforward.fc2', F.gelu(linear('lca.feedforward.fc1',
                                                        norm('lca.norm2', x))))
    x = norm('norm', x[:, -1])
    return x + norm('last_pe_norm', pos).mean(1) if joining == 'mpvg' else x


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
def test_outputs_follow_the_equations(joining):
    torch.manual_seed(0)
    model = shaken(tiny(joining=joining)).double().eval()
    image = torch.randn(2, 3, 48, 32).double()
    expected = reference(model.state_dict(), image, joining)
    torch.testing.assert_close(model(image)[0], expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_class_token_takes_its_own_slot_of_the_final_term():
    torch.manual_seed(0)
    joining = dict(first_layer=1, last=0)
    model = shaken(tiny(joining=joining, class_token=True)).eval()
    image, final = torch.randn(2, 3, 48, 32), model.last_pe_norm(model.pos_embed)[:, 0]
    with_final, = model(image)
    model.joining = model.joining.without_post_norm()
    torch.testing.assert_close(with_final, model(image)[0] + final)


@torch.no_grad()
@pytest.mark.parametrize('prefix', [0, 1, 2])
def test_leff_returns_the_prefix_as_it_came(prefix):
    layer, x = LeFF(dim=6, hidden=12).eval(), torch.randn(2, prefix + 10, 6)
    y = layer(x, (2, 5))
    assert y.shape == x.shape and torch.equal(y[:, :prefix], x[:, :prefix])
    # a row of the grid is five tokens: a change reaches its neighbours and no others
    x[0, prefix] += 1.
    changed = (layer(x, (2, 5)) != y).any(-1)
    assert changed[0, prefix:].reshape(2, 5).tolist() == [[True] * 2 + [False] * 3] * 2
    assert not changed[1].any()


@pytest.mark.parametrize('joining', ALL, ids=str)
def test_every_parameter_gets_a_finite_gradient(joining):
    torch.manual_seed(0)
    model = tiny(joining=joining, drop_path_rate=.1)
    for parameter in model.parameters():  # a zero bias or query would hide a missing gradient
        nn.init.normal_(parameter, std=.3)
    output, = model(torch.randn(4, 3, 64, 40))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        # its patches reach nothing under a class token, and DDP is content with zeros
        idle = model.has_class_token and name.startswith('blocks.2.leff')
        assert (parameter.grad.abs().sum() > 0) != idle, name


@torch.no_grad()
@pytest.mark.parametrize('size', [(48, 32), (32, 80), (33, 17), (16, 18)])
@pytest.mark.parametrize('position', ['learnable', 'sincos_1d', 'sincos_2d'])
@pytest.mark.parametrize('joining', ['lape', 'mpvg'])
def test_any_image_size(size, position, joining):
    model = tiny(joining=joining, position=position).eval()
    image = torch.randn(2, 3, *size)
    patches = model.patch_embed(model.pad_image(image))
    assert patches.shape == (2, 24, *(-(-side // 16) for side in size))
    output, = model(image)
    assert output.shape == (2, 24) and output.isfinite().all()
    padded = F.pad(image, (0, -size[1] % 16, 0, -size[0] % 16))
    torch.testing.assert_close(output, model(padded)[0])


@pytest.mark.parametrize('joining', ['default', 'mpvg'])
def test_half_precision(joining):
    torch.manual_seed(0)
    model = tiny(joining=joining)
    with torch.autocast('cpu', torch.bfloat16):
        output, = model(10 * torch.randn(2, 3, 64, 48))
    output.float().square().sum().backward()
    assert output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize('momentum', [.1, None])
def test_gradient_checkpointing_changes_nothing(momentum):
    torch.manual_seed(0)
    image, seen = torch.randn(2, 3, 48, 32), []
    initial = tiny(joining='mpvg').state_dict()
    for with_cp in (False, True):
        model = tiny(joining='mpvg', with_cp=with_cp)
        model.load_state_dict(initial)
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.momentum = momentum
        loss = model(image)[0].square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        model(image)
        seen.append(({name: p.grad for name, p in model.named_parameters()}, model.state_dict()))
    torch.testing.assert_close(*(gradients for gradients, _ in seen))
    torch.testing.assert_close(*(state for _, state in seen), rtol=0, atol=0)


@pytest.mark.parametrize('stem', ['i2t.', 'patch_embed.'])
def test_statistics_load_with_the_weights(tmp_path, stem):
    source, model = shaken(tiny()), tiny()
    for norm in (module for module in source.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.num_batches_tracked += 7
    state = {key.replace('patch_embed.', stem): value for key, value in
             source.state_dict().items()}
    torch.save({'model': state}, tmp_path / 'ceit.pth')
    report = load_backbone(model, str(tmp_path / 'ceit.pth'), min_share=1.,
                           source_grid=model.grid)
    assert not report.missing and not report.new and not report.unused
    torch.testing.assert_close(model.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_decay_and_depth():
    model = tiny(joining='lape')
    assert model.no_weight_decay() == {'pos_embed', 'cls_token'}  # and not pos_layer_embed
    assert not model.pos_layer_embed.any()
    depth = {name: model.get_layer_depth(name) for name, _ in model.named_parameters()}
    assert depth['patch_embed.backbone.bn.weight'] == depth['pos_embed'] == (0, 5)
    assert depth['blocks.2.leff.conv1.bias'] == depth['blocks.2.pe_norm.bias'] == (3, 5)
    assert depth['lca.attn.qkv.weight'] == depth['pos_layer_embed'] == (4, 5)


def test_relative_position():
    model = tiny(position='relative', joining='lape').eval()
    assert model(torch.randn(2, 3, 48, 32))[0].isfinite().all() and not model.table_names


@pytest.mark.parametrize('options, words', [
    (dict(arch='base'), ["'base'", "'small', 'tiny'"]),
    (dict(arch=dict(TINY, patch_size=4)), ['patch_size=4', 'stem_channels']),
    (dict(position='rope'), ["'rope'", 'learnable']),
    (dict(joining='pvg', class_token=True), ['class_token']),
    (dict(joining='none'), ["'none'", 'lape']),
])
def test_errors_name_the_value_and_what_is_allowed(options, words):
    with pytest.raises(ValueError) as error:
        tiny(**options)
    assert all(word in str(error.value) for word in words), error.value
