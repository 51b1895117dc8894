#!/usr/bin/env python
"""The ViT-Adapter-Ti backbone: time and memory at 512 and 1024 px.

    python benchmarks/vit_adapter.py                # inference, and a training step at 512 px
    python benchmarks/vit_adapter.py --mask-rcnn    # memory of a Mask R-CNN training step

Inference on one image is compared with timm's DeiT-Ti on a batch of 16 at 224 px. A training step
(forward, the mean of all maps, backward) is compared with the official arithmetic in our code:
softmax(q k) attention, one grid_sample call a level, channels-first maps, all activations kept.
Both levels of ``with_cp`` are measured, too.
"""
import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import classification
import measure
import torch
import torch.nn.functional as F
from measure import ROOT, bar, ratios
from torch import Tensor

import lape_mm
from lape_mm.backbones import adapter_layers, deformable, sampling

KINDS = ('detection', 'segmentation')
JOININGS = ('default', 'lape', 'pvg', 'mpvg')
YARDSTICK = 'timm DeiT-Ti b16'
REFERENCE, OURS = 'official arithmetic', 'ours'
ADAPTER = 'adapter checkpointed'
CODES = {ADAPTER: 'adapter', 'checkpointed': True}  # with_cp of ours
BASES = {**{f'{kind} {size}': YARDSTICK for kind in KINDS for size in (512, 1024)},
         **{code: REFERENCE for code in (OURS, *CODES)}, 'lape': 'default', 'pvg': 'default',
         'mpvg': 'default'}
# of inference; four times the pixels may take 5.4 times as long, an exponent of 1.22
LIMITS = [('detection 1024', YARDSTICK, 7.), ('detection 512', YARDSTICK, 1.3),
          ('detection 1024', 'detection 512', 5.4)]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
                      dropout_p: float = 0.) -> Tensor:
    """F.scaled_dot_product_attention with the operations of the official code."""
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return F.dropout((logits if attn_mask is None else logits + attn_mask).softmax(-1),
                     dropout_p) @ v


@contextmanager
def reference_code() -> Iterator[None]:
    """Makes our backbone compute as the official one does, as said above."""
    with mock.patch.object(F, 'scaled_dot_product_attention', softmax_attention), \
            mock.patch.object(deformable, 'sample', sampling.sample_grid), \
            mock.patch.object(adapter_layers, 'LAYOUT', torch.contiguous_format):
        yield


def build(*, size: int, kind: str = 'detection', joining: str = 'default', training: bool = False,
          code: str = OURS) -> Callable:
    """A ViT-Adapter-Ti on one image of noise, or a training step.

    Args:
        size: side of the image, in pixels.
        kind: 'detection', 'segmentation', 'timm' (the yardstick) or 'mask_rcnn' (a training step).
        joining: a joining's name.
        training: forward and backward.
        code: `OURS`, `REFERENCE` (see `reference_code`) or a name of `CODES`.
    """
    torch.manual_seed(0)
    if kind == 'timm':
        return classification.build(name='timm', arch='tiny', batch=16, training=False)
    if kind == 'mask_rcnn':
        return mask_rcnn_step(joining, size)
    model = lape_mm.ViTAdapter(arch='tiny', variant=kind, joining=joining,
                               with_cp=CODES.get(code, False)).train(training)
    image = torch.randn(1, 3, size, size)
    if not training:
        return torch.no_grad()(lambda: model(image))

    def step() -> None:
        model.zero_grad()
        with reference_code() if code == REFERENCE else nullcontext():
            sum(level.mean() for level in model(image)).backward()
    return step


