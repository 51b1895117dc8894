#!/usr/bin/env python
"""Images per second of a CIFAR-100 config: loader, training step and validation.

    LAPE_MM_CIFAR100=... python benchmarks/cifar100_throughput.py
    python benchmarks/cifar100_throughput.py --config configs/cct/cct-7-mpvg_1xb128-310e_cifar100.py

Measured on the machine's own device with the config's batch. The time of the full recipe is
projected from it, with the arithmetic; validation is in it, checkpoints and hooks are not.
"""
import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from quickstart import described

from lape_mm.machine import versions
from lape_mm.runs.checks.preflight import check_config, check_files
from lape_mm.runs.config import load_config, settle_loaders
from lape_mm.runs.errors import exit_status

ROOT = Path(__file__).resolve().parents[1]
TRAIN, TEST = 50_000, 10_000


def settle() -> None:
    """Waits for what the device has been given."""
    if get_device() == 'cuda':
        torch.cuda.synchronize()


def rate(batches: Iterable[dict], count: int, skipped: int,
         use: Callable[[dict], object] = lambda batch: None) -> float:
    """Images per second of ``count`` batches, after some that only warm up."""
    source = iter(batches)
    for batch in islice(source, skipped):
        use(batch)
    settle()
    start, images = time.perf_counter(), 0
    for batch in islice(source, count):
        use(batch)
        images += len(batch['inputs'])
    settle()
    return images / (time.perf_counter() - start)


def again(batch: dict) -> Iterable[dict]:
    """The same batch for ever, as a loader without cost."""
    while True:
        yield dict(inputs=batch['inputs'],
                   data_samples=[sample.clone() for sample in batch['data_samples']])


def build_loader(cfg: Config, **changes):
    """The config's train_dataloader, with changes."""
    settings = Config(dict(train_dataloader={**cfg.train_dataloader, **changes}))
    settle_loaders(settings)
    return Runner.build_dataloader(settings.train_dataloader, seed=0)


def measure(cfg: Config, args: argparse.Namespace) -> dict[str, float]:
    """Images per second of all parts, by name."""
    model = MODELS.build(cfg.model).to(get_device())
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    if args.compile:
        model.backbone.compile()
    workers = cfg.train_dataloader.num_workers
    rates = {
        'loader, in process': rate(build_loader(cfg, num_workers=0), args.batches, 1),
        f'loader, {workers} workers': rate(
            # the batches that workers have prefetched while warming up do not count
            build_loader(cfg, num_workers=workers), 4 * args.batches, 2 * workers + 1)}
    fixed = next(iter(build_loader(cfg, num_workers=0)))
    model.train()
    with torch.autocast(get_device(), torch.bfloat16, enabled=args.bf16):
        rates['training step'] = rate(again(fixed), args.steps, 3, lambda batch: model.train_step(
            batch, optim_wrapper=wrapper))
        model.eval()
        rates['validation'] = rate(again(fixed), args.steps, 1, model.val_step)
    return {name: round(value, 1) for name, value in rates.items()}


def project(rates: dict[str, float], epochs: int, workers: int) -> tuple[float, str]:
    """Hours of the full recipe, and their arithmetic."""
    step, validation = rates['training step'], rates['validation']
    loader = rates[f'loader, {workers} workers']
    parts = [(TRAIN, loader), (TRAIN, step), (TEST, validation)]
    if get_device() != 'cpu':  # the loader works while the device does; on a CPU they share cores
        parts = [(TRAIN, min(loader, step)), (TEST, validation)]
    words = ' + '.join(f'{images:,} / {speed:,}' for images, speed in parts)
    seconds = sum(images / speed for images, speed in parts)
    return round(epochs * seconds / 3600, 2), f'{epochs} x ({words}) s'


def run(args: argparse.Namespace) -> None:
    """Measures, prints and writes the record."""
    cfg = load_config(str(args.config), options=args.options)
    check_config(cfg, 'train')
    check_files(cfg, 'train')
    init_default_scope('mmpretrain')
    import mmpretrain.datasets  # noqa: F401
    rates = measure(cfg, args)
    hours, arithmetic = project(rates, cfg.train_cfg.max_epochs, cfg.train_dataloader.num_workers)
    record = dict(
        config=args.config.stem, batch=cfg.train_dataloader.batch_size, bf16=args.bf16,
        compile=args.compile, images_per_second=rates,
        projected_hours=hours, arithmetic=arithmetic,
        device=torch.cuda.get_device_name() if get_device() == 'cuda' else get_device(),
        **{**described(), **versions()})
    print(f'{record["config"]}, batch {record["batch"]}, on {record["device"]} ({record["cpu"]}, '
          f'{record["cores"]} cores, load {record["load"]})')
    for name, value in rates.items():
        print(f'measured   {name:<20} {value:>10,.1f} images/s')
    print(f'projected  full recipe          {hours:>10,.1f} h = {arithmetic}')
    args.out.write_text(json.dumps(record, indent=1) + '\n')


def main() -> int:
    """Parses the command line; 2 where data or config are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--config', type=Path, default=ROOT / 'configs/vit_lite/'
                        'vit-lite-7-mpvg_1xb128-310e_cifar100.py')
    parser.add_argument('--batches', type=int, default=24, help='of each loader')
    parser.add_argument('--steps', type=int, default=20, help='of training and of validation')
    parser.add_argument('--workers', type=int, help='in place of the config\'s')
    parser.add_argument('--bf16', action='store_true', help='step in bfloat16')
    parser.add_argument('--compile', action='store_true', help='torch.compile of the backbone')
    parser.add_argument('--out', type=Path, default=ROOT / 'benchmarks/cifar100_throughput.json')
    args = parser.parse_args()
    args.options = {} if args.workers is None else {'train_dataloader.num_workers': args.workers}
    return exit_status(lambda: run(args))


if __name__ == '__main__':
    sys.exit(main())
