#!/usr/bin/env python
"""The cost of the full-scale runs: arithmetic of a training image, and hours on 1 and 8 GPUs.

    python benchmarks/large_runs.py                       # prints; minutes on a CPU
    python benchmarks/large_runs.py --write               # and writes large_runs.json
    python benchmarks/large_runs.py --tflops 60 --configs deit-tiny

torch counts the operations of one training step of each config's own model: matrix products,
convolutions and attention, not sampling and normalisation. The image has the config's size, or on
COCO the mean size that the config's augmentation makes of 480 x 640. Hours are projected, not
measured: images of the schedule x arithmetic / an assumed rate. Joinings differ by a tenth of a
percent, so only MPVG is shown.
"""
import argparse
import json
import re
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
from sweep import images
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lape_mm.runs.results import markdown

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / 'benchmarks/large_runs.json'
IMAGES = dict(imagenet=1_281_167, coco=117_266, cifar10=50_000)
# assumed of a GPU such as an A100 or H100, end to end, in mixed precision; a multiply-add counts
# twice
TFLOPS = 20.
SCALING = .9


def configs() -> Iterator[Path]:
    """The full-scale configs with MPVG of the papers' models: not those on published weights."""
    yield from sorted(path for path in (ROOT / 'configs').rglob('*-mpvg_*.py') if not re.search(
        'dino|mae|large|cityscapes|voc12|/(atss|cascade_rcnn|lvis|mask2former|sem_fpn|vitdet)/',
        path.relative_to(ROOT).as_posix()))


def mean_size(cfg: Config, draws: int = 500) -> tuple[int, int]:
    """Mean height and width of 480 x 640, a common size in COCO, after the config's augmentation.

    Both are rounded up to 32, as batches are.
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
    """Images of the schedule, each counted as often as it is seen."""
    if iterations := cfg.train_cfg.get('max_iters'):
        return iterations * cfg.auto_scale_lr.base_batch_size
    data = next(images for name, images in IMAGES.items() if name in path.stem.replace(
        'in1k', 'imagenet'))
    return data * cfg.train_cfg.max_epochs


def convolution_backward(grad_shape, x_shape, weight_shape, *rest, **kwargs) -> int:
    """Each of the two gradients takes as many operations as the forward pass, if it is needed.

    torch's own count treats a depth-wise convolution as a dense one.
    """
    transposed, mask = rest[4], rest[7]
    places = prod(x_shape if transposed else grad_shape)
    return 2 * places * prod(weight_shape[1:]) * sum(mask[:2])


# torch's own count omits its fused attention on a CPU
COUNTS = {
    torch.ops.aten.convolution_backward: convolution_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda gradient, query, key, value, *_, **__: sdpa_backward_flop_count(
            gradient, query, key, value)}


def gflops(cfg: Config) -> float:
    """GFLOP of one image's training step, forward and backward."""
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    cfg.model.backbone.pop('init_cfg', None)
    if cfg.default_scope == 'mmpretrain':
        cfg.model.pop('train_cfg', None)  # mixup needs a batch, and costs nothing
        if cfg.model.get('teacher'):
            cfg.model.teacher.pretrained = False  # only its arithmetic counts
    model = MODELS.build(cfg.model).train()
    # COCO has seven objects an image; BatchNorm of a single pixel needs two images
    items = (7,) if cfg.default_scope == 'mmdet' else (0, 0)
    data = model.data_preprocessor(images(cfg, size_of(cfg), items), training=True)
    with FlopCounterMode(display=False, custom_mapping=COUNTS) as counter:
        losses = model(**data, mode='loss')
        loss, _ = model.parse_losses(losses)
        loss.backward()
    return counter.get_total_flops() / len(items) / 1e9


def measure(args: argparse.Namespace) -> list[dict]:
    """One row for each config."""
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
    """The record's table and origin for docs/evidence.md."""
    record = json.loads(RECORD.read_text())
    return (f'### What the large runs would take\n\n{table(record)}\n\nCounted by '
            f'`python benchmarks/large_runs.py --write` with torch {record["torch"]}; projected '
            f'for {record["tflops"]:g} TFLOP/s sustained a GPU, which is assumed, not measured, '
            f'and {SCALING:.0%} of eight times that on eight.')


def table(record: dict) -> str:
    """The record as Markdown, with projected hours.

    A detector's and a segmenter's hours include the DeiT of its size and joining on ImageNet, from
    which it starts.
    """
    rows = []
    hours = {Path(row['config']).name: row['images'] * row['gflops'] / record['tflops'] / 3.6e6
             for row in record['rows']}
    for row in record['rows']:
        name = Path(row['config']).name
        start = re.search('(?:vit-adapter|_deit)-(tiny|small|base)-', name)
        needed = hours[name] + (
            hours.get(f'deit-{start[1]}-mpvg_4xb256-300e_in1k.py', 0) if start else 0)
        rows.append([f'`{row["config"].removeprefix("configs/")}`',
                     f'{row["size"][0]}×{row["size"][1]}', f'{row["gflops"]:,.1f}',
                     f'{needed:,.1f}', f'{needed / 8 / SCALING:,.1f}'])
    return markdown(['config', 'pixels', 'GFLOP an image, counted',
                     'hours on one GPU with pre-training, projected', 'on eight'], rows)


def main() -> int:
    """Counts, prints and, with --write, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--configs', nargs='+', default=[''], help='parts of config names')
    parser.add_argument('--tflops', type=float, default=TFLOPS, help='assumed rate of a GPU')
    parser.add_argument('--write', action='store_true', help='large_runs.json')
    args = parser.parse_args()
    if args.write and args.configs != ['']:
        parser.error('--write needs all configs: leave out --configs')
    record = dict(tflops=args.tflops, torch=torch.__version__.split('+')[0], rows=measure(args))
    print(table(record))
    if args.write:
        RECORD.write_text(json.dumps(record, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
