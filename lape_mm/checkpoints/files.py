"""Reading a checkpoint without executing anything that it holds."""
from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line and names the file."""


def read_checkpoint(path: str | os.PathLike, map_location='cpu') -> dict:
    """The content of a checkpoint: a dict of tensors, or one with other entries around it.

    Only tensors, plain Python values and what mmengine writes into its own checkpoints are
    unpickled (``weights_only`` with a narrow allow-list).

    Args:
        path: a file of torch.save or a .safetensors file, or the http(s) address of one, which is
            downloaded once into torch's hub folder.
        map_location: as in torch.load.

    Raises:
        CheckpointError: for a file that is missing, damaged, no checkpoint, or that holds code.
    """
    path = os.path.expanduser(os.fspath(path))
    if path.startswith(('http://', 'https://')):
        path = _download(path)
    if not os.path.isfile(path):
        known = '' if '://' not in path else ' (of addresses, http:// and https:// are known)'
        raise CheckpointError(f'{path}: no such file{known}')
    try:
        if path.endswith('.safetensors'):
            from safetensors.torch import load_file  # comes with timm
            content = load_file(path, device=str(map_location or 'cpu'))
        else:
            with torch.serialization.safe_globals(_allowed_globals()):
                content = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f'{path}: {_explain(error)}') from None
    except (EOFError, OSError, RuntimeError, zipfile.BadZipFile, KeyError, TypeError, ValueError,
            IndexError, AttributeError, UnicodeDecodeError, MemoryError) as error:
        raise CheckpointError(f'{path}: damaged, truncated or no checkpoint '
                              f'({_first_line(error)})') from None
    except Exception as error:  # SafetensorError derives from Exception alone
        raise CheckpointError(f'{path}: unreadable ({_first_line(error)})') from None
    if not isinstance(content, Mapping):
        raise CheckpointError(f'{path}: holds a {type(content).__name__}, expected a dict of '
                              'weights')
    return content


def install_safe_loader() -> None:
    """Makes mmengine read every local and http(s) checkpoint of this process by `read_checkpoint`.

    ``meta['config']`` is left out: mmengine's resume would evaluate it as a Python config.
    """
    from mmengine.runner import CheckpointLoader

    def load(filename, map_location=None, *args, **kwargs):
        content = read_checkpoint(filename, map_location)
        if isinstance(content.get('meta'), Mapping):
            content['meta'] = {key: value for key, value in content['meta'].items()
                               if key != 'config'}
        return content

    for scheme in ('', ('http://', 'https://')):
        CheckpointLoader.register_scheme(scheme, loader=load, force=True)


def _allowed_globals() -> list:
    """What mmengine's message hub and metrics put into a checkpoint beside tensors."""
    # Namespace holds nothing but values: the arguments that DeiT's and LaPE's trainers save
    allowed = [argparse.Namespace, np.ndarray, np.dtype, *(type(np.dtype(name)) for name in (
        'float64', 'float32', 'int64', 'int32', 'uint8', 'bool'))]
    try:
        from numpy._core.multiarray import _reconstruct, scalar
    except ImportError:  # numpy < 2
        from numpy.core.multiarray import _reconstruct, scalar
    # files of either numpy generation name these two by their own module
    for module in ('numpy._core.multiarray', 'numpy.core.multiarray'):
        allowed += [(_reconstruct, f'{module}._reconstruct'), (scalar, f'{module}.scalar')]
    try:
        from mmengine.logging import HistoryBuffer
    except ImportError:
        return allowed

    def statistic(owner, name):
        # a pickled buffer names its own statistics through getattr; this one knows no others
        if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
            raise pickle.UnpicklingError(f'Unsupported class getattr:{name}')
        return getattr(HistoryBuffer, name)

    return [*allowed, HistoryBuffer, (statistic, 'builtins.getattr')]


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


def _explain(error: pickle.UnpicklingError) -> str:
    if found := re.search(r'(?:GLOBAL|Unsupported class) (\S+)', str(error)):
        return f'refused, since loading it would run or build {found[1]}'
    return f'damaged, or holds more than weights ({_first_line(error)})'


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
