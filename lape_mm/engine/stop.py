"""How a hook ends a run with a message instead of a traceback."""
from __future__ import annotations


class RunStopped(Exception):
    """Ends a run with a one-line message, and its tool with an exit status."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status
