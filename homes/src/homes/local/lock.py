"""One process at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from leasehold import BadInput

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
            # No other user may open it: anyone who can read it could hold it.
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        self._file = os.fdopen(handle, "ab")
        with suppress(OSError):  # one made by an earlier version
            path.chmod(0o600)
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
