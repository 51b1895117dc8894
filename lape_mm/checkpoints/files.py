"""Reading a checkpoint without executing anything that it holds."""
from __future__ import annotations

import hashlib
import logging
import os
import pickle
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log

from .archive import check_archive
from .short_list import STATISTICS, Refusal

# entries of mmengine's checkpoints that are dicts: of weights, and of other things
STATES, OTHERS = ('state_dict', 'ema_state_dict'), ('meta', 'message_hub', 'optimizer')
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


def trust_checkpoints(trusted: bool) -> None:
    """Whether checkpoints are from now on unpickled as they are, with the code they may hold.

    For this process, since mmengine reads checkpoints in places that take no arguments. What
    --trust-checkpoint stands for; each file that is read so is named in the log.
    """
    global _trusted
    _trusted = trusted


def read_checkpoint(path: str | os.PathLike, map_location='cpu', *, weights: bool = True) -> dict:
    """The content of a checkpoint: a dict of tensors, or one with other entries around it.

    Only tensors, plain Python values and what mmengine writes into its own checkpoints are
    unpickled (``weights_only`` with a narrow allow-list), after `check_archive` has found that the
    file holds no more than it is large. Weights, that is tensors of the content itself and of its
    entries, have to be real numbers and finite; an optimizer's state is not looked into, so that a
    run whose moments have overflowed shows it only in its loss.

    Args:
        path: a file of torch.save or a .safetensors file, or the http(s) address of one, which is
            downloaded once into torch's hub folder.
        map_location: as in torch.load.
        weights: whether tensors are read and checked. If not, those of a file as torch has written
            it since 1.6 stay on the disk, for who only wants to know what else is in there.

    Raises:
        CheckpointError: for a file that is missing, damaged, no checkpoint, or that holds code
            (unless `trust_checkpoints` says otherwise) or weights that are none.
    """
    path = os.path.expanduser(os.fspath(path))
    if path.startswith(('http://', 'https://')):
        path = _download(path)
    if not os.path.isfile(path):
        known = '' if '://' not in path else ' (of addresses, http:// and https:// are known)'
        what = 'not a regular file' if os.path.exists(path) else f'no such file{known}'
        raise CheckpointError(f'{path}: {what}')
    try:
        content = _load(path, map_location, weights)
        if not isinstance(content, dict):
            raise Refusal(f'holds a {type(content).__name__}, expected a dict of weights')
        _check_content(content, weights)
    except Refusal as error:
        raise CheckpointError(f'{path}: {error}') from None
    except Exception as error:  # any part of a file may be anything
        raise CheckpointError(f'{path}: damaged, truncated or no checkpoint '
                              f'({_first_line(error)})') from None
    return content


def dataset_meta(content: Mapping) -> dict:
    """What a checkpoint says of the data that it was trained on, such as classes and palette.

    Only entries of plain Python (text, numbers, lists, tuples and dicts): what is written into
    another file has to be read again without a trusted class.
    """
    meta = content.get('meta')
    meta = meta if isinstance(meta, Mapping) else {}
    found = meta.get('dataset_meta')
    # before OpenMMLab's 2.0: CLASSES and PALETTE
    entries = found if isinstance(found, Mapping) else {
        key.lower(): meta[key] for key in ('CLASSES', 'PALETTE') if meta.get(key)}
    return {key: value for key, value in entries.items() if _is_plain([key, value])}


def _is_plain(value) -> bool:
    todo, seen = [value], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:  # a file may nest what it likes
            continue
        seen.add(id(one))
        if type(one) in (list, tuple):
            todo += one
        elif type(one) is dict:
            todo += [*one, *one.values()]
        elif type(one) not in (str, bool, int, float, type(None)):
            return False
    return True


def _load(path: str, map_location, weights: bool):
    if path.endswith('.safetensors'):
        from safetensors.torch import load_file  # comes with timm
        return load_file(path, device=str(map_location or 'cpu'))
    mapped = not weights and is_zipfile(path)
    if _trusted:
        print_log(f'--trust-checkpoint: {path} is loaded without a check, and what code it holds '
                  'is run', logger='current', level=logging.WARNING)
        return torch.load(path, map_location=map_location, weights_only=False, mmap=mapped)
    check_archive(path, checksums=weights)
    with torch.serialization.safe_globals(_allowed_globals()):
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mapped)


def _check_content(content: Mapping, weights: bool) -> None:
    """Refuses entries that mmengine would stumble over, and tensors that are no weights."""
    for name in (*STATES, *OTHERS):
        if name in content and not isinstance(content[name], Mapping) \
                and (name in STATES or content[name] is not None):
            raise Refusal(f'{name!r} in it is a {type(content[name]).__name__}, expected a dict')
    if not weights:
        return
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            _check_weight(f'{name!r:.200}', name, value)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                shown = f'{name!r:.200}: {key!r:.200}'
                if isinstance(entry, torch.Tensor):
                    _check_weight(shown, key, entry)
                elif name in STATES:
                    raise Refusal(f'{shown} is a {type(entry).__name__}, expected a tensor')


def _check_weight(shown: str, name, value: torch.Tensor) -> None:
    if not isinstance(name, str) or not name.isprintable():
        raise Refusal(f'a tensor is named {shown}, expected a plain name')
    if value.dtype not in REAL or value.layout is not torch.strided:
        raise Refusal(f'{shown} is a tensor of {value.dtype}, {value.layout}, expected real '
                      'numbers, torch.strided')
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Refusal(f'{shown} holds values that are not finite (nan or inf)')


def _allowed_globals() -> list:
    """What mmengine's message hub and metrics put into a checkpoint beside tensors."""
    try:
        from numpy._core.multiarray import _reconstruct, scalar
    except ImportError:  # numpy < 2
        from numpy.core.multiarray import (  # type: ignore[no-redef]
            _reconstruct,
            scalar,
        )

    def statistic(owner, name):
        # a pickled buffer names its own statistics through getattr; this one knows no others
        if owner is not HistoryBuffer or name not in STATISTICS:
            raise pickle.UnpicklingError(f'Unsupported class getattr:{name}')
        return getattr(HistoryBuffer, name)

    allowed = [Namespace, HistoryBuffer, (statistic, 'builtins.getattr'),
               (lambda: b'', 'builtins.bytes'), np.ndarray, np.dtype,
               *(type(np.dtype(kind + size)) for kind, size in (
                   'b1', 'u1', 'u2', 'u4', 'u8', 'i1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8'))]
    # files of either numpy generation name these two by their own module
    for module in ('numpy._core.multiarray', 'numpy.core.multiarray'):
        allowed += [(_reconstruct, f'{module}._reconstruct'), (scalar, f'{module}.scalar')]
    return allowed


def _download(address: str) -> str:
    # files of many models share a name such as model.safetensors: the address tells them apart
    key = hashlib.sha256(address.encode()).hexdigest()[:12]
    name = f'{key}-{address.split("?")[0].rsplit("/", 1)[-1]}'
    target = Path(torch.hub.get_dir()) / 'checkpoints' / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            part = os.path.join(folder, 'part')
            try:
                torch.hub.download_url_to_file(address, part)
            except OSError as error:
                raise CheckpointError(f'{address}: cannot be downloaded '
                                      f'({_first_line(error)})') from None
            os.replace(part, target)
    return str(target)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
