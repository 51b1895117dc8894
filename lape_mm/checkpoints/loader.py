"""Makes mmengine load checkpoints safely."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .files import CheckpointError, read_checkpoint

# mmengine runs these entries as Python: the first on resume, the others in inferencers
CONFIGS = (('meta', 'config'), ('meta', 'cfg'), ('message_hub', 'runtime_info', 'cfg'))


def install_safe_loader() -> None:
    """Makes mmengine load every checkpoint of this process through `read_checkpoint`.

    Accepts only files and http(s), torchvision:// and open-mmlab:// addresses. Drops configs in a
    checkpoint, because mmengine would run them.
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
    """Reads a checkpoint, by default onto the CPU, and drops the configs in it."""
    checkpoint = read_checkpoint(filename, map_location or 'cpu')
    for path in CONFIGS:
        entry: Any = checkpoint
        for key in path[:-1]:
            entry = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(entry, dict):
            entry.pop(path[-1], None)
    return checkpoint


def _by_name(addresses: Callable[[], Mapping[str, str]]) -> Callable[..., dict]:
    def load_from_name(filename: str, map_location=None, **unused) -> dict:
        name, known = filename.partition('://')[2], addresses()
        if name not in known:
            raise CheckpointError(f'{filename}: unknown address; download the file')
        return load_from_file(known[name], map_location)
    return load_from_name
