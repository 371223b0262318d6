"""What the explorer says no to."""

from bndl.errors import BndlError

__all__ = ["RefusedError"]


class RefusedError(BndlError):
    """A request that is not answered: one sentence for the reader, and HTTP's status for the browser."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
