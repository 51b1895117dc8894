"""Files made to do harm, one of each known kind."""
from __future__ import annotations

import builtins
import collections
import functools
import importlib
import operator
import os
import pickle
import runpy
import struct
import subprocess
from _codecs import encode
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from broken import HUGE, archives, opcodes, others, storages, tensor_files
from crafted import Call, old, old_storage, pickled, saved, storage, tensor, zipped
from mmengine.config import Config
from mmengine.logging import HistoryBuffer


def hostile(canary: Path) -> Iterator[tuple[str, str, bytes]]:
    """Kind, name and content of each. Code that runs leaves a trace in ``canary``."""
    for number, content in enumerate(code(canary)):
        yield 'code', f'code{number}.pth', zipped({'state_dict': {'a': tensor()}, 'meta': content})
        yield 'code', f'code{number}_old.pth', old({'meta': content, 'a': tensor(old_storage())})
        yield 'code', f'code{number}.pkl', pickled(content)
        yield 'code', f'code{number}_4.pth', zipped(pickled({'a': content}, protocol=4))
    for kind, files in (('memory', memory()), ('storage', storages()),
                        ('weights', weights()), ('entries', entries()), ('opcodes', opcodes()),
                        ('archive', archives()), ('safetensors', tensor_files()),
                        ('other', others())):
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


def memory() -> Iterator[bytes]:
    """Small files that ask for more memory than there is."""
    for shape, stride in (((HUGE,), (1,)), ((HUGE,), (0,)), ((1 << 62,) * 8, (1,) * 8),
                          ((10 ** 300,), (1,)), ((1, 2), (1, HUGE))):
        yield zipped({'a': tensor(shape=shape, stride=stride)})
        yield old({'a': tensor(old_storage(), shape=shape, stride=stride)})
    yield zipped({'a': tensor(offset=HUGE)})
    yield zipped({'a': tensor(storage(HUGE), shape=(HUGE,))})
    yield old({'a': tensor(old_storage(HUGE), shape=(4,))})
    yield old({'a': tensor(old_storage(HUGE))}, storages=struct.pack('<q', HUGE) + bytes(16))
    # a million views of a megabyte
    view = tensor(storage(2 ** 18), shape=(2 ** 18,))
    yield zipped({str(n): Call(*view.parts[:1], *view.parts[1]) for n in range(1000)},
                 {'data/0': bytes(2 ** 20)})
    for function, argument in ((bytearray, HUGE), (torch.FloatTensor, HUGE), (range, HUGE),
                               (torch.storage.UntypedStorage, HUGE), (np.zeros, HUGE)):
        yield zipped({'a': Call(function, argument)})
    array = np.core.multiarray._reconstruct if np.__version__ < '2' else \
        np._core.multiarray._reconstruct
    yield zipped({'a': Call(array, np.ndarray, (HUGE,), b'b')})
    yield zipped({'a': Call(array, np.ndarray, (0,), b'b', state=(
        1, (HUGE,), np.dtype('f8'), False, b'abcdefgh'))})
    yield zipped({'a': Call(np.dtype, f'V{2 ** 31 - 1}', False, True)})
    yield zipped({'a': Call(np.dtype, '(100000,100000)f8', False, True)})
    # thousands of copies of one text, list or dict
    text, items = 'x' * 2 ** 20, list(range(2 ** 14))
    yield zipped([Call(encode, text, 'latin1') for _ in range(2000)])
    yield zipped([Call(set, items) for _ in range(2000)])
    counts = dict.fromkeys(items, 1)
    yield zipped([Call(collections.Counter, counts) for _ in range(2000)])
    pairs = [[str(n), n] for n in range(2 ** 13)]
    yield zipped([Call(OrderedDict, pairs) for _ in range(2000)])
    yield zipped({'a': Call(torch._utils._rebuild_wrapper_subclass, torch.nn.Parameter,
                            torch.float32, (HUGE,), (1,), 0, torch.strided, 'cpu', False)})


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
        yield zipped(Call(OrderedDict, state=state))
    history = {'max_length': 3, '_log_history': np.ones(1), '_count_history': np.ones(1)}
    for changes in (dict(mean=3), dict(max_length=0), dict(_log_history='x'),
                    dict(statistics_methods=3), dict(statistics_methods={'mean': 3}),
                    dict(statistics_methods={'mean': HistoryBuffer.max})):
        yield zipped({'a': Call(HistoryBuffer, state={**history, **changes})})
