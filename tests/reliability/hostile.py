"""Files made to do harm, one of each known kind."""
from __future__ import annotations

import builtins
import collections
import functools
import gzip
import importlib
import io
import operator
import os
import pickle
import runpy
import struct
import subprocess
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from crafted import Call, safetensors, saved
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from PIL import Image

HUGE = 10 ** 12


def hostile(canary: Path) -> Iterator[tuple[str, str, bytes]]:
    """Kind, name and content of each. Code that runs leaves a trace in ``canary``."""
    for number, content in enumerate(code(canary)):
        whole = {'state_dict': {'a': torch.ones(4)}, 'meta': content}
        yield 'code', f'code{number}.pth', saved(whole)
        yield 'code', f'code{number}_old.pth', saved(whole, _use_new_zipfile_serialization=False)
        yield 'code', f'code{number}.pkl', pickle.dumps(content, protocol=2)
        yield 'code', f'code{number}_4.pth', saved({'a': content}, pickle_protocol=4)
    for kind, files in (('weights', weights()), ('entries', entries()),
                        ('safetensors', tensor_files()), ('other', others())):
        for number, content in enumerate(files):
            ending = 'safetensors' if kind == 'safetensors' else 'pth'
            yield kind, f'{kind}{number}.{ending}', content


def code(canary: Path) -> Iterator[Call]:
    """Objects that run code when they are unpickled."""
    mark, touch = str(canary / 'ran'), f'touch {canary}/ran'
    python = f'open({mark!r}, "w")'
    inner = pickle.dumps(Call(os.mkdir, mark))
    yield Call(os.mkdir, mark)
    yield Call(os.system, touch)
    yield Call(subprocess.check_call, touch.split())
    yield Call(eval, python)
    yield Call(exec, python)
    yield Call(pickle.loads, inner)
    yield Call(torch.storage._load_from_bytes, saved(Call(os.mkdir, mark)))
    yield Call(Config.fromstring, python, '.py')
    yield Call(functools.reduce, exec, [python, {}])
    yield Call(Call(operator.methodcaller, 'mkdir', mark), Call(importlib.import_module, 'os'))
    yield Call(Call(getattr, Call(importlib.import_module, 'os'), 'mkdir'), mark)
    yield Call(Call(getattr, HistoryBuffer, '__init__'), mark)
    yield Call(getattr, HistoryBuffer, '__class__')
    yield Call(runpy.run_path, mark)
    yield Call(builtins.__import__, 'os')
    yield Call(np.load, mark)
    yield Call(np.fromfile, '/etc/passwd', np.uint8)
    yield Call(open, mark, 'w')
    yield Call(collections.Counter, Call(map, os.mkdir, [mark]))
    yield Call(HistoryBuffer, state={
        'max_length': 3, '_log_history': np.ones(1), '_count_history': np.ones(1),
        'statistics_methods': {'mean': os.mkdir}})


def weights() -> Iterator[bytes]:
    """Invalid weights, and other objects in their place."""
    good = torch.ones(2)
    for value in (float('nan'), float('inf'), -float('inf')):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            yield saved({'state_dict': {'good': good, 'a': torch.tensor([1, value], dtype=dtype)}})
        yield saved({'a': torch.tensor([[value]])})
        yield saved({'a': torch.tensor([value])}, _use_new_zipfile_serialization=False)
        yield saved({'ema_state_dict': {'a': torch.tensor([value])}})
    for value in ('text', 3, None, [good], {'a': good}, np.ones(2), torch.Size([2])):
        yield saved({'state_dict': {'good': good, 'a': value}})
    for value in (good.to(torch.complex64), torch.quantize_per_tensor(good, .1, 0, torch.qint8),
                  good.to_sparse(), good.to('meta'), torch.nested.nested_tensor([good]),
                  good.to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.uint16),
                  torch.nn.Linear(1, 1)):
        yield saved({'state_dict': {'a': value}})
    for name in (1, None, 'a\nb', '\x1b[2J', ''.join(map(chr, range(32)))):
        yield saved({'state_dict': {name: good}})


