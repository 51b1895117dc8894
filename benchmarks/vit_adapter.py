#!/usr/bin/env python
"""The ViT-Adapter-Ti backbone: time and memory at 512 and 1024 px.

    python benchmarks/vit_adapter.py                # inference, and a training step at 512 px
    python benchmarks/vit_adapter.py --mask-rcnn    # memory of a Mask R-CNN training step
    python benchmarks/vit_adapter.py --profile      # where the time goes, detection

One image, against the yardstick: timm's DeiT-Ti on a batch of 16 at 224 px. A training step
(forward, the mean of all maps, backward) is compared with the same code computing as the official
one does, with softmax(q k) attention, one grid_sample call a level, maps channels-first and all
activations kept; and with ours under both levels of ``with_cp``.
"""
import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import classification
import measure
import torch
import torch.nn.functional as F
from measure import ROOT, bar, ratio
from torch import Tensor

import lape_mm
from lape_mm.backbones import adapter_layers, deformable, sampling

VARIANTS = ('detection', 'segmentation')
JOININGS = ('default', 'lape', 'pvg', 'mpvg')
YARDSTICK = 'timm DeiT-Ti b16'
REFERENCE, OURS = 'official arithmetic', 'ours'
CODES = {'adapter checkpointed': 'adapter', 'checkpointed': True}  # with_cp of ours


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
                      dropout_p: float = 0.) -> Tensor:
    """F.scaled_dot_product_attention written out, as the official code has it."""
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return F.dropout((logits if attn_mask is None else logits + attn_mask).softmax(-1),
                     dropout_p) @ v


@contextmanager
def reference_code() -> Iterator[None]:
    """Our backbone computing as the official one does: see above."""
    with mock.patch.object(F, 'scaled_dot_product_attention', softmax_attention), \
            mock.patch.object(deformable, 'sample', sampling.sample_grid), \
            mock.patch.object(adapter_layers, 'LAYOUT', torch.contiguous_format):
        yield


