"""How a hook ends a run with a message instead of a traceback."""
from __future__ import annotations


class RunStopped(Exception):
    """A run that ends before its end, for a reason that its user has to know.

    Args:
        message: one line.
        status: the exit status of the tool that runs it.
    """

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status
