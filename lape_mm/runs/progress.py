"""A progress bar on terminals; logs and pipes get nothing."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar('Item')


def progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Yields the items and shows a bar with the remaining time."""
    console = Console(stderr=True)
    return track(items, description=what, console=console, transient=True,
                 disable=not console.is_terminal)
