"""Lists in messages."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def some(values: Sequence, most: int = 3, show: Callable[[Any], str] = repr) -> str:
    """The first few values of a list, and how many more there are: ``'a', 'b' and 4 more``."""
    shown = ', '.join(map(show, values[:most]))
    return shown + (f' and {len(values) - most} more' if len(values) > most else '')
