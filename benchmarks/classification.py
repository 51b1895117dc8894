#!/usr/bin/env python
"""DeiT with every joining against timm's and mmpretrain's.

    python benchmarks/classification.py                  # DeiT-Ti, a batch of 16, 224 px
    python benchmarks/classification.py --arch small
    python benchmarks/classification.py --batch 256      # on a GPU, in bfloat16

Inference, a training step (forward, cross entropy, backward, AdamW) and its peak memory, each
with a head of 1000 classes. PVG and MPVG average the tokens and have no class token. Their base is
'default averaged', which has the same tokens and does the same work in the last layer.
"""
import sys
from collections.abc import Callable

import measure
import torch
import torch.nn.functional as F
from measure import bar, ratios
from torch import nn

JOININGS = ('default', 'share', 'unshare', 'lape', 'pvg', 'mpvg')
PEERS = ('timm', 'mmpretrain')
AVERAGED = 'default averaged'
CHANNELS = {'tiny': 192, 'small': 384, 'base': 768}
PX, CLASSES = 224, 1000
# what is measured, the row, its base, and the limit of the ratio
LIMITS = [
    ('inference', 'default', 'timm', 1.),
    ('inference', 'mpvg folded', 'timm', 1.),
    ('inference', 'lape folded', 'default', 1.01),
    ('inference', 'mpvg folded', AVERAGED, 1.01),
    ('training step', 'lape', 'default', 1.01),
    ('training step', 'mpvg', AVERAGED, 1.01),
    ('peak memory', 'lape', 'default', 1.01),
    ('peak memory', 'mpvg', AVERAGED, 1.01)]


def build_model(name: str, arch: str) -> nn.Module:
    """The classifier of a row: timm's, or mmpretrain's with its own backbone or ours."""
    if name == 'timm':
        import timm
        return timm.create_model(f'deit_{arch}_patch16_{PX}', num_classes=CLASSES)
    import mmpretrain.models  # noqa: F401
    from mmpretrain.registry import MODELS

    import lape_mm
    joining, *extra = name.split()
    backbone = dict(type='mmpretrain.VisionTransformer', arch=f'deit-{arch}', img_size=PX,
                    patch_size=16) if joining == 'mmpretrain' else dict(
        type='lape_mm.DeiT', arch=arch, img_size=PX, joining=joining,
        **(dict(class_token=False) if 'averaged' in extra else {}))
    model = MODELS.build(dict(
        type='mmpretrain.ImageClassifier', backbone=backbone,
        head=dict(type='mmpretrain.LinearClsHead', num_classes=CLASSES,
                  in_channels=CHANNELS[arch])))
    return lape_mm.fold(model.eval(), PX) if 'folded' in extra else model


def build(*, name: str, arch: str, batch: int, training: bool) -> Callable:
    """A call of a row's model on a batch of noise, or its training step."""
    torch.manual_seed(0)
    model = build_model(name, arch).to(measure.device()).train(training)
    images = torch.randn(batch, 3, PX, PX, device=measure.device())
    labels = torch.arange(batch, device=measure.device()) % CLASSES
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        with measure.autocast():
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    return step if training else measure.forward(model, images)


def names(training: bool) -> list[str]:
    """The rows of a table."""
    ours = [*JOININGS[:1], AVERAGED, *JOININGS[1:]]
    return [*PEERS, *ours] if training else [
        *PEERS, *(f'{name}{fold}' for name in ours for fold in ('', ' folded'))]


def base_of(name: str) -> str:
    """The row that a row is compared with: timm's, or ours with as many tokens."""
    if name in ('default', AVERAGED, *PEERS):
        return 'timm'
    return AVERAGED if name.split()[0] in ('pvg', 'mpvg') or 'averaged' in name else 'default'


def main() -> int:
    """Measures, prints and writes; 1 if a figure misses its limit."""
    parser = measure.parser(__doc__, rounds=9)
    parser.add_argument('--arch', choices=CHANNELS, default='tiny')
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--memory-rounds', type=int, default=3)
    parser.add_argument('--pair-seconds', type=float, default=120, help='for each ratio with a '
                        'limit, which measures its two rows alone')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    measured, bars = {}, []
    works = {}
    for training, kind in ((False, 'inference'), (True, 'training step')):
        given = {name: dict(name=name, arch=args.arch, batch=args.batch, training=training)
                 for name in names(training)}
        works[kind] = {name: build(**row) for name, row in given.items()}
        measured[f'{kind}, s'] = measure.time_all(works[kind], args.rounds)
    memory = measure.remember_all('classification', given, args.memory_rounds, args.threads,
                                  warm_up=dict(batch=1))
    measured['peak memory of a training step, MB'] = memory
    for kind, name, base, limit in LIMITS:
        what = f'DeiT-{args.arch}, {kind}: {name} / {base}'
        bars.append(bar(what, ratios(memory, name, base), limit) if kind == 'peak memory' else
                    measure.time_pair(what, works[kind], name, base, limit, args.pair_seconds))
    return measure.write(args, f'classification_{args.arch}', dict(
        claim=f'DeiT-{args.arch}, a batch of {args.batch}', measured=measured,
        bases={name: base_of(name) for name in names(False) if name != 'timm'}, bars=bars))


if __name__ == '__main__':
    sys.exit(main())
