"""mmengine's own reading of checkpoints, by `read_checkpoint`."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .files import CheckpointError, read_checkpoint

# mmengine evaluates these as Python: the first in resuming, the others in inferencers
CONFIGS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))


def install_safe_loader() -> None:
    """Makes mmengine read every checkpoint of this process by `read_checkpoint`.

    Files, http(s) addresses, and the names that torchvision:// and open-mmlab:// stand for are
    read; other stores are refused. Configs that a checkpoint carries as text are left out, since
    mmengine would run them; a resumed run keeps its own.
    """
    from mmengine.runner import CheckpointLoader
    from mmengine.runner.checkpoint import get_external_models, get_torchvision_models
    for schemes, loader in (
            (('', 'http://', 'https://'), load_from_file),
            (('torchvision://', 'modelzoo://'), _by_name(get_torchvision_models)),
            (('open-mmlab://', 'openmmlab://'), _by_name(get_external_models)),
            (('pavi://', r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'mmcls://'), _by_name(dict))):
        CheckpointLoader.register_scheme(schemes, loader=loader, force=True)


def load_from_file(filename: str, map_location=None, **unused) -> dict:
    """A checkpoint without the configs in it; with None as map_location on the CPU."""
    checkpoint = read_checkpoint(filename, map_location or 'cpu')
    for *outer, name in CONFIGS:
        entry: Any = checkpoint
        for key in outer:
            entry = entry.get(key) if isinstance(entry, Mapping) else None
        if isinstance(entry, dict):
            entry.pop(name, None)
    return checkpoint


def _by_name(addresses: Callable[[], Mapping[str, str]]) -> Callable[..., dict]:
    def load_from_name(filename: str, map_location=None, **unused) -> dict:
        name, known = filename.partition('://')[2], addresses()
        if name not in known:
            raise CheckpointError(f'{filename}: not known here: download the file and name it')
        return load_from_file(known[name], map_location)
    return load_from_name
