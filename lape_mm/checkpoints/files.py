"""Reading a checkpoint without executing anything in it."""
from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from lape_mm.wording import first_line

REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool}
_trusted = False


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line and names the file."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


def one_line(text: str, most: int = 2000) -> str:
    """The text without what would break a line or steer a terminal; names in a file may."""
    shown = text[:most] + ('..' if len(text) > most else '')
    return ''.join(letter if letter.isprintable() else '?' for letter in shown)


@contextmanager
def named(path: str | os.PathLike) -> Iterator[None]:
    """Puts the file's name before the message of a CheckpointError that is raised within."""
    try:
        yield
    except CheckpointError as error:
        text, name = str(error), one_line(str(path))
        raise CheckpointError(text if text.startswith(name) else f'{path}: {text}') from None


def trust_checkpoints(trusted: bool) -> None:
    """--trust-checkpoint: whether this process runs the code that checkpoints may hold.

    Global, because mmengine reads checkpoints in places that take no arguments.
    """
    global _trusted
    _trusted = trusted


def read_checkpoint(path: str | os.PathLike, map_location='cpu', *, weights: bool = True) -> dict:
    """The content of a checkpoint: a dict of tensors, or one with other entries around it.

    torch unpickles it by ``weights_only``: tensors, plain Python values, and what the trainers of
    mmengine, DeiT and LaPE add (`safe_globals`). Weights, that is the tensors of the content and of
    its entries, have to be finite real numbers. An optimizer's state is not looked into.

    Args:
        path: a file of torch.save or a .safetensors file, or the http(s) address of one, which is
            downloaded once into torch's hub folder.
        map_location: as in torch.load.
        weights: whether to read and check the weights. Without them a file of torch >= 1.6 is
            mapped into memory, which is enough to look at its other entries.

    Raises:
        CheckpointError: the file is missing, damaged or no checkpoint, or it holds code (unless
            `trust_checkpoints` allows that) or weights that are not finite real numbers.
    """
    path = os.path.expanduser(os.fspath(path))
    if path.startswith(('http://', 'https://')):
        path = _download(path)
    if not os.path.isfile(path):
        raise CheckpointError(f'{path}: ' + (
            'not a regular file' if os.path.exists(path) else 'no such file'))
    with named(path):
        try:
            content = _load(path, map_location, weights)
            if weights and isinstance(content, dict):
                _check_weights(content)
        except CheckpointError:
            raise
        except Exception as error:  # a damaged file may fail anywhere
            raise CheckpointError(f'damaged, truncated or no checkpoint ({first_line(error)})') \
                from None
        if not isinstance(content, dict):
            raise CheckpointError(f'a {type(content).__name__}, expected a dict of weights')
    return content


def dataset_meta(content: Mapping) -> dict:
    """What a checkpoint says about its training data in plain Python, such as its classes."""
    meta = content.get('meta')
    meta = meta if isinstance(meta, Mapping) else {}
    found = meta.get('dataset_meta')
    # before OpenMMLab's 2.0: CLASSES and PALETTE
    entries = found if isinstance(found, Mapping) else {
        key.lower(): meta[key] for key in ('CLASSES', 'PALETTE') if meta.get(key)}
    return {key: value for key, value in entries.items() if _is_plain(value)}


def _is_plain(value) -> bool:
    try:
        return bool(json.dumps(value))
    except (RecursionError, TypeError, ValueError):
        return False


def _load(path: str, map_location, weights: bool):
    if path.endswith('.safetensors'):
        from safetensors.torch import load_file  # comes with timm
        return load_file(path, device=str(map_location or 'cpu'))
    zipped = is_zipfile(path)
    options = dict(map_location=map_location, mmap=zipped and not weights)
    if _trusted:
        print_log(f'--trust-checkpoint: {path} is loaded without a check, and what code it holds '
                  'is run', logger='current', level=logging.WARNING)
        return torch.load(path, weights_only=False, **options)
    with open(path, 'rb') as file:
        start = file.read(8)
    if not start.startswith((b'PK', b'\x80')):  # what torch writes today, and before torch 1.6
        raise CheckpointError(f'no checkpoint: it begins with {start!r}' if start else 'is empty')
    if zipped and weights:  # torch itself does not compare checksums
        with ZipFile(path) as archive:
            if part := archive.testzip():
                raise CheckpointError(f'damaged: the checksum of {part} does not fit')
    with torch.serialization.safe_globals(safe_globals()):
        try:
            return torch.load(path, weights_only=True, **options)
        except pickle.UnpicklingError as error:
            if not (names := _unsafe(path, str(error))):
                raise error.__context__ or error from None  # torch wraps it in advice
            raise CheckpointError(
                f'refused, since loading it would run or build {names}; whoever trusts its author '
                'can load it with --trust-checkpoint') from None


def _unsafe(path: str, message: str) -> str:
    """What a file would run or build that is not allowed; '' where torch refused it for less."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # written before torch 1.6, or damaged
        names = []
    return ', '.join(sorted(set(names or re.findall(r'GLOBAL (\S+)', message))))


def _check_weights(content: Mapping) -> None:
    """Refuses tensors of the content and of its entries that are no weights."""
    groups = {'': content, **{f'{name!r:.200}: ': entry for name, entry in content.items()
                              if isinstance(entry, Mapping)}}
    for group, entries in groups.items():
        for name, value in entries.items():
            if not isinstance(value, torch.Tensor):
                continue
            shown = f'{group}{name!r:.200}'
            if not isinstance(name, str) or not name.isprintable():
                raise CheckpointError(f'a tensor is named {shown}, expected a plain name')
            if value.dtype not in REAL or value.layout is not torch.strided:
                raise CheckpointError(f'{shown} is a tensor of {value.dtype}, {value.layout}, '
                                      'expected real numbers, torch.strided')
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise CheckpointError(f'{shown} holds values that are not finite (nan or inf)')


def safe_globals() -> list:
    """What trainers put into their checkpoints beside tensors and plain Python values.

    mmengine: the history of every logged number, and NumPy's numbers, arrays and random states.
    DeiT and LaPE: their command line as an argparse.Namespace.
    """
    try:
        from numpy._core.multiarray import _reconstruct, scalar
    except ImportError:  # numpy < 2
        from numpy.core.multiarray import _reconstruct, scalar  # type: ignore[no-redef]

    def statistic(owner, name):
        """The one use of getattr: a pickled HistoryBuffer names its methods through it."""
        if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
            raise pickle.UnpicklingError(f'GLOBAL getattr:{name}')
        return getattr(HistoryBuffer, name)

    numbers = ('U1', 'b1', 'u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8')
    allowed = [Namespace, HistoryBuffer, (statistic, 'builtins.getattr'),
               (lambda: b'', 'builtins.bytes'),  # how protocol 2 writes an empty string of bytes
               np.ndarray, np.dtype, *(type(np.dtype(number)) for number in numbers)]
    for module in ('numpy._core.multiarray', 'numpy.core.multiarray'):  # numpy 2, numpy 1
        allowed += [(_reconstruct, f'{module}._reconstruct'), (scalar, f'{module}.scalar')]
    return allowed


def _download(address: str) -> str:
    # files of many models share a name such as model.safetensors: the address tells them apart
    key = hashlib.sha256(address.encode()).hexdigest()[:12]
    name = f'{key}-{address.split("?")[0].rsplit("/", 1)[-1]}'
    target = Path(torch.hub.get_dir()) / 'checkpoints' / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(target))  # all of it or nothing
        except OSError as error:
            raise CheckpointError(f'{address}: cannot be downloaded ({first_line(error)})') \
                from None
    return str(target)
