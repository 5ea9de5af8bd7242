"""Small files that only their owner can read, and that several processes share."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: of two writers in one moment, the file may keep one's
    fcntl = None  # type: ignore[assignment]


@contextmanager
def private_file(path: Path, content: Any) -> Iterator[Path]:
    """A whole file of JSON that only its owner can read, to be put in the place of ``path``."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer at a time, whatever its process."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "wb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
