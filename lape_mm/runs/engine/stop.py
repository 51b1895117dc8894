"""The exception with which a hook ends a run."""


class RunStopped(Exception):
    """Ends a run with a one-line message and an exit status instead of a traceback."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status
