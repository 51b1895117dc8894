"""Where the configs and tools of this package are."""
from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """``configs`` or ``tools``: as installed, or those of the checkout that is imported."""
    installed = PACKAGE / '.mim' / name
    return installed if installed.is_dir() else PACKAGE.parent / name
