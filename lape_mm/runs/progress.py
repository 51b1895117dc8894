"""A progress bar on terminals; logs and pipes get nothing."""
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import track


def progress(items: Sequence[Any], what: str) -> Iterable[Any]:
    """Yields the items and shows a bar with the remaining time."""
    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)
