#!/usr/bin/env python
"""DeiT with all joinings, folded and not, against timm's and mmpretrain's.

    python benchmarks/classification.py                  # DeiT-Ti, a batch of 16, 224 px
    python benchmarks/classification.py --arch small

Inference, a training step (forward, cross entropy, backward, AdamW) and its peak memory, each
with a head of 1000 classes. PVG and MPVG average the tokens and have no class token: what has as
many tokens as they, and computes as much of the last layer, is 'default averaged'.
"""
import sys
from collections.abc import Callable

import measure
import torch
import torch.nn.functional as F
from measure import bar, ratio
from torch import nn

JOININGS = ('default', 'share', 'unshare', 'lape', 'pvg', 'mpvg')
PEERS = ('timm', 'mmpretrain')
AVERAGED = 'default averaged'
CHANNELS = {'tiny': 192, 'small': 384, 'base': 768}
PX, CLASSES = 224, 1000


def build_model(name: str, arch: str) -> nn.Module:
    """A classifier by its name in the tables; our own and mmpretrain's as mmpretrain has them."""
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


def build(*, name: str, arch: str, batch: int, training: bool, variant: str = 'eager') -> Callable:
    """The model of that name, and a call of it on a batch of noise, or a training step."""
    torch.manual_seed(0)
    model = build_model(name, arch).to(measure.device()).train(training)
    images = torch.randn(batch, 3, PX, PX, device=measure.device())
    labels = torch.arange(batch, device=measure.device()) % CLASSES
    call = measure.as_variant(model, variant)
    if not training:
        return torch.no_grad()(lambda: call(images))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(call(images).float(), labels).backward()
        optimizer.step()
    return step


def names(training: bool) -> list[str]:
    """The rows of a table."""
    ours = [*JOININGS[:1], AVERAGED, *JOININGS[1:]]
    return [*PEERS, *ours] if training else [
        *PEERS, *(f'{name}{fold}' for name in ours for fold in ('', ' folded'))]


def same_tokens(name: str) -> str:
    """The row of ours that a joining is compared with."""
    return AVERAGED if name.split()[0] in ('pvg', 'mpvg') or 'averaged' in name else 'default'


def pairs(arch: str, variant: str) -> dict[str, tuple[str, str, str, float]]:
    """The bars: title -> what is measured, the row, the row it is compared with, the limit."""
    rows = [('inference', 'default', 'timm', 1.), ('inference', 'mpvg folded', 'timm', 1.)]
    rows += [('inference', f'{name} folded', same_tokens(name), 1.01) for name in ('lape', 'mpvg')]
    rows += [(kind, name, same_tokens(name), 1.01) for kind in ('training step', 'peak memory')
             for name in ('lape', 'mpvg')]
    return {f'DeiT-{arch}, {kind}, {variant}: {name} / {base}': (kind, name, base, limit)
            for kind, name, base, limit in rows}


def main() -> int:
    """Measures, prints and writes; 1 where a bar is missed."""
    parser = measure.parser(__doc__, 'classification', rounds=9)
    parser.add_argument('--arch', choices=CHANNELS, default='tiny')
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--memory-rounds', type=int, default=3)
    parser.add_argument('--pair-rounds', type=int, default=150, help='for each bar, of its two '
                        'rows alone: a ratio of 1 %% takes many')
    measure.add_variants(parser)
    args = parser.parse_args()
    if args.out == parser.get_default('out'):
        args.out = args.out.with_name(f'classification_{args.arch}.json')
    torch.set_num_threads(args.threads)

    found, bars = {}, []
    for variant in args.variants:
        tables, works = {}, {}
        for training, kind in ((False, 'inference'), (True, 'training step')):
            given = {name: dict(name=name, arch=args.arch, batch=args.batch, training=training,
                                variant=variant) for name in names(training)}
            works[kind] = {name: build(**row) for name, row in given.items()}
            tables[kind] = measure.time_all(works[kind], args.rounds), 's'
            if training:
                tables['peak memory'] = measure.remember_all(
                    'classification', given, args.memory_rounds, args.threads,
                    warm_up=dict(batch=1)), 'MB'
        for kind, (table, unit) in tables.items():
            found[f'{kind}, {variant}'] = table
            measure.ratio_table(f'DeiT-{args.arch}, {kind}, batch {args.batch}, {variant}', table,
                                ['timm', 'default', AVERAGED], unit)
        for title, (kind, name, base, limit) in pairs(args.arch, variant).items():
            pair = tables['peak memory'][0] if kind == 'peak memory' else measure.time_all(
                {one: works[kind][one] for one in (name, base)}, args.pair_rounds, calls=1)
            bars.append(bar(title, ratio(pair, name, base), limit))
    measure.bar_table(bars)
    measure.write(args.out, dict(
        claim=__doc__.splitlines()[0], **measure.describe(args), measured=found,
        ratios={kind: {name: {base: ratio(table, name, base) for base in
                              ('timm', same_tokens(name))} for name in table}
                for kind, table in found.items()}, bars=bars))
    return int(not all(row['holds'] for row in bars))


if __name__ == '__main__':
    sys.exit(main())
