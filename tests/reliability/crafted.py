"""Checkpoint files with any content."""
from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable

import torch


class Call:
    """An object that calls a function when it is unpickled carelessly.

    Args:
        function: any function that pickle can name.
        arguments: of the call.
        state: for the result's ``__setstate__``; None for none.
    """

    def __init__(self, function: Callable, *arguments, state=None):
        self.parts = (function, arguments) + (() if state is None else (state,))

    def __reduce__(self):
        return self.parts

    def __call__(self):
        """Never called; pickle requires callables to be callable."""


def saved(content, **options) -> bytes:
    """The bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def safetensors(header, data: bytes = b'', *, length: int | None = None) -> bytes:
    """A .safetensors file; ``header`` is an object or its JSON text."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack('<Q', len(text) if length is None else length) + text + data
