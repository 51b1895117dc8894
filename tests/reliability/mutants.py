"""Sound checkpoints, and what becomes of them when bytes, entries or opcodes change."""
from __future__ import annotations

import io
import pickletools
import random
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator

import numpy as np
import torch
from crafted import saved
from mmengine.logging import MessageHub

OPCODES = sorted(pickletools.code2op)


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
        kinds = [flipped, cut, spans]
        if content.startswith(b'PK'):
            kinds += [swapped, repacked, repickled, repickled]
        elif content.startswith(b'\x80'):
            kinds += [old_opcodes, old_opcodes]
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


def spans(rng: random.Random, content: bytes) -> bytes:
    """A span is gone, doubled, elsewhere as well, zero or noise."""
    first = rng.randrange(len(content))
    length = min(len(content) - first, rng.choice([1, 2, 8, 64, 500, 4000]))
    span, rest = content[first:first + length], content[first + length:]
    new = rng.choice([b'', span * 2, bytes(length), rng.randbytes(length), content[:length] + span])
    return content[:first] + new + rest


def _unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def _pack(parts: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', compress) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


def swapped(rng: random.Random, content: bytes) -> bytes:
    """Two entries of the archive have changed places; checksums fit."""
    parts = _unpack(content)
    one, other = rng.sample(list(parts), 2)
    parts[one], parts[other] = parts[other], parts[one]
    return _pack(parts)


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


def repickled(rng: random.Random, content: bytes) -> bytes:
    """The pickle of an archive has other opcodes; checksums fit."""
    parts = _unpack(content)
    name = next(name for name in parts if name.endswith('data.pkl'))
    parts[name] = opcodes(rng, parts[name])
    return _pack(parts)


def old_opcodes(rng: random.Random, content: bytes) -> bytes:
    """One of the pickles of an old file has other opcodes."""
    stream = io.BytesIO(content)
    ends = [0]
    for _ in range(5):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    number = rng.choice([0, 1, 2, 3, 3, 3, 3, 4])
    first, last = ends[number:number + 2]
    return content[:first] + opcodes(rng, content[first:last]) + content[last:]


def opcodes(rng: random.Random, data: bytes) -> bytes:
    """A pickle some of whose opcodes are gone, doubled, in another place, others, or changed."""
    places = [place for _, _, place in pickletools.genops(data)] + [len(data)]
    steps = [data[first:last] for first, last in zip(places, places[1:])]
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, other = rng.randrange(len(steps)), rng.randrange(len(steps))
        kind = rng.choice(['gone', 'doubled', 'moved', 'copied', 'another', 'argument', 'number'])
        if kind == 'gone' and len(steps) > 1:
            del steps[at]
        elif kind == 'doubled':
            steps.insert(at, steps[at])
        elif kind == 'moved':
            steps[at], steps[other] = steps[other], steps[at]
        elif kind == 'copied':
            steps[at] = steps[other]
        elif kind == 'another':
            steps[at] = rng.choice(OPCODES).encode('latin-1') + steps[at][1:]
        elif kind == 'number':
            steps[at] = rng.choice([b'K\xff', b'J\xff\xff\xff\xff', b'J\xff\xff\xff\x7f',
                                    b'\x8a\x08' + b'\xff' * 7 + b'\x7f', b'N', b'\x88', b'}', b')'])
        elif len(steps[at]) > 1:
            steps[at] = steps[at][:1] + flipped(rng, steps[at][1:].ljust(200, b'\0'))[
                :len(steps[at]) - 1]
    return b''.join(steps)
