"""Formats lists, errors and paths for messages."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any


def some(values: Sequence, most: int = 3, show: Callable[[Any], str] = repr) -> str:
    """The first few values of a list, and how many more there are: ``'a', 'b' and 4 more``."""
    shown = ', '.join(map(show, values[:most]))
    return shown + (f' and {len(values) - most} more' if len(values) > most else '')


def first_line(error: BaseException | str, *, kind: bool = False, most: int = 200) -> str:
    """The first line of an error's text, after its type if ``kind``; the type if it has no text."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return (f'{type(error).__name__}: ' if kind else '') + ' '.join(lines[0].split())[:most]


def short(path: str | os.PathLike) -> str:
    """A path, relative to the current folder or absolute, whichever is shorter."""
    absolute = os.path.abspath(path)
    return min(os.path.relpath(absolute), absolute, key=len)
