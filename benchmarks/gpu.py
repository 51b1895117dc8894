#!/usr/bin/env python
"""DeiT and ViT-Adapter on a GPU, in bfloat16: images a second and peak memory.

    python benchmarks/gpu.py                        # all tables, eager and compiled
    python benchmarks/gpu.py --parts deit

DeiT-Ti with each joining against timm's, on batches of 256 at 224 px. ViT-Adapter-Ti with each
joining, and with the official arithmetic (vit_adapter.py), on 16 images of 512 px and on 4 of
1024 px. A training step is forward, loss, backward and, for DeiT, AdamW.
"""
import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import classification
import measure
import torch
import torch.nn.functional as F
from measure import bar, ratios
from vit_adapter import REFERENCE, reference_code

import lape_mm

DEIT = ('timm', 'default', 'default averaged', 'lape', 'pvg', 'mpvg')
ADAPTER = ('default', 'lape', 'pvg', 'mpvg', REFERENCE)
PARTS = {'deit': (DEIT, 224, 256), 'adapter 512': (ADAPTER, 512, 16),
         'adapter 1024': (ADAPTER, 1024, 4)}


def base_of(part: str, name: str) -> str:
    """The row that a row is compared with."""
    if part == 'deit':
        return classification.base_of(name)
    return REFERENCE if name in ('default', REFERENCE) else 'default'


def build(*, part: str, name: str, training: bool, compiled: bool) -> Callable:
    """One call of a row's model, or one training step, on images of noise."""
    _, px, batch = PARTS[part]
    torch.manual_seed(0)
    model = classification.build_model(name, 'tiny') if part == 'deit' else lape_mm.ViTAdapter(
        arch='tiny', joining='default' if name == REFERENCE else name)
    model = model.cuda().train(training)
    images = torch.randn(batch, 3, px, px, device='cuda')
    labels = torch.arange(batch, device='cuda') % classification.CLASSES
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    call = torch.compile(model) if compiled else model

    def run():
        with torch.autocast('cuda', torch.bfloat16), \
                reference_code() if name == REFERENCE else nullcontext():
            return call(images)

    def step() -> None:
        found = run()
        (F.cross_entropy(found.float(), labels) if part == 'deit' else
         sum(level.float().mean() for level in found)).backward()
        if part == 'deit':
            optimizer.step()
        optimizer.zero_grad()
    return step if training else torch.no_grad()(run)


def compile_all(rows: list[dict]) -> None:
    """Compiles all rows at a time, each in a process of its own that fills inductor's cache."""
    children = [subprocess.Popen([sys.executable, __file__, '--compile', json.dumps(row)],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for row in rows]
    for child in children:
        child.wait()


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS))
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--eager', action='store_true', help='without torch.compile')
    parser.add_argument('--out', type=measure.Path, default=measure.ROOT / 'benchmarks/gpu.json')
    parser.add_argument('--compile', help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.threads = torch.get_num_threads()
    if args.compile:
        build(**json.loads(args.compile))()
        torch.cuda.synchronize()
        return 0
    measured, bars, bases = {}, [], {}
    for compiled in (False, True)[:1 if args.eager else 2]:
        for part in args.parts:
            names, px, batch = PARTS[part]
            kinds = [(kind, [dict(part=part, name=name, training=kind == 'training',
                                  compiled=compiled) for name in names
                             if not (compiled and name == REFERENCE)])
                     for kind in ('inference', 'training')]
            if compiled:
                compile_all([row for _, rows in kinds for row in rows])
            for kind, rows in kinds:
                works, memory = {}, {}
                for row in rows:
                    works[row['name']] = build(**row)
                    works[row['name']]()
                    memory[row['name']] = [measure.peak_of(works[row['name']]) / 1e6]
                times = measure.time_all(works, args.rounds, calls=1)
                how = 'compiled' if compiled else 'eager'
                title = f'{part}, {kind}, {how}'
                column = f'{kind}, {how}'
                measured[f'{column}, images/s'] = measured.get(f'{column}, images/s', {}) | {
                    f'{part} {name}': [batch / one for one in figures]
                    for name, figures in times.items()}
                measured[f'{column}, MB'] = measured.get(f'{column}, MB', {}) | {
                    f'{part} {name}': found for name, found in memory.items()}
                for name in works:
                    base = base_of(part, name)
                    bases[f'{part} {name}'] = f'{part} {base}'
                    if base in works and name != base:
                        bars.append(bar(f'{title}, time: {name} / {base}',
                                        ratios(times, name, base), 1.02))
                print(title, {name: round(batch / min(found)) for name, found in times.items()},
                      {name: round(one[0]) for name, one in memory.items()}, flush=True)
                works.clear()
                torch.cuda.empty_cache()
    return measure.write(args, dict(claim='bfloat16 on a GPU', measured=measured, bases=bases,
                                    bars=bars))


if __name__ == '__main__':
    sys.exit(main())
