"""Finds the configs and tools of this package."""
from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """The folder ``configs`` or ``tools``: the installed one, or that of the imported checkout."""
    installed = PACKAGE / '.mim' / name
    return installed if installed.is_dir() else PACKAGE.parent / name