def mask_rcnn_step(joining: str, size: int) -> Callable:
    """Forward, losses and backward of Mask R-CNN on one square image with ten objects."""
    import mmdet.models  # noqa: F401
    import numpy as np
    from mmdet.registry import MODELS
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.config import Config
    from mmengine.registry import init_default_scope
    from mmengine.structures import InstanceData
    init_default_scope('mmdet')
    cfg = Config.fromfile(ROOT / f'configs/mask_rcnn/mask-rcnn_vit-adapter-tiny-{joining}'
                          '_fpn_8xb2-ms-3x_coco.py')
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).train()
    corners = torch.rand(10, 2) * size / 2
    sides = torch.rand(10, 2) * size / 2
    boxes = torch.cat([corners, corners + sides], dim=1)
    masks = np.zeros((10, size, size), dtype=np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
        mask[top:bottom + 1, left:right + 1] = 1
    sample = DetDataSample(metainfo=dict(
        img_shape=(size, size), ori_shape=(size, size), pad_shape=(size, size),
        batch_input_shape=(size, size), scale_factor=(1., 1.)))
    sample.gt_instances = InstanceData(bboxes=boxes, masks=BitmapMasks(
        masks, size, size), labels=torch.arange(10) % 80)
    image = torch.randn(1, 3, size, size)

    def step() -> None:
        model.zero_grad()
        loss, _ = model.parse_losses(model(image, [sample.clone()], mode='loss'))
        loss.backward()
    return step


def mask_rcnn(args: argparse.Namespace) -> dict[str, dict]:
    """Peak memory of a Mask R-CNN training step with each joining."""
    size = max(args.sizes)
    given = {joining: dict(size=size, kind='mask_rcnn', joining=joining) for joining in JOININGS}
    return {f'Mask R-CNN, training step, {size} px, peak memory, MB': measure.remember_all(
        'vit_adapter', given, args.memory_rounds, args.threads, warm_up=dict(size=128))}


def inference(args: argparse.Namespace) -> tuple[dict[str, dict], list[dict]]:
    """Time and memory of detection and segmentation at all sizes, and the figures with a limit."""
    given = {f'{kind} {size}': dict(size=size, kind=kind)
             for size in args.sizes for kind in KINDS}
    works = {YARDSTICK: dict(size=0, kind='timm'), **given}
    times = measure.time_all({name: build(**row) for name, row in works.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    what = 'ViT-Adapter-Ti, inference'
    bars = [bar(f'{what}: {row} / {base}', ratios(times, row, base), limit)
            for row, base, limit in LIMITS if row in times and base in times]
    if 'detection 1024' in memory:
        bars.append(bar(f'{what}: peak memory of detection 1024, MB', memory['detection 1024'],
                        300.))
    return {'inference, s': times,
            'inference, peak memory, MB': memory}, bars


def training(args: argparse.Namespace) -> tuple[dict[str, dict], list[dict]]:
    """Time and memory of a training step, and the figures with a limit."""
    given = {code: dict(size=args.train_size, training=True, code=code)
             for code in (REFERENCE, OURS, *CODES)}
    times = measure.time_all({code: build(**row) for code, row in given.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    what = f'training step, {args.train_size} px'
    bars = [bar(f'ViT-Adapter-Ti, {what}: {kind}{code} / {REFERENCE}',
                ratios(table, code, REFERENCE), limit) for kind, code, table, limit in (
                    ('', OURS, times, .88), ('', ADAPTER, times, .96),
                    ('peak memory, ', ADAPTER, memory, .58))]
    return {f'{what}, s': times, f'{what}, peak memory, MB': memory}, bars


def main() -> int:
    """Measures, prints and writes; 1 if a figure misses its limit."""
    parser = measure.parser(__doc__, 'vit_adapter', rounds=7)
    parser.add_argument('--sizes', type=int, nargs='+', default=[512, 1024])
    parser.add_argument('--train-size', type=int, default=512)
    parser.add_argument('--memory-rounds', type=int, default=3)
    parser.add_argument('--mask-rcnn', action='store_true', help='only this, for each joining')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.mask_rcnn and args.out == parser.get_default('out'):
        args.out = args.out.with_name('vit_adapter_mask_rcnn.json')

    claim, measured, bars = 'ViT-Adapter-Ti, one image', {}, []
    if args.mask_rcnn:
        claim, measured = 'Mask R-CNN with ViT-Adapter-Ti, one image', mask_rcnn(args)
    else:
        for part in (inference, training):
            tables, more = part(args)
            measured.update(tables)
            bars += more
    return measure.write(args, dict(claim=claim, measured=measured, bases=BASES, bars=bars))


if __name__ == '__main__':
    sys.exit(main())
