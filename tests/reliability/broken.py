"""Files whose parts contradict one another, and files that are something else."""
from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import torch
from crafted import Stored, old, old_storage, pickled, safetensors, saved, storage, tensor, zipped
from PIL import Image

HUGE = 10 ** 12


def storages() -> Iterator[bytes]:
    """Storages and tensors that do not fit one another."""
    for stored in (storage(3), storage(5), storage(-1), storage(4, '1'), storage(4, '../byteorder'),
                   storage(4, where='meta'), storage(2.5), storage(True), storage(None),
                   storage(4, kind=torch.float32), storage(4, kind=torch.ComplexFloatStorage),
                   storage(16, kind=torch.storage.UntypedStorage), Stored('storage'),
                   Stored('module', torch.nn.Linear, 'x', 'y'), Stored(), 'text', 7):
        yield zipped({'a': tensor(stored)})
    for parts in (dict(shape=(5,)), dict(shape=(-1,)), dict(stride=(-1,)), dict(stride=(2,)),
                  dict(offset=1), dict(offset=-1), dict(shape=(2, 2)), dict(shape=[4]),
                  dict(shape='abcd'), dict(requires_grad=1), dict(hooks={0: 1}), dict(shape=(4.,)),
                  dict(shape=(1,) * 65, stride=(1,) * 65), dict(stored=())):
        yield zipped({'a': tensor(**parts)})
    hooks = OrderedDict()
    data = pickled({'a': tensor(hooks=hooks), 'b': hooks})
    yield zipped(data[:-2] + b'K\x00K\x01s' + data[-2:])  # hooks[0] = 1, afterwards
    good = {'a': tensor(old_storage())}
    for changes in (dict(keys=()), dict(keys=('0', '0')), dict(keys=('1',)), dict(keys=(0,)),
                    dict(storages=b''), dict(storages=struct.pack('<q', 4)),
                    dict(storages=struct.pack('<q', -4) + bytes(16)), dict(magic=1),
                    dict(storages=struct.pack('<q', HUGE) + bytes(16)), dict(protocol=1)):
        yield old(good, **changes)
    for stored in (old_storage(-4), old_storage(5), old_storage(view=('1', 2, 9)),
                   old_storage(view=('0', -1, 4)), storage()):
        yield old({'a': tensor(stored)})
    yield old({'a': tensor(old_storage()), 'b': tensor(old_storage(2))})


def opcodes() -> Iterator[bytes]:
    """Pickles that no pickler writes; `mutants` makes more."""
    four, eight = struct.pack('<I', 2 ** 32 - 1), struct.pack('<Q', 2 ** 62)
    for data in (b'', b'\x80\x02', b'\x80\x02K', b'\x80\x09N.', b'\x80\x02h\x07.',
                 b'\x80\x02r' + four + b'.', b'\x80\x02X' + four + b'abc.', b'\x80\x02R.',
                 b'\x80\x02)Q.', b'\x80\x02\x8b' + four + b'.', b'\x80\x02\x8e' + eight + b'abc.',
                 b'\x80\x05\x95' + eight + b'N.', b'\x80\x02cposix\nmkdir\n.',
                 b'\x80\x02(S\'x\'\niposix\nmkdir\n.', b'\x80\x04\x8c\x05posix\x8c\x05mkdir\x93.',
                 b'\x80\x02}(K\x01u.', b'\xff' * 9):
        yield zipped(data)
        yield old(data)


def archives() -> Iterator[bytes]:
    """Zip archives that are not what torch.save writes."""
    good, data = {'a': tensor()}, {'data/0': bytes(16)}
    deflated = zipfile.ZIP_DEFLATED
    yield zipped(good, compress=deflated)
    yield zipped({'a': tensor(storage(2 ** 24), shape=(2 ** 24,))}, {'data/0': bytes(2 ** 26)},
                 compress=deflated)  # 64 MiB of zeros

    def lie(**changes):
        def change(archive):
            entry = archive.filelist[2]
            for name, value in changes.items():
                setattr(entry, name, value)
        return change
    for changes in (dict(file_size=HUGE), dict(file_size=HUGE, compress_size=HUGE),
                    dict(file_size=15, compress_size=15), dict(header_offset=10 ** 6), dict(CRC=1),
                    dict(compress_type=99), dict(flag_bits=1), dict(filename='a/data.pkl'),
                    dict(filename='a/data/0\0'), dict(filename='../../a')):
        yield zipped(good, data, change=lie(**changes))

    def overlap(archive):
        first = archive.filelist[2]
        for number in range(1, 300):
            entry = zipfile.ZipInfo(f'a/data/{number}')
            for name in ('header_offset', 'CRC', 'file_size', 'compress_size'):
                setattr(entry, name, getattr(first, name))
            archive.filelist.append(entry)
    yield zipped({'a': tensor(storage(2 ** 16), shape=(2 ** 16,))}, {'data/0': bytes(2 ** 18)},
                 change=overlap)
    yield zipped(good, {})
    yield zipped(good, {**data, 'byteorder': b'middle'})
    yield zipped(good, {**data, 'constants.pkl': pickled(())})
    whole = zipped(good)
    yield whole + b'x'
    yield whole[:-2] + b'\xff\xff'  # a comment that is not there
    yield whole + whole
    yield b'PK\x03\x04'


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
