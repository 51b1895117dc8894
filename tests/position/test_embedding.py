import math

import pytest
import torch
import torch.nn.functional as F

from lape_mm.position import KINDS, position_table, resize_table


def angle(position, channel, dim):
    return position / 10000 ** (2 * (channel // 2) / dim)


@pytest.mark.parametrize('prefix', [0, 1])
def test_sincos_1d_counts_the_prefix_as_first_positions(prefix):
    table = position_table('sincos_1d', grid=(2, 3), dim=6, num_prefix_tokens=prefix)
    assert table.shape == (1, prefix + 6, 6) and not table.requires_grad
    for position in range(prefix + 6):
        for channel in range(6):
            wave = math.cos if channel % 2 else math.sin
            expected = wave(angle(position, channel, 6))
            assert table[0, position, channel].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize('prefix', [0, 1, 2])
def test_sincos_2d_is_x_then_y_with_zeros_for_the_prefix(prefix):
    height, width, dim = 2, 3, 8
    table = position_table('sincos_2d', grid=(height, width), dim=dim, num_prefix_tokens=prefix)[0]
    assert (table[:prefix] == 0).all()
    for row in range(height):
        for column in range(width):
            token = table[prefix + row * width + column]
            for half, position in enumerate((column, row)):
                for channel in range(dim // 2):
                    wave = math.cos if channel % 2 else math.sin
                    expected = wave(angle(position, channel, dim // 2))
                    assert token[half * dim // 2 + channel].item() == \
                        pytest.approx(expected, abs=1e-6)


def test_learnable_is_small_and_trained():
    torch.manual_seed(0)
    table = position_table('learnable', grid=(14, 14), dim=192, num_prefix_tokens=1)
    assert table.requires_grad and table.shape == (1, 197, 192)
    assert table.std().item() == pytest.approx(.02, rel=.05)


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear'])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_resize_is_not_antialiased_and_keeps_the_prefix(mode, dtype):
    torch.manual_seed(0)
    table = torch.randn(1, 1 + 6 * 8, 4, dtype=dtype)
    small = resize_table(table, old=(6, 8), new=(3, 5), num_prefix_tokens=1, mode=mode)
    assert small.shape == (1, 1 + 15, 4) and small.dtype == dtype
    assert torch.equal(small[:, 0], table[:, 0])
    image = table[0, 1:].reshape(6, 8, 4).permute(2, 0, 1)[None].double()
    expected = F.interpolate(image, size=(3, 5), mode=mode, align_corners=False, antialias=False)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(small[0, 1:].double(), expected[0].flatten(1).T, rtol=tolerance,
                               atol=tolerance)


def test_resize_to_the_same_grid_is_the_table_itself():
    table = torch.randn(1, 6, 4)
    assert resize_table(table, old=(2, 3), new=(2, 3), num_prefix_tokens=0) is table
    # equal counts on another grid are another table
    assert not torch.equal(resize_table(table, old=(2, 3), new=(3, 2), num_prefix_tokens=0), table)


@pytest.mark.parametrize('kind, dim, words', [
    ('sine', 8, ["'sine'", *map(repr, KINDS)]), ('sincos_1d', 7, ['7', '2']),
    ('sincos_2d', 6, ['6', '4'])])
def test_errors(kind, dim, words):
    with pytest.raises(ValueError) as error:
        position_table(kind, grid=(2, 2), dim=dim, num_prefix_tokens=0)
    assert all(word in str(error.value) for word in words)
