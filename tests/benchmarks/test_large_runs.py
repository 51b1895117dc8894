"""The arithmetic of the full-scale runs."""
import json
from pathlib import Path

import large_runs
import pytest
import torch
from mmengine.config import Config
from torch.utils.flop_counter import FlopCounterMode

from lape_mm.requirements import TOOLBOXES, missing


def count(function):
    with FlopCounterMode(display=False, custom_mapping=large_runs.COUNTS) as counter:
        result = function()
    return counter.get_total_flops(), result


def test_fused_attention_is_counted():
    query = torch.rand(2, 3, 10, 8, requires_grad=True)
    forward, made = count(lambda: torch.nn.functional.scaled_dot_product_attention(
        query, query, query))
    # two products of 10 x 8 by 8 x 10, and the same with five instead of two for the gradients
    assert forward == 2 * 3 * 2 * (2 * 10 * 8 * 10)
    assert count(lambda: made.sum().backward())[0] == forward * 5 // 2


@pytest.mark.parametrize('settings', [
    dict(in_channels=8, out_channels=8, groups=8), dict(in_channels=8, out_channels=4),
    dict(in_channels=8, out_channels=4, stride=2)])
def test_a_gradient_costs_as_much_as_the_convolution(settings):
    layer = torch.nn.Conv2d(kernel_size=3, padding=1, bias=False, **settings)
    images = torch.rand(2, 8, 6, 6, requires_grad=True)
    forward, made = count(lambda: layer(images))
    assert forward == 2 * made.numel() * layer.weight[0].numel()
    assert count(lambda: made.sum().backward())[0] == 2 * forward


def test_hours_are_images_times_arithmetic_over_the_rate():
    def row(config, gflops):
        return dict(config=f'configs/{config}', size=[224, 200], images=3_600_000, gflops=gflops)
    record = dict(tflops=20., rows=[row('deit/deit-tiny-mpvg_4xb256-300e_in1k.py', 40.),
                                    row('upernet/upernet_vit-adapter-tiny-mpvg_x.py', 200.)])
    deit, upernet = large_runs.table(record).splitlines()[-2:]
    # 144 PFLOP at 20 TFLOP/s are 7200 s; UperNet starts from the DeiT
    assert deit.endswith('| 224×200 | 40.0 | 2.0 | 0.3 |')
    assert upernet.endswith('| 200.0 | 12.0 | 1.7 |')


def test_the_schedules_of_all_configs():
    images = {path.name: large_runs.images_of(Config.fromfile(path), path)
              for path in large_runs.configs()}
    assert images['deit-tiny-mpvg_4xb256-300e_in1k.py'] == 300 * 1_281_167
    assert images['upernet_vit-adapter-tiny-mpvg_4xb2-160k_ade20k-512x512.py'] == 160_000 * 8
    assert images['upernet_vit-adapter-tiny-mpvg_8xb2-160k_ade20k-512x512.py'] == 160_000 * 16
    record = json.loads(large_runs.RECORD.read_text())
    assert {Path(row['config']).name: row['images'] for row in record['rows']} == images


def test_the_mean_size_of_multi_scale_training(forgetful):
    if lacking := missing(*TOOLBOXES['mmdet']):
        pytest.skip(f'needs {", ".join(lacking)}')
    path = next((large_runs.ROOT / 'configs/mask_rcnn').glob('*tiny-mpvg_*'))
    height, width = large_runs.mean_size(Config.fromfile(path), draws=40)
    assert height % 32 == width % 32 == 0
    # sides of 480 to 800, 3 : 4, and crops of these
    assert 576 <= height <= 736 and height < width <= 1024