def build(*, size: int, kind: str = 'detection', joining: str = 'default', training: bool = False,
          code: str = OURS, variant: str = 'eager') -> Callable:
    """A ViT-Adapter-Ti on one image of noise, or a training step.

    Args:
        size: side of the image, in pixels.
        kind: 'detection', 'segmentation', 'timm' (the yardstick) or 'mask_rcnn' (a training step).
        joining: a joining's name.
        training: forward and backward.
        code: `OURS`, `REFERENCE` (see `reference_code`) or a name of `CODES`.
        variant: one of `measure.VARIANTS`.
    """
    torch.manual_seed(0)
    if kind == 'timm':
        return classification.build(name='timm', arch='tiny', batch=16, training=False,
                                    variant=variant)
    if kind == 'mask_rcnn':
        return mask_rcnn_step(joining, size)
    model = lape_mm.ViTAdapter(arch='tiny', variant=kind, joining=joining,
                               with_cp=CODES.get(code, False)).to(measure.device()).train(training)
    image = torch.randn(1, 3, size, size, device=measure.device())
    call = measure.as_variant(model, variant)
    if not training:
        return torch.no_grad()(lambda: call(image))

    def step() -> None:
        model.zero_grad()
        with reference_code() if code == REFERENCE else nullcontext():
            sum(level.float().mean() for level in call(image)).backward()
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
    model = MODELS.build(cfg.model).to(measure.device()).train()
    corners = torch.rand(10, 2) * size / 2
    sides = torch.rand(10, 2) * size / 2
    boxes = torch.cat([corners, corners + sides], dim=1)
    masks = np.zeros((10, size, size), dtype=np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
        mask[top:bottom + 1, left:right + 1] = 1
    sample = DetDataSample(metainfo=dict(
        img_shape=(size, size), ori_shape=(size, size), pad_shape=(size, size),
        batch_input_shape=(size, size), scale_factor=(1., 1.)))
    sample.gt_instances = InstanceData(bboxes=boxes.to(measure.device()), masks=BitmapMasks(
        masks, size, size), labels=(torch.arange(10) % 80).to(measure.device()))
    image = torch.randn(1, 3, size, size, device=measure.device())

    def step() -> None:
        model.zero_grad()
        loss, _ = model.parse_losses(model(image, [sample.clone()], mode='loss'))
        loss.backward()
    return step


def operators(work: Callable) -> dict[str, float]:
    """Operators of a piece of work, with the time in each itself, in ms."""
    with torch.profiler.profile() as seen:
        work()
    return {event.key: event.self_cpu_time_total / 1e3 for event in seen.key_averages()}


def profile(size: int, rows: int, rounds: int = 5) -> list[dict]:
    """Of inference: the operators that take longest, with their shares of the time."""
    work = build(size=size)
    work()
    found = [operators(work) for _ in range(rounds)]
    times = {name: statistics.median(one[name] for one in found) for name in found[0]}
    total = sum(times.values())
    made = [dict(operator=name, share=time / total)
            for name, time in sorted(times.items(), key=lambda item: -item[1])[:rows]]
    measure.print_table(f'ViT-Adapter-Ti, detection, {size} px, inference: shares of the time',
                        ['', 'share'], [[row['operator'], f'{row["share"]:.1%}'] for row in made])
    return made


def profile_training(size: int, rows: int, rounds: int = 5) -> list[dict]:
    """Of a training step: the operators that take longest in `OURS` or `REFERENCE`, in ms."""
    works = {code: build(size=size, training=True, code=code) for code in (OURS, REFERENCE)}
    found: dict[str, list[dict[str, float]]] = {code: [] for code in works}
    for number in range(rounds + 1):
        for code, work in works.items():
            if number:  # the first one warms up
                found[code].append(operators(work))
            else:
                work()
    names = dict.fromkeys(name for each in found.values() for one in each for name in one)
    made = [dict(operator=name, **{code: statistics.median(one.get(name, 0.) for one in each)
                                   for code, each in found.items()}) for name in names]
    made.sort(key=lambda row: -max(row[code] for code in works))
    total = dict(operator='all', **{code: sum(row[code] for row in made) for code in works})
    made = [total, *made[:rows]]
    measure.print_table(f'ViT-Adapter-Ti, detection, {size} px, training step: ms', ['', *works],
                        [[row['operator'], *(f'{row[code]:.1f}' for code in works)]
                         for row in made])
    return made


def inference(args: argparse.Namespace, variant: str) -> tuple[dict[str, tuple], list[dict]]:
    """Time and memory of all sizes and both structures, and their bars."""
    given = {f'{kind} {size}': dict(size=size, kind=kind, joining=args.joining, variant=variant)
             for size in args.sizes for kind in VARIANTS}
    works = {YARDSTICK: dict(size=0, kind='timm', variant=variant), **given}
    times = measure.time_all({name: build(**row) for name, row in works.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    bars = [bar(f'ViT-Adapter-Ti, detection, {size} px, inference, {variant} / {YARDSTICK}',
                ratio(times, f'detection {size}', YARDSTICK), limit)
            for size, limit in ((1024, 7.), (512, 1.3)) if size in args.sizes]
    if 1024 in args.sizes:
        bars.append(bar(f'the same at 1024 px, memory above the loaded model, {variant}, MB',
                        measure.summary(memory['detection 1024']), 300.))
    return {f'inference, {variant}': (times, 's', [YARDSTICK]),
            f'inference, peak memory, {variant}': (memory, 'MB', [])}, bars


def training(args: argparse.Namespace, variant: str) -> tuple[dict[str, tuple], list[dict]]:
    """Time and memory of a training step against the reference, and their bars."""
    size = args.train_size
    given = {code: dict(size=size, joining=args.joining, training=True, code=code,
                        variant=variant) for code in (REFERENCE, OURS, *CODES)}
    times = measure.time_all({code: build(**row) for code, row in given.items()}, args.rounds)
    memory = measure.remember_all('vit_adapter', given, args.memory_rounds, args.threads,
                                  warm_up=dict(size=64))
    bars = [bar(f'ViT-Adapter-Ti, detection, {size} px, training step{what}, {variant} / '
                f'{REFERENCE}', ratio(table, code, REFERENCE), limit)
            for what, code, table, limit in (
                ('', OURS, times, .88), (', with_cp=adapter', 'adapter checkpointed', times, .96),
                (', with_cp=adapter, peak memory', 'adapter checkpointed', memory, .58))]
    return {f'training step, {size} px, {variant}': (times, 's', [REFERENCE]),
            f'training step, {size} px, peak memory, {variant}': (memory, 'MB', [REFERENCE])}, bars


def show(tables: dict[str, tuple]) -> None:
    """Prints tables, each with its unit and the rows that ratios are taken to."""
    for title, (table, unit, bases) in tables.items():
        measure.ratio_table(title, table, bases, unit)


def main() -> int:
    """Measures, prints and writes; 1 where a bar is missed."""
    parser = measure.parser(__doc__, 'vit_adapter', rounds=7)
    parser.add_argument('--sizes', type=int, nargs='+', default=[512, 1024])
    parser.add_argument('--train-size', type=int, default=512)
    parser.add_argument('--joining', choices=JOININGS, default='default')
    parser.add_argument('--memory-rounds', type=int, default=3)
    parser.add_argument('--mask-rcnn', action='store_true', help='this alone, for each joining')
    parser.add_argument('--profile', type=int, nargs='?', const=16, metavar='ROWS',
                        help='this alone')
    measure.add_variants(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    mode = 'profile' if args.profile else 'mask_rcnn' if args.mask_rcnn else ''
    if mode and args.out == parser.get_default('out'):
        args.out = args.out.with_name(f'vit_adapter_{mode}.json')

    found: dict[str, tuple] = {}
    bars, extra = [], {}
    if args.profile:
        measure.keep_memory()
        extra['profile'] = profile(max(args.sizes), args.profile)
        extra['training_profile'] = profile_training(args.train_size, args.profile)
    elif args.mask_rcnn:
        size = max(args.sizes)
        found[f'Mask R-CNN, training step, {size} px, peak memory'] = measure.remember_all(
            'vit_adapter', {joining: dict(size=size, kind='mask_rcnn', joining=joining)
                            for joining in JOININGS}, args.memory_rounds, args.threads,
            warm_up=dict(size=128)), 'MB', ['default']
        show(found)
    else:
        for variant in args.variants:
            for part in (inference, training):
                tables, more = part(args, variant)
                found.update(tables)
                bars += more
                show(tables)
    if bars:
        measure.bar_table(bars)
    measure.write(args.out, dict(
        claim=__doc__.splitlines()[0], **measure.describe(args), **extra,
        measured={title: table for title, (table, _, _) in found.items()},
        ratios={title: {name: {base: ratio(table, name, base) for base in bases}
                        for name in table} for title, (table, _, bases) in found.items()},
        bars=bars))
    return int(not all(row['holds'] for row in bars))


if __name__ == '__main__':
    sys.exit(main())
