"""Sound checkpoints, and what becomes of them when bytes or entries change."""
from __future__ import annotations

import io
import random
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator

import numpy as np
import torch
from crafted import saved
from mmengine.logging import MessageHub


def sound() -> dict[str, bytes]:
    """Name and content of files that have to be read: what people and runs of ours write."""
    from safetensors.torch import save
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    hub = MessageHub('fuzz')
    for value in (1.5, .5, float('nan')):  # a loss that was none is no weight
        hub.update_scalar('train/loss', value)
    hub.update_info('best', np.float64(.25))
    config = 'import os\nos.mkdir("ran")'  # which mmengine would run
    hub.update_info('cfg', config)
    table = torch.randn(4, 6)
    weights = {**model.state_dict(), 'half': table.half(), 'bf16': table.bfloat16(),
               'double': table.double(), 'view': table[1:, ::2], 'tied': table, 'again': table,
               'wide': table[:1].expand(1000, 6), 'empty': torch.empty(0, 3), 'mask': table > 0,
               'turned': table.T, 'index': torch.arange(5), 'scalar': torch.tensor(2.)}
    run = {
        'meta': {'epoch': 3, 'iter': 9, 'cfg': config, 'config': config,
                 'dataset_meta': {'classes': ('a', 'b'), 'palette': None}},
        'state_dict': OrderedDict(weights), 'message_hub': hub.state_dict(),
        'optimizer': optimizer.state_dict(),
        'ema_state_dict': {'steps': torch.tensor(4), **weights},
        'param_schedulers': [{'milestones': Counter([3, 8]), 'last_step': 3, '_value': {1, 2}}],
        'random': (np.random.RandomState(0).get_state(), random.Random(0).getstate()),
        'size': model[0].weight.shape, 'dtype': torch.float32, 'bytes': b'\x00\xff', 'none': b'',
        'array': np.zeros((2, 0)), 'parameter': model[0].weight}
    return {'run.pth': saved(run), 'weights.pt': saved(model.state_dict()),
            'old.pth': saved({'model': model.state_dict(), 'epoch': 3},
                             _use_new_zipfile_serialization=False),
            'weights.safetensors': save({name: value.contiguous().clone()
                                         for name, value in weights.items()})}


def mutants(rng: random.Random, files: dict[str, bytes]) -> Iterator[tuple[str, str, bytes]]:
    """Kind, name and content of ever more files."""
    while True:
        name = rng.choice(list(files))
        content = files[name]
        kinds = [flipped, cut]
        if content.startswith(b'PK'):
            kinds.append(repacked)
        kind = rng.choice(kinds)
        stem, _, ending = name.partition('.')
        yield kind.__name__, f'{stem}_{kind.__name__}.{ending}', kind(rng, content)


def flipped(rng: random.Random, content: bytes) -> bytes:
    """Some bytes are others; half the time among the first or the last 200."""
    changed = bytearray(content)
    low, high = rng.choice([(0, len(changed)), (0, len(changed)), (0, 200),
                            (len(changed) - 200, len(changed))])
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        changed[rng.randrange(low, high)] = rng.randrange(256)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    """Its end is missing."""
    return content[:rng.randrange(len(content))]


def _unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def _pack(parts: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', compress) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


def repacked(rng: random.Random, content: bytes) -> bytes:
    """An entry is changed, gone or named otherwise, or all are compressed; checksums fit."""
    parts = _unpack(content)
    name = rng.choice(list(parts))
    part = parts.pop(name)
    kind = rng.choice(['gone', 'renamed', 'upper', 'flipped', 'cut', 'longer', 'compressed'])
    if kind in ('renamed', 'upper'):
        parts[name + 'x' if kind == 'renamed' else name.upper()] = part
    elif kind != 'gone':
        parts[name] = {'flipped': flipped(rng, part.ljust(400, b'\0')), 'longer': part + b'\0',
                       'cut': part[:len(part) // 2]}.get(kind, part)
    return _pack(parts, zipfile.ZIP_DEFLATED if kind == 'compressed' else zipfile.ZIP_STORED)
