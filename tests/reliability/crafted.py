"""Writes checkpoint files by hand, with any content."""
from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch

MAGIC, PROTOCOL = 0x1950a86a20f9469cfc6c, 1001


class Call:
    """An object that calls a function when it is unpickled carelessly.

    Args:
        function: any function that pickle can name.
        arguments: of the call.
        state: for the result's ``__setstate__``; None for none.
    """

    def __init__(self, function: Callable, *arguments, state=None):
        self.parts = (function, arguments) + (() if state is None else (state,))

    def __reduce__(self):
        return self.parts

    def __call__(self):
        """Never called; pickle requires callables to be callable."""


class Stored:
    """A storage, pickled as a persistent id."""

    def __init__(self, *saved_id):
        self.saved_id = saved_id


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.saved_id if isinstance(obj, Stored) else None


def pickled(obj, protocol: int = 2) -> bytes:
    """Pickles an object, with each `Stored` as a persistent id."""
    file = io.BytesIO()
    _Pickler(file, protocol).dump(obj)
    return file.getvalue()


def storage(count: int = 4, key: str = '0', kind=torch.FloatStorage, where: str = 'cpu') -> Stored:
    """A storage of a current file."""
    return Stored('storage', kind, key, where, count)


def tensor(stored=None, offset=0, shape=(4,), stride=(1,), requires_grad=False, hooks=None) -> Call:
    """A tensor as torch.save writes it; any part may be replaced."""
    return Call(torch._utils._rebuild_tensor_v2, storage() if stored is None else stored, offset,
                shape, stride, requires_grad, OrderedDict() if hooks is None else hooks)


def zipped(content, parts: Mapping[str, bytes] | None = None, *, folder: str = 'a',
           change: Callable | None = None, compress: int = zipfile.ZIP_STORED) -> bytes:
    """A file in the current format of torch.save.

    Args:
        content: an object, or the bytes of its pickle.
        parts: all other entries of the archive.
        folder: of all entries.
        change: takes the ZipFile before its directory is written.
        compress: as in zipfile.
    """
    file = io.BytesIO()
    data = content if isinstance(content, bytes) else pickled(content)
    parts = {'data/0': bytes(16)} if parts is None else parts
    with zipfile.ZipFile(file, 'w', compress) as archive:
        for name, entry in {'data.pkl': data, 'byteorder': b'little', **parts,
                            'version': b'3\n'}.items():
            archive.writestr(f'{folder}/{name}', entry)
        if change:
            change(archive)
    return file.getvalue()


def old(content, *, keys=('0',), storages: bytes | None = None, magic=MAGIC,
        protocol=PROTOCOL) -> bytes:
    """A file in the format before torch 1.6; ``content`` is an object or its pickle."""
    data = content if isinstance(content, bytes) else pickled(content)
    if storages is None:
        storages = struct.pack('<q', 4) + bytes(16)
    return b''.join((pickled(magic), pickled(protocol), pickled({'little_endian': True}), data,
                     pickled(list(keys)), storages))


def old_storage(count: int = 4, key: str = '0', kind=torch.FloatStorage, view=None) -> Stored:
    """A storage of an `old` file."""
    return Stored('storage', kind, key, 'cpu', count, view)


def safetensors(header, data: bytes = b'', *, length: int | None = None) -> bytes:
    """A .safetensors file; ``header`` is an object or its JSON text."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack('<Q', len(text) if length is None else length) + text + data


def saved(content, **options) -> bytes:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()
