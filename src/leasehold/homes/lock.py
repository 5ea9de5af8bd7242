"""One process at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from leasehold.errors import BadInput

try:
    import fcntl
except ImportError:  # not on every platform; there, nobody watches
    fcntl = None  # type: ignore[assignment]


class Busy(BadInput):
    """Another process is at it."""


class Lock:
    """Held until it is released or the process dies."""

    def __init__(self, path: Path, busy: str) -> None:
        """``busy``: what to say if another process has it."""
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._file.close()
                raise Busy(f"{busy} (it holds {path}); stop it first") from None

    def release(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
