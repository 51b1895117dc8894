import pytest
import torch
import torch.nn.functional as F
from reference import Reference
from torch import nn

from lape_mm.backbones import CeiT

TINY = dict(embed_dim=24, depth=3, num_heads=3, stem_channels=8)
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


def reference(model, image, joining):
    ref = Reference(model, heads=3, eps=1e-6)
    token = 'cls_token' in ref.state

    def feed_forward(block, x):
        y, leff = ref.layer_norm(f'{block}.norm2', x), f'{block}.leff'
        z = y[:, token:].transpose(1, 2).unflatten(2, grid)
        z = F.gelu(ref.batch_norm(f'{leff}.bn1', ref.conv(f'{leff}.conv1', z)))
        z = ref.conv(f'{leff}.conv2', z, padding=1, groups=z.shape[1])
        z = ref.conv(f'{leff}.conv3', F.gelu(ref.batch_norm(f'{leff}.bn2', z)))
        z = ref.batch_norm(f'{leff}.bn3', z).flatten(2).transpose(1, 2)
        # the class token passes by the convolutions, but after the norm: cls + norm2(cls)
        return x + torch.cat([y[:, :token], z], dim=1)
    x = ref.conv('patch_embed.backbone.conv', image, stride=2, padding=3)
    x = F.max_pool2d(ref.batch_norm('patch_embed.backbone.bn', x), 3, stride=2, padding=1)
    x = ref.conv('patch_embed.proj', x, stride=4)
    grid = x.shape[2:]
    layers = ref.encode(ref.tokens(x), joining, depth=3, feed_forward=feed_forward)
    # in full, of which the last row is what one query gives
    x = torch.stack([ref.pool(x) for x in layers], 1) + ref.state['pos_layer_embed']
    x = x + ref.attention('lca.attn', ref.layer_norm('lca.norm1', x))
    x = x + ref.mlp('lca.feedforward.fc1', 'lca.feedforward.fc2', ref.layer_norm('lca.norm2', x))
    x = ref.layer_norm('norm', x[:, -1])
    return x + ref.pool(ref.post_norm(joining)) if joining == 'mpvg' else x


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
def test_outputs_follow_the_equations(joining):
    torch.manual_seed(0)
    model = shaken(tiny(joining=joining)).double().eval()
    image = torch.randn(2, 3, 48, 32).double()
    expected = reference(model, image, joining)
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


@pytest.mark.parametrize('momentum', [.1, None])
def test_gradient_checkpointing_counts_statistics_once(momentum):
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
