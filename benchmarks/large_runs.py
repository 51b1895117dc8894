#!/usr/bin/env python
"""What the full-scale runs would cost: arithmetic of a training image, and hours on 1 and 8 GPUs.

    python benchmarks/large_runs.py                       # prints; minutes on a CPU
    python benchmarks/large_runs.py --write               # and the record of docs/evidence.md,
                                                          # which tables.py --write shows
    python benchmarks/large_runs.py --tflops 60 --configs deit-tiny

The arithmetic is counted by torch over one training step of each config's own model, at its own
size (matrix products, convolutions and attention; sampling and normalisation are not counted); on
COCO at the mean size that the config's own augmentation makes of an image of 480 x 640.
Hours are projected, not measured: images of the schedule x arithmetic / a rate that is assumed to
be sustained. The joinings cost the same to a tenth of a percent: MPVG's is shown.
"""
import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from math import ceil, prod
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from lape_mm.runs.results import markdown

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / 'benchmarks/large_runs.json'
IMAGES = dict(imagenet=1_281_167, coco=117_266, cifar100=50_000)
# multiply-adds count twice; of a GPU such as an A100 or H100 in mixed precision, on models of
# this size, end to end
TFLOPS = 20.
SCALING = .9


def configs() -> Iterator[Path]:
    """Each full-scale config with MPVG."""
    yield from sorted((ROOT / 'configs').rglob('*-mpvg_*.py'))


def sample(cfg: Config, height: int, width: int):
    """Ground truth of one image."""
    scope = cfg.default_scope
    if scope == 'mmpretrain':
        from mmpretrain.structures import DataSample
        return DataSample().set_gt_label(1)
    if scope == 'mmseg':
        from mmseg.structures import SegDataSample
        found = SegDataSample(metainfo=dict(img_shape=(height, width), pad_shape=(height, width)))
        found.gt_sem_seg = PixelData(data=torch.randint(0, 150, (1, height, width)))
        return found
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    found = DetDataSample(metainfo=dict(
        img_shape=(height, width), pad_shape=(height, width), batch_input_shape=(height, width),
        ori_shape=(height, width), scale_factor=(1., 1.)))
    # seven objects, as COCO has in its mean image
    corner = torch.rand(7, 2) * torch.tensor([width / 2, height / 2])
    found.gt_instances = InstanceData(
        bboxes=torch.cat([corner, corner + torch.rand(7, 2) * 200 + 20], dim=1),
        labels=torch.randint(0, 80, (7, )),
        masks=BitmapMasks([torch.ones(height, width).byte().numpy()] * 7, height, width))
    return found


def mean_size(cfg: Config, draws: int = 500) -> tuple[int, int]:
    """Height and width that the config's augmentation makes of 480 x 640, a common size of COCO's.

    Of the mean, each is rounded up to 32, as batches are.
    """
    from mmdet.structures.bbox import HorizontalBoxes
    init_default_scope('mmdet')
    steps = Compose([step for step in cfg.train_pipeline
                     if not step['type'].startswith(('Load', 'Pack'))])
    np.random.seed(0)
    sizes = []
    for _ in range(draws):
        made = steps(dict(img=np.zeros((480, 640, 3), np.uint8), img_shape=(480, 640),
                          gt_bboxes=HorizontalBoxes(torch.zeros(0, 4)),
                          gt_bboxes_labels=np.zeros(0, int), gt_ignore_flags=np.zeros(0, bool)))
        sizes.append(made['img_shape'][:2])
    height, width = np.mean(sizes, axis=0)
    return ceil(height / 32) * 32, ceil(width / 32) * 32


def size_of(cfg: Config) -> tuple[int, int]:
    """Height and width of a training image; the mean of multi-scale training."""
    if cfg.default_scope == 'mmdet':
        return mean_size(cfg)
    size = cfg.model.data_preprocessor.get('size') or cfg.model.backbone.get('img_size', 224)
    return (size, size) if isinstance(size, int) else tuple(size)


def images_of(cfg: Config, path: Path) -> int:
    """How many images the schedule trains on."""
    if iterations := cfg.train_cfg.get('max_iters'):
        return iterations * cfg.auto_scale_lr.base_batch_size
    data = next(images for name, images in IMAGES.items() if name in path.stem.replace(
        'in1k', 'imagenet'))
    return data * cfg.train_cfg.max_epochs


