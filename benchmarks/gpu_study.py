#!/usr/bin/env python
"""Trains all runs of a CIFAR-100 study side by side on one GPU.

    python benchmarks/gpu_study.py cifar100_full                 # 18 runs in minutes
    python benchmarks/gpu_study.py cifar100_table2 --minutes 9   # again to continue

Model, pipeline, optimizer and schedule are the config's. The images lie on the device and are
augmented there (device_augment.py). Each training step is compiled and captured as a CUDA graph;
the graphs of all runs replay on streams of their own. Runs of one seed start from the same random
numbers and see the same batches. Records go to benchmarks/ledger.
"""
import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import studies
import torch
import torch.nn.functional as F
from device_augment import split_pipeline
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS, init_default_scope
from study_cells import STUDIES
from torch import Tensor

from lape_mm.machine import commit, machine, versions
from lape_mm.runs.config import load_config
from lape_mm.runs.engine.record_hook import fingerprint

CHUNK = 4096  # images that are augmented at a time


class Images:
    """A data set on the device, augmented epoch by epoch.

    Args:
        cfg: the config of any run; its dataloaders and augmentations are used.
        device: where the images are kept.
    """

    def __init__(self, cfg: Config, device: str):
        self.device, self.classes = device, cfg.model.head.num_classes
        self.batch = cfg.train_dataloader.batch_size
        self.mixes = [dict(mix) for mix in (cfg.model.get('train_cfg') or {}).get('augments', [])]
        self.smooth = cfg.model.head.loss.get('label_smooth_val', 0.)
        self.mean, self.std = (torch.tensor(cfg.model.data_preprocessor[key], device=device)
                               .view(3, 1, 1) for key in ('mean', 'std'))
        _, self.steps = split_pipeline(cfg.train_dataloader.dataset.pipeline)
        self.train, self.labels = self._read(cfg.train_dataloader.dataset)
        self.test, self.test_labels = self._read(cfg.val_dataloader.dataset)
        self.batches = len(self.train) // self.batch

    def _read(self, settings) -> tuple[Tensor, Tensor]:
        dataset = DATASETS.build(dict(settings, pipeline=[]))
        dataset.full_init()
        entries = [dataset[index] for index in range(len(dataset))]
        images = torch.from_numpy(np.stack([one['img'] for one in entries])).permute(0, 3, 1, 2)
        labels = torch.tensor([int(np.ravel(one['gt_label'])[0]) for one in entries])
        return images.contiguous().to(self.device), labels.to(self.device)

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), 0 to 255, to the network's input."""
        return (images.float() - self.mean) / self.std

    @torch.no_grad()
    def epoch(self, seed: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of an epoch: (b, B, 3, H, W) images and (b, B, classes) soft labels."""
        rng = np.random.default_rng((seed, number))
        order = rng.permutation(len(self.train))[:self.batches * self.batch]
        each = max(1, CHUNK // self.batch) * self.batch
        for start in range(0, len(order), each):
            index = torch.from_numpy(order[start:start + each]).to(self.device)
            images = self.train[index]
            for step in self.steps:
                images = step(images, rng)
            labels = F.one_hot(self.labels[index], self.classes).float()
            images, labels = (part.view(-1, self.batch, *part.shape[1:])
                              for part in (self.normalise(images), labels))
            if self.mixes:
                images, labels = self._mix(images, labels, rng)
            yield images, labels * (1 - self.smooth) + self.smooth / self.classes

    def _mix(self, images: Tensor, labels: Tensor, rng) -> tuple[Tensor, Tensor]:
        """Mixup or CutMix of each batch, as mmpretrain's RandomBatchAugment."""
        count, size = images.shape[:2]
        side = images.shape[-1]
        share = torch.ones(count, 1, 1, side, side)  # of the image itself, at each pixel
        for batch in range(count):
            mix = self.mixes[rng.integers(len(self.mixes))]
            part = rng.beta(mix['alpha'], mix['alpha'])
            if mix['type'] == 'Mixup':
                share[batch] = part
            else:
                cut, (y, x) = int(side * np.sqrt(1 - part)), rng.integers(side, size=2)
                top, left = max(0, y - cut // 2), max(0, x - cut // 2)
                share[batch, ..., top:y + cut // 2, left:x + cut // 2] = 0
        share = share.to(self.device)
        orders = np.stack([rng.permutation(size) for _ in range(count)])
        others = torch.from_numpy(orders).to(self.device)
        rows = torch.arange(count, device=self.device)[:, None]
        weight = share.mean((-2, -1, -3))[..., None]
        return (images * share + images[rows, others] * (1 - share),
                labels * weight + labels[rows, others] * (1 - weight))


class Run:
    """One model in training.

    Args:
        cfg: its config.
        seed: of its first weights.
        inputs, labels: buffers (b, B, ...) of its batches, shared by all runs of the seed.
        images: for the number of batches and the test.
        compiled: whether torch.compile compiles the step.
    """

    def __init__(self, cfg: Config, seed: int, inputs: Tensor, labels: Tensor, images: Images,
                 compiled: bool):
        torch.manual_seed(seed)
        model = MODELS.build(cfg.model)
        model.init_weights()
        self.model = model.to(images.device).train()
        self.inputs, self.labels, self.images = inputs, labels, images
        self.rates = torch.tensor(schedule(cfg, images.batches)).to(images.device)
        self.step_number = torch.zeros((), dtype=torch.long, device=images.device)
        self.loss = torch.zeros((), device=images.device)
        self.optimizer = self._optimizer(cfg)
        self.forward = torch.compile(self._loss) if compiled else self._loss
        self.stream = torch.cuda.Stream() if images.device == 'cuda' else None
        self.graph = None

    def logits(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, classes)."""
        with torch.autocast(self.images.device, torch.bfloat16):
            return self.model.head.fc(self.model.backbone(x)[-1]).float()

    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return -(labels * self.logits(x).log_softmax(-1)).sum(-1).mean()

    def _optimizer(self, cfg: Config) -> torch.optim.Optimizer:
        """The config's AdamW, with one group for each weight decay."""
        made = build_optim_wrapper(self.model, cfg.optim_wrapper).optimizer
        groups: dict[float, list] = {}
        for group in made.param_groups:
            groups.setdefault(group['weight_decay'], []).extend(group['params'])
        settings = cfg.optim_wrapper.optimizer
        cuda = self.images.device == 'cuda'
        return torch.optim.AdamW(
            [dict(params=params, weight_decay=decay) for decay, params in groups.items()],
            lr=torch.tensor(settings.lr, device=self.images.device), betas=settings.betas,
            eps=settings.eps, fused=cuda, capturable=cuda)

    def step(self) -> None:
        """One training step on the batch of the step's number."""
        place = self.step_number % len(self.inputs)
        x, labels = (buffer.index_select(0, place.view(1))[0]
                     for buffer in (self.inputs, self.labels))
        for group in self.optimizer.param_groups:
            group['lr'].copy_(self.rates.index_select(0, self.step_number.view(1))[0])
        loss = self.forward(x, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss += loss.detach()
        self.step_number += 1

    def capture(self) -> None:
        """Makes a CUDA graph of the step; weights and optimizer stay as they were."""
        state = self.state()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.step()
        torch.cuda.synchronize()
        self.restore(state)

    def state(self) -> dict:
        """Copies of all that training changes; an empty optimizer before the first step."""
        def copied(state):
            return {key: value.clone() for key, value in state.items()}
        return dict(model=copied(self.model.state_dict()), step=self.step_number.clone(),
                    optimizer=[copied(self.optimizer.state[p]) for p in self.parameters()],
                    loss=self.loss.clone())

    def parameters(self) -> list[Tensor]:
        """The trained parameters, in the optimizer's order."""
        return [p for group in self.optimizer.param_groups for p in group['params']]

    @torch.no_grad()
    def restore(self, state: dict) -> None:
        """Writes a `state` into the tensors in use, which a captured graph goes on reading."""
        self.model.load_state_dict(state['model'])
        for p, values in zip(self.parameters(), state['optimizer']):
            for key, tensor in self.optimizer.state[p].items():
                tensor.copy_(values[key]) if values else tensor.zero_()
        self.step_number.copy_(state['step'])
        self.loss.copy_(state['loss'])

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Top-1 and top-5 on the test images, in per cent."""
        self.model.eval()
        found = torch.cat([self.logits(self.images.normalise(part)).topk(5).indices
                           for part in self.images.test.split(1000)])
        self.model.train()
        hits = found == self.images.test_labels[:, None]
        return {f'accuracy/top{k}': 100 * hits[:, :k].any(1).float().mean().item() for k in (1, 5)}


def schedule(cfg: Config, batches: int) -> list[float]:
    """The learning rate of every iteration of a run."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=cfg.optim_wrapper.optimizer.lr)
    made = []
    for one in cfg.param_scheduler:
        settings = {key: value for key, value in one.items() if key != 'convert_to_iter_based'}
        kind = PARAM_SCHEDULERS.get(settings.pop('type'))
        made.append(kind.build_iter_from_epoch(optimizer, epoch_length=batches, **settings))
    rates = []
    for _ in range(cfg.train_cfg.max_epochs * batches):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in made:
            scheduler.step()
    return rates


def train(study: str, args: argparse.Namespace) -> list[dict]:
    """Trains all runs of a study, or continues them, and returns their records."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    init_default_scope('mmpretrain')
    import mmpretrain.datasets
    import mmpretrain.models  # noqa: F401
    runs = studies.Runs(Path('work_dirs/studies'))
    names = [(cell, seed) for seed in args.seeds or STUDIES[study].seeds
             for cell in STUDIES[study].cells]
    cfgs = [load_config(f'configs/{STUDIES[study].config}.py', options=runs.options(study, *one),
                        joining=STUDIES[study].cells[one[0]].joining) for one in names]
    fingerprints = [fingerprint(cfg) for cfg in cfgs]  # mmpretrain changes a config that it builds
    images = Images(cfgs[0], device)
    epochs, interval = cfgs[0].train_cfg.max_epochs, cfgs[0].train_cfg.val_interval
    buffers = {seed: (torch.zeros(images.batches, images.batch, *images.train.shape[1:],
                                  device=device, dtype=torch.bfloat16),
                      torch.zeros(images.batches, images.batch, images.classes, device=device))
               for _, seed in names}
    made = [Run(cfg, seed, *buffers[seed], images, not args.eager)
            for cfg, (_, seed) in zip(cfgs, names)]
    records = [dict(config=f'configs/{STUDIES[study].config}.py', seed=seed,
                    overrides={'--joining': str(STUDIES[study].cells[cell].joining),
                               **runs.options(study, cell, seed)},
                    fingerprint=made_of, commit=args.commit or commit(),
                    versions=versions(), machine=dict(machine(), processes=1),
                    data=STUDIES[study].data, loop='gpu_study.py', started=str(date.today()),
                    seconds=0., cpu_seconds=0., resumed=0, finished=False, metrics=[])
               for made_of, (cell, seed) in zip(fingerprints, names)]
    start, first, spent = time.monotonic(), 0, 0.
    if device == 'cuda':
        for run in made:
            run.capture()
        print(f'{len(made)} runs captured in {time.monotonic() - start:.0f} s', flush=True)
    saved = args.state and Path(args.state)
    if saved and saved.exists():
        found = torch.load(saved, map_location=device)
        first, spent, records = found['epoch'], found['seconds'], found['records']
        for run, state in zip(made, found['runs']):
            run.restore(state)
        for record in records:
            record['resumed'] += 1
    torch.manual_seed(1000 + first)  # of the dropout
    for epoch in range(first, epochs):
        for seed, (inputs, labels) in buffers.items():
            place = 0
            for part, targets in images.epoch(seed, epoch):
                inputs[place:place + len(part)], labels[place:place + len(part)] = part, targets
                place += len(part)
        if device == 'cuda':
            torch.cuda.synchronize()
            for _ in range(images.batches):
                for run in made:
                    with torch.cuda.stream(run.stream):
                        run.graph.replay()
            torch.cuda.synchronize()
        else:
            for run in made:
                for _ in range(args.cpu_batches):
                    run.step()
        now = spent + time.monotonic() - start
        if (epoch + 1) % interval == 0 or epoch + 1 == epochs:
            for record, run in zip(records, made):
                record['metrics'].append(dict(epoch=epoch + 1, loss=run.loss.item() / (
                    interval * images.batches), **run.test()))
                record.update(seconds=round(now, 1), cpu_seconds=round(now / len(made), 1),
                              finished=epoch + 1 == epochs)
                run.loss.zero_()
            args.out.mkdir(parents=True, exist_ok=True)
            for (cell, seed), record in zip(names, records):
                path = args.out / f'{studies.name_of(cell, seed)}.json'
                path.write_text(json.dumps(record, indent=1) + '\n')
            print(f'epoch {epoch + 1} of {epochs}, {now:.0f} s: ' + ', '.join(
                f'{cell} {seed} {record["metrics"][-1]["accuracy/top1"]:.2f}'
                for (cell, seed), record in zip(names, records)), flush=True)
        if time.monotonic() - start > 60 * args.minutes and epoch + 1 < epochs:
            print(f'{args.minutes:g} minutes are over: the same command continues', flush=True)
            epochs = 0
            break
    if saved and epochs == 0:
        torch.save(dict(epoch=epoch + 1, seconds=now, records=records,
                        runs=[run.state() for run in made]), saved)
    return records


def main() -> int:
    """Trains a study's runs and writes their records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('study', choices=[name for name in STUDIES if name.startswith('cifar100')])
    parser.add_argument('--seeds', type=int, nargs='+')
    parser.add_argument('--minutes', type=float, default=1e6, help='stop after these')
    parser.add_argument('--state', help='file to stop into and to continue from')
    parser.add_argument('--out', type=Path, help='folder of the records')
    parser.add_argument('--commit', help='to write into the records, where there is no repository')
    parser.add_argument('--eager', action='store_true', help='without torch.compile')
    parser.add_argument('--cpu-batches', type=int, default=2, help='an epoch, to try it out')
    args = parser.parse_args()
    args.out = (args.out or studies.LEDGER / args.study).resolve()
    os.chdir(studies.ROOT)
    train(args.study, args)
    return 0


if __name__ == '__main__':
    sys.exit(main())