def entries() -> Iterator[bytes]:
    """Entries of a run's checkpoint that would break mmengine."""
    good = torch.ones(2)
    for name in ('state_dict', 'meta', 'message_hub', 'optimizer', 'ema_state_dict'):
        for value in (3, 'text', [1], good, False):
            yield saved({'state_dict': {'a': good}, name: value})
    for name in ('state_dict', 'ema_state_dict'):
        yield saved({name: None, 'a': good})
    for value in (good, [good], 'text', 3, None, (), {good}):
        yield saved(value)
    for state in (dict(x=1), dict(_metadata=3), dict(_metadata={'': {'version': 'x'}}),
                  dict(_metadata={'': {'assign_to_params_buffers': True}}), dict(keys=3)):
        yield saved(Call(OrderedDict, state=state))
    history = {'max_length': 3, '_log_history': np.ones(1), '_count_history': np.ones(1)}
    for changes in (dict(mean=3), dict(max_length=0), dict(_log_history='x'),
                    dict(statistics_methods=3), dict(statistics_methods={'mean': 3}),
                    dict(statistics_methods={'mean': HistoryBuffer.max})):
        yield saved({'a': Call(HistoryBuffer, state={**history, **changes})})


def tensor_files() -> Iterator[bytes]:
    """.safetensors that are damaged, or hold no weights."""
    def one(dtype='F32', shape=(4,), offsets=(0, 16)):
        return {'a': {'dtype': dtype, 'shape': shape, 'data_offsets': offsets}}
    for header in (one(shape=(5,)), one(shape=(HUGE,)), one('X9'), one(shape=(-4,)),
                   one(offsets=(0, HUGE)), one(offsets=(16, 0)), {'a': 3}, [], '', '{' * 100_000,
                   {'__metadata__': 3, **one()}, {**one(), 'b': one()['a']}):
        yield safetensors(header, bytes(16))
    for length in (0, 2 ** 63, 10 ** 9):
        yield safetensors(one(), bytes(16), length=length)
    yield safetensors(one(), bytes(8))
    yield safetensors(one(), bytes(99))
    yield safetensors(one(), struct.pack('<4f', 1, 2, float('nan'), 3))
    yield safetensors(one('BF16', (8,)), b'\x80\x7f' * 8)
    yield safetensors(one('F8_E4M3', (16,)), bytes(16))
    yield safetensors(one('C64', (2,)), bytes(16))
    yield safetensors({'a\n\x1b[2J': one()['a']}, bytes(16))
    yield b'PK\x03\x04' + bytes(20)
    yield b''


def others() -> Iterator[bytes]:
    """Files that are something else altogether."""
    yield b''
    yield b'\0' * 1000
    yield b'\x80'
    yield b'<!DOCTYPE html><html><body>404</body></html>'
    yield b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 22884357\n'
    yield b'{"weights": [1, 2]}'
    yield b'import os\nos.mkdir("ran")\n'
    yield 'ä'.encode('utf-16') * 99
    yield b'\x7fELF' + bytes(range(256))
    yield gzip.compress(saved({'a': torch.ones(2)}))
    yield os.urandom(4096)
    for kind in ('PNG', 'JPEG'):
        file = io.BytesIO()
        Image.new('RGB', (9, 9)).save(file, kind)
        yield file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        archive.writestr('report.txt', 'x')
    yield file.getvalue()
    for name in ('storages', '\udc80\x02\udc8a\nl'):  # a tar archive, one that is a pickle too
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode='w', errors='surrogateescape',
                          format=tarfile.GNU_FORMAT) as archive:
            for part in (name, 'tensors', 'pickle'):
                entry = tarfile.TarInfo(part)
                entry.size = 9
                archive.addfile(entry, io.BytesIO(pickle.dumps(3).ljust(9)))
        yield file.getvalue()
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
    yield file.getvalue()
    file = io.BytesIO()
    np.savez(file, a=np.ones(3))
    yield file.getvalue()
    yield pickle.dumps({'a': [1, 2]})
    yield pickle.dumps({'a': np.ones(3)}, protocol=2)
