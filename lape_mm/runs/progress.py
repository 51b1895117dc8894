"""How far a tool is and how long it will take, on the terminal; logs and pipes get nothing."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track

Item = TypeVar('Item')


def progress(items: Sequence[Item], what: str) -> Iterable[Item]:
    """The items one by one, under a bar with the time left."""
    console = Console(stderr=True)
    return track(items, description=what, console=console, transient=True,
                 disable=not console.is_terminal)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Within, the time that has gone by: for one long step, whose end nobody can tell."""
    console = Console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn('{task.description}'), TimeElapsedColumn(),
                  console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield
