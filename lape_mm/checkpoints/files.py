"""Reads checkpoints without running code in them."""
from __future__ import annotations

import hashlib
import logging
import os
import pickle
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from lape_mm.wording import first_line

REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool}
_trusted = False  # global, because mmengine calls its loader without our arguments


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message is one line and names the file."""

    def __init__(self, message: str):
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """Replaces line breaks and control characters, which names in a file may contain."""
    return ''.join(letter if letter.isprintable() else '?' for letter in text[:2000])


@contextmanager
def named(path: str | os.PathLike) -> Iterator[None]:
    """Prefixes the message of a CheckpointError raised inside with the file's name."""
    try:
        yield
    except CheckpointError as error:
        named_already = str(error).startswith(one_line(str(path)))
        raise CheckpointError(f'{"" if named_already else f"{path}: "}{error}') from None


def trust_checkpoints(trusted: bool) -> None:
    """Sets whether this process may run code in checkpoints (--trust-checkpoint)."""
    global _trusted
    _trusted = trusted


def read_checkpoint(path: str | os.PathLike, map_location='cpu', *, weights: bool = True) -> dict:
    """Reads a checkpoint: a dict of tensors, or a dict that contains one.

    torch's ``weights_only`` loads only tensors, plain Python values and types of `safe_globals`.
    The weights must be finite real numbers; an optimizer's state is not checked.

    Args:
        path: a torch.save or .safetensors file, or its http(s) address. A file at an address is
            downloaded once, into torch's hub folder.
        map_location: as in torch.load.
        weights: False skips the check of the weights and only maps the file into memory, which is
            enough to read its other entries.

    Raises:
        CheckpointError: the file is missing, damaged or not a checkpoint; it holds code, and
            `trust_checkpoints` does not allow that; or a weight is not a finite real number.
    """
    path = os.path.expanduser(os.fspath(path))
    if path.startswith(('http://', 'https://')):
        path = _download(path)
    if '://' in path:
        raise CheckpointError(f'{path}: expected a local file or an http(s) address; download the '
                              'checkpoint and give its path')
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
            raise CheckpointError('damaged, truncated or not a checkpoint '
                                  f'({first_line(error)})') from None
        if not isinstance(content, dict):
            raise CheckpointError(f'is a {type(content).__name__}, expected a dict of weights')
    return content


def dataset_meta(content: Mapping) -> dict:
    """Names and colours of the classes that a checkpoint was trained on; {} if it has none."""
    entries: Any = content
    for key in ('meta', 'dataset_meta'):
        entries = entries.get(key) if isinstance(entries, Mapping) else None
    return {key: entries[key] for key in ('classes', 'palette')
            if isinstance(entries, Mapping) and isinstance(entries.get(key), (list, tuple))}


def _load(path: str, map_location, weights: bool):
    if path.endswith('.safetensors'):
        from safetensors.torch import load_file  # comes with timm
        return load_file(path, device=str(map_location or 'cpu'))
    zipped = is_zipfile(path)
    options = dict(map_location=map_location, mmap=zipped and not weights)
    if _trusted:
        print_log(f'--trust-checkpoint: {path} is loaded without a check; any code in it will run',
                  logger='current', level=logging.WARNING)
        return torch.load(path, weights_only=False, **options)
    with open(path, 'rb') as file:
        start = file.read(8)
    if not start.startswith((b'PK', b'\x80')):  # torch's formats since 1.6, and before
        raise CheckpointError(f'not a checkpoint: begins with {start!r}' if start else 'is empty')
    if zipped:
        with ZipFile(path) as archive:
            if weights and (part := archive.testzip()):  # torch does not compare checksums
                raise CheckpointError(f'damaged: wrong checksum of {part}')
    with torch.serialization.safe_globals(safe_globals()):
        try:
            return torch.load(path, weights_only=True, **options)
        except pickle.UnpicklingError as error:
            if not (names := _unsafe(path, str(error))):
                raise error.__context__ or error from None  # without torch's advice around it
            raise CheckpointError(
                f'refused: loading it would run {names}. If you trust its author, add '
                '--trust-checkpoint') from None


def _unsafe(path: str, message: str) -> str:
    """Names the forbidden functions and classes in a file; '' if torch rejected something else."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # a file from before torch 1.6, or a damaged one
        names = []
    return ', '.join(sorted(set(names or re.findall(r'GLOBAL (\S+)', message))))


def _check_weights(content: Mapping) -> None:
    """Raises CheckpointError if a tensor, in the content or a dict in it, cannot be a weight."""
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
                                      'expected a strided tensor of real numbers')
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise CheckpointError(f'{shown} holds values that are not finite (nan or inf)')


def safe_globals() -> list:
    """Types that trainers save besides tensors and plain Python values.

    mmengine saves HistoryBuffers and NumPy's numbers, arrays and random states; DeiT and LaPE save
    their arguments as an argparse.Namespace.
    """
    try:
        from numpy._core.multiarray import _reconstruct, scalar
    except ImportError:  # numpy < 2
        from numpy.core.multiarray import _reconstruct, scalar  # type: ignore[no-redef]

    def statistic(owner, name):
        """Replaces getattr, which a pickled HistoryBuffer uses to name its methods."""
        if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
            raise pickle.UnpicklingError(f'GLOBAL getattr:{name}')
        return getattr(HistoryBuffer, name)

    numbers = ('U1', 'b1', 'u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8')
    allowed = [Namespace, HistoryBuffer, (statistic, 'builtins.getattr'),
               (lambda: b'', 'builtins.bytes'),  # empty bytes in pickle protocol 2
               np.ndarray, np.dtype, *(type(np.dtype(number)) for number in numbers)]
    for module in ('numpy._core.multiarray', 'numpy.core.multiarray'):  # numpy 2, numpy 1
        allowed += [(_reconstruct, f'{module}._reconstruct'), (scalar, f'{module}.scalar')]
    return allowed


def _download(address: str) -> str:
    # many models share a file name such as model.safetensors
    key = hashlib.sha256(address.encode()).hexdigest()[:12]
    name = f'{key}-{address.split("?")[0].rsplit("/", 1)[-1]}'
    target = Path(torch.hub.get_dir()) / 'checkpoints' / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(target))  # writes the whole file or none
        except OSError as error:
            raise CheckpointError(f'{address}: download failed ({first_line(error)})') from None
    return str(target)
