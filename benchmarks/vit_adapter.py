#!/usr/bin/env python
"""The ViT-Adapter-Ti backbone: time and memory at 512 and 1024 px.

    python benchmarks/vit_adapter.py                # inference, and a training step at 512 px
    python benchmarks/vit_adapter.py --mask-rcnn    # memory of a Mask R-CNN training step
    python benchmarks/vit_adapter.py --batch 16     # on a GPU, in bfloat16; without limits

Inference, also with each joining, is compared with timm's DeiT-Ti on a batch of 16 at 224 px. A
training step (forward, the mean of all maps, backward) is compared with the official arithmetic in
our code: softmax(q k) attention, one grid_sample call a level, channels-first maps, all activations
kept. Both levels of ``with_cp`` are measured, too.
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
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

import lape_mm
from lape_mm.backbones import adapter_layers, deformable, sampling

JOININGS = ('default', 'lape', 'pvg', 'mpvg')
YARDSTICK = 'timm DeiT-Ti b16'
REFERENCE, OURS = 'official arithmetic', 'ours'
ADAPTER = 'adapter checkpointed'
CODES = {ADAPTER: 'adapter', 'checkpointed': True}  # with_cp of ours
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
          code: str = OURS, batch: int = 1) -> Callable:
    """A ViT-Adapter-Ti on images of noise, or a training step.

    Args:
        size: side of the images, in pixels.
        kind: 'detection', 'segmentation', 'timm' (the yardstick) or 'mask_rcnn' (a training step).
        joining: a joining's name.
        training: forward and backward.
        code: `OURS`, `REFERENCE` (see `reference_code`) or a name of `CODES`.
        batch: number of images.
    """
    torch.manual_seed(0)
    if kind == 'timm':
        return classification.build(name='timm', arch='tiny', batch=16, training=False)
    if kind == 'mask_rcnn':
        return mask_rcnn_step(joining, size, batch)
    model = lape_mm.ViTAdapter(arch='tiny', variant=kind, joining=joining,
                               with_cp=CODES.get(code, False)).to(measure.device()).train(training)
    noise = torch.randn(batch, 3, size, size, device=measure.device())
    if not training:
        return measure.forward(model, noise)

    def step() -> None:
        model.zero_grad()
        with reference_code() if code == REFERENCE else nullcontext(), measure.autocast():
            loss = sum(level.float().mean() for level in model(noise))
        loss.backward()
    return step


def mask_rcnn_step(joining: str, size: int, batch: int) -> Callable:
    """Forward, losses and backward of Mask R-CNN on square images with ten objects each."""
    from sweep import images
    cfg = Config.fromfile(ROOT / f'configs/mask_rcnn/mask-rcnn_vit-adapter-tiny-{joining}'
                          '_fpn_8xb2-ms-3x_coco.py')
    init_default_scope('mmdet')
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).to(measure.device()).train()
    data = model.data_preprocessor(images(cfg, size, (10,) * batch), training=True)

    def step() -> None:
        model.zero_grad()
        loss, _ = model.parse_losses(model(
            data['inputs'], [sample.clone() for sample in data['data_samples']], mode='loss'))
        loss.backward()
    return step


def inference(args: argparse.Namespace) -> dict:
    """Time and memory at all sizes and with each joining, for `measure.write`."""
    least = min(args.sizes)
    given = {f'{kind} {size}': dict(size=size, kind=kind, batch=args.batch)
             for size in args.sizes for kind in ('detection', 'segmentation')}
    joinings = {f'{joining} {least}': dict(size=least, joining=joining, batch=args.batch)
                for joining in JOININGS[1:]}
    works = {YARDSTICK: dict(size=0, kind='timm'), **given, **joinings}
    times = measure.time_all({name: build(**row) for name, row in works.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    what = 'ViT-Adapter-Ti, inference'
    bars = [bar(f'{what}: {row} / {base}', ratios(times, row, base), limit)
            for row, base, limit in LIMITS if row in times and base in times]
    if 'detection 1024' in memory:
        bars.append(bar(f'{what}: peak memory of detection 1024, MB', memory['detection 1024'],
                        300.))
    return dict(
        measured={'inference, s': times, 'inference, peak memory, MB': memory}, bars=bars,
        bases={**dict.fromkeys(given, YARDSTICK), **dict.fromkeys(joinings, f'detection {least}')})


def training(args: argparse.Namespace) -> dict:
    """Time and memory of a training step, for `measure.write`."""
    given = {code: dict(size=args.train_size, training=True, code=code, batch=args.batch)
             for code in (REFERENCE, OURS, *CODES)}
    times = measure.time_all({code: build(**row) for code, row in given.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    what = f'training step, {args.train_size} px'
    bars = [bar(f'ViT-Adapter-Ti, {what}: {kind}{code} / {REFERENCE}',
                ratios(table, code, REFERENCE), limit) for kind, code, table, limit in (
                    ('', OURS, times, .88), ('', ADAPTER, times, .96),
                    ('peak memory, ', ADAPTER, memory, .58))]
    return dict(measured={f'{what}, s': times, f'{what}, peak memory, MB': memory}, bars=bars,
                bases=dict.fromkeys((OURS, *CODES), REFERENCE))


def mask_rcnn(args: argparse.Namespace) -> dict:
    """Peak memory of a Mask R-CNN training step with each joining, for `measure.write`."""
    size = max(args.sizes)
    given = {joining: dict(size=size, kind='mask_rcnn', joining=joining, batch=args.batch)
             for joining in JOININGS}
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=128))
    return dict(measured={f'Mask R-CNN, training step, {size} px, peak memory, MB': memory},
                bars=[], bases=dict.fromkeys(JOININGS[1:], 'default'))


def main() -> int:
    """Measures, prints and writes; 1 if a figure misses its limit."""
    parser = measure.parser(__doc__, rounds=7)
    parser.add_argument('--sizes', type=int, nargs='+', default=[512, 1024])
    parser.add_argument('--train-size', type=int, default=512)
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--memory-rounds', type=int, default=3)
    parser.add_argument('--mask-rcnn', action='store_true', help='only this, for each joining')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    claim = f'ViT-Adapter-Ti, {"one image" if args.batch == 1 else f"{args.batch} images"}'
    if args.mask_rcnn:
        return measure.write(args, 'vit_adapter_mask_rcnn', dict(
            mask_rcnn(args), claim=f'Mask R-CNN with {claim}'))
    parts = inference(args), training(args)
    return measure.write(args, 'vit_adapter', dict(
        claim=claim, bars=[row for part in parts for row in part['bars'] if args.batch == 1],
        **{key: {**parts[0][key], **parts[1][key]} for key in ('measured', 'bases')}))


if __name__ == '__main__':
    sys.exit(main())
