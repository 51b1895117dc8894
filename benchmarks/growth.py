#!/usr/bin/env python
"""Growth: latency and memory of DeiT-Ti and ViT-Adapter-Ti over the image's size.

    python benchmarks/growth.py                     # 224 to 2048 px, and docs/growth.svg

One square image, inference. The exponents are of pixels: figure ~ (height x width)^k, fitted over
all sizes, and between 512 and 1024 px alone.
"""
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import measure
import torch
import vit_adapter
from measure import ROOT, bar, summary

import lape_mm

SIZES = (224, 384, 512, 768, 1024, 1536, 2048)
MODELS = {'DeiT-Ti': 'deit', 'ViT-Adapter-Ti, detection': 'detection',
          'ViT-Adapter-Ti, segmentation': 'segmentation'}
STEP = (512, 1024)


def build(*, kind: str, size: int, variant: str = 'eager') -> Callable:
    """A call of the model on one image; DeiT is the one of that size, so that PE is not resized."""
    if kind != 'deit':
        return vit_adapter.build(kind=kind, size=size, variant=variant)
    torch.manual_seed(0)
    call = measure.as_variant(
        lape_mm.DeiT(arch='tiny', img_size=size).to(measure.device()).eval(), variant)
    image = torch.randn(1, 3, size, size, device=measure.device())
    return torch.no_grad()(lambda: call(image))


def between(small: list[float], large: list[float], sizes: tuple[int, int] = STEP) -> dict:
    """`summary` of the exponents from one size to another, one a round.

    Args:
        small, large: figures of both, round by round.
        sizes: sides, in pixels.
    """
    pixels = math.log((sizes[1] / sizes[0]) ** 2)
    return summary([math.log(after / before) / pixels for before, after in zip(small, large)])


def plot(path: Path, panels: Mapping[str, Mapping[str, Mapping[int, float]]], title: str) -> None:
    """Draws the figures of each panel (its label -> model -> side -> figure) to an SVG file."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    pyplot.rcParams['svg.hashsalt'] = 'lape_mm'  # the same figures make the same file
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.8), squeeze=False)
    for axis, (label, models) in zip(axes[0], panels.items()):
        for name, values in models.items():
            k = measure.exponent([size ** 2 for size in values], list(values.values()))
            axis.loglog(list(values), list(values.values()), marker='o', label=f'{name}: {k:.2f}')
        sizes = sorted({size for values in models.values() for size in values})
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axis.minorticks_off()
        axis.set(xlabel='side of the image, px', ylabel=label)
        axis.grid(alpha=.3)
        axis.legend(title='exponent in pixels', fontsize='small')
    figure.suptitle(title, fontsize='medium')
    figure.tight_layout()
    figure.savefig(path, metadata=dict(Date=None))
    print(f'written to {path}')


def grown(found: Mapping[tuple[str, int], list[float]]) -> dict[str, dict[int, float]]:
    """Medians by model and side."""
    return {name: {size: median(figures) for (of, size), figures in found.items() if of == name}
            for name in dict.fromkeys(name for name, _ in found)}


def main() -> int:
    """Measures, prints, draws and writes; 1 where the bar is missed."""
    parser = measure.parser(__doc__, 'growth', rounds=5)
    parser.add_argument('--sizes', type=int, nargs='+', default=list(SIZES))
    parser.add_argument('--memory-rounds', type=int, default=1)
    parser.add_argument('--plot', type=Path, default=ROOT / 'docs/growth.svg')
    measure.add_variants(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    record, bars, panels = {}, [], {}
    for variant in args.variants:
        given = {(name, size): dict(kind=kind, size=size, variant=variant)
                 for size in args.sizes for name, kind in MODELS.items()}
        tables = {
            's': measure.time_all({key: build(**row) for key, row in given.items()}, args.rounds,
                                  calls=1),
            'MB': measure.remember_all('growth', given, args.memory_rounds, args.threads,
                                       warm_up=dict(size=64))}
        for unit, found in tables.items():
            curves = panels[f'{unit}, {variant}'] = grown(found)
            fitted = {name: measure.exponent([size ** 2 for size in values], list(values.values()))
                      for name, values in curves.items()} if len(args.sizes) > 1 else {}
            steps = {name: between(*(found[name, size] for size in STEP)) for name in MODELS} \
                if set(STEP) <= set(args.sizes) else {}
            measure.print_table(
                f'one image, inference, {unit}, {variant}',
                ['', *map(str, args.sizes), 'exponent', '512 to 1024 px'],
                [[name, *(f'{values[size]:.3g}' for size in args.sizes),
                  f'{fitted[name]:.3f}' if fitted else '',
                  measure.spread(steps[name]) if steps else ''] for name, values in curves.items()])
            record[f'{unit}, {variant}'] = dict(
                measured={name: {size: found[name, size] for size in args.sizes}
                          for name in MODELS}, exponent=fitted, exponent_512_to_1024=steps)
            if unit == 's' and steps:
                bars.append(bar('exponent of ViT-Adapter-Ti, detection, from 512 to 1024 px, '
                                f'{variant}', steps['ViT-Adapter-Ti, detection'], 1.22))
    if bars:
        measure.bar_table(bars)
    described = measure.describe(args)
    if len(args.sizes) > 1:
        plot(args.plot, panels, f'{described["device"]} ({described["cpu"]}), '
             f'{described["threads"]} threads: one image, inference')
    measure.write(args.out, dict(claim=__doc__.splitlines()[0], **described, **record, bars=bars))
    return int(not all(row['holds'] for row in bars))


if __name__ == '__main__':
    sys.exit(main())