def convolution_backward(grad_shape, x_shape, weight_shape, *rest, **kwargs) -> int:
    """As many operations as forward for each of the two gradients that are asked for.

    torch's own count takes each channel of a depth-wise convolution for a sum over all of them.
    """
    transposed, mask = rest[4], rest[7]
    places = prod(x_shape if transposed else grad_shape)
    return 2 * places * prod(weight_shape[1:]) * sum(mask[:2])


def attention(query, key, value, *rest, **kwargs) -> int:
    """Of torch's fused attention on a CPU, which its own count leaves out."""
    return sdpa_flop_count(query, key, value)


def attention_backward(gradient, query, key, value, *rest, **kwargs) -> int:
    """Likewise; the logits are computed once more."""
    return sdpa_backward_flop_count(gradient, query, key, value)


COUNTS = {
    torch.ops.aten.convolution_backward: convolution_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward}


def gflops(cfg: Config) -> float:
    """Of one image's training step: forward and backward."""
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    cfg.model.backbone.pop('init_cfg', None)
    if cfg.default_scope == 'mmpretrain':
        cfg.model.pop('train_cfg', None)  # mixup needs a batch, and costs nothing
        if cfg.model.get('teacher'):
            cfg.model.teacher.pretrained = False  # its arithmetic counts, its weights do not
    model = MODELS.build(cfg.model).train()
    height, width = size_of(cfg)
    # BatchNorm of a pooled pixel needs two images
    batch = 1 if cfg.default_scope == 'mmdet' else 2
    with FlopCounterMode(display=False, custom_mapping=COUNTS) as counter:
        losses = model.loss(torch.rand(batch, 3, height, width),
                            [sample(cfg, height, width) for _ in range(batch)])
        loss, _ = model.parse_losses(losses)
        loss.backward()
    return counter.get_total_flops() / batch / 1e9


def measure(args: argparse.Namespace) -> list[dict]:
    """A row a config."""
    rows = []
    for path in configs():
        if not any(word in path.name for word in args.configs):
            continue
        cfg = Config.fromfile(path)
        with redirect_stdout(StringIO()):
            cost = gflops(cfg)
        rows.append(dict(config=path.relative_to(ROOT).as_posix(), size=list(size_of(cfg)),
                         images=images_of(cfg, path), gflops=round(cost, 1)))
        print(rows[-1], flush=True)
    return rows


def page() -> str:
    """The record as docs/evidence.md shows it."""
    if not RECORD.exists():
        return ''
    record = json.loads(RECORD.read_text())
    return (f'### What the large runs would take\n\n{table(record)}\n\nCounted by '
            f'`python benchmarks/large_runs.py --write` with torch {record["torch"]}; projected '
            f'for {record["tflops"]:g} TFLOP/s sustained a GPU, which is assumed, not measured, '
            f'and {SCALING:.0%} of eight times that on eight.')


def table(record: dict) -> str:
    """Markdown, with the hours that the arithmetic projects."""
    rows = []
    for row in record['rows']:
        hours = row['images'] * row['gflops'] / (record['tflops'] * 1e3) / 3600
        rows.append([f'`{row["config"].removeprefix("configs/")}`',
                     f'{row["size"][0]} x {row["size"][1]}',
                     f'{row["images"] / 1e6:.1f}', f'{row["gflops"]:,.1f}', f'{hours:,.1f}',
                     f'{hours / 8 / SCALING:,.1f}'])
    return markdown(
        ['config', 'pixels', 'images, millions', 'GFLOP an image, counted',
         'hours on one GPU, projected', 'on eight, projected'], rows)


def main() -> int:
    """Counts, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--configs', nargs='+', default=[''], help='parts of their names')
    parser.add_argument('--tflops', type=float, default=TFLOPS, help='assumed to be sustained')
    parser.add_argument('--write', action='store_true', help='large_runs.json')
    args = parser.parse_args()
    if args.write and args.configs != ['']:
        parser.error('--write is for all configs')
    record = dict(tflops=args.tflops, torch=torch.__version__.split('+')[0], rows=measure(args))
    print(table(record))
    if args.write:
        RECORD.write_text(json.dumps(record, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
