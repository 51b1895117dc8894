"""SimpleFPN against ViTDet's equations on pixels, and DeiT's windows."""
import pytest
import torch
import torch.nn.functional as F
from tiny_models import SIZES, build

from lape_mm.backbones import SimpleFPN


def norm(x, layer):
    """LayerNorm of channels-last maps, eps 1e-6, as ViTDet's."""
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    return x * layer.weight + layer.bias


def deconv(x, layer):
    """Each pixel of (B, h, w, C) becomes 2 x 2 pixels."""
    x = torch.einsum('bhwc,cdij->bhiwjd', x, layer.weight)
    return x.flatten(1, 2).flatten(2, 3) + layer.bias


def conv(x, layer):
    """Same-sized convolution of (B, h, w, C)."""
    x = F.conv2d(x.permute(0, 3, 1, 2), layer.weight, padding='same')
    return x.permute(0, 2, 3, 1)


@torch.no_grad()
def test_pyramid_equals_vitdets_equations():
    torch.manual_seed(0)
    neck = SimpleFPN(in_channels=8, out_channels=6, num_outs=6).double()
    for parameter in neck.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 8, 4, 6).double()
    last = x.permute(0, 2, 3, 1)
    one, two, _, _ = neck.levels
    scaled = [deconv(F.gelu(norm(deconv(last, one[0]), one[1])), one[3]),
              deconv(last, two[0]), last,
              last.unflatten(1, (2, 2)).unflatten(3, (3, 2)).amax((2, 4))]
    expected = [norm(conv(norm(conv(y, level[-4]), level[-3]), level[-2]), level[-1])
                for y, level in zip(scaled, neck.levels)]
    expected = [y.permute(0, 3, 1, 2) for y in expected]
    outputs = neck((torch.zeros(1), x))  # the last map alone is read
    assert [tuple(one.shape[2:]) for one in outputs] == [
        (16, 24), (8, 12), (4, 6), (2, 3), (1, 2), (1, 1)]
    for ours, theirs in zip(outputs, [*expected, expected[-1][..., ::2, ::2]]):
        torch.testing.assert_close(ours, theirs)


@torch.no_grad()
@pytest.mark.parametrize('joining', ['lape', 'mpvg'])
def test_windows_of_all_layers_but_the_last_of_each_quarter(joining):
    arch = dict(SIZES, depth=8)
    model = build('DeiT', joining, arch=arch, img_size=64, window_size=2, out_indices=(0, 1, 7))
    sides = [block.attn.window_size for block in model.blocks]
    assert sides == [2, None] * 4
    model, image = model.eval(), torch.randn(1, 3, 64, 64)
    other = image.clone()
    other[..., 32:, 32:] += 1.  # other windows of the first layer
    seen = [(a - b).abs().amax(1)[0, :2, :2].max() for a, b in zip(model(image), model(other))]
    # a class token attends to all tokens, and patches to it a layer later
    assert seen[0] == 0 < seen[1]
