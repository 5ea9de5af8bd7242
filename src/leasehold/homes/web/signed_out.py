"""Sessions that were signed out, until they would have expired: known to every web process of a
folder, and after a restart."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

from leasehold.homes.web.secrets import private_file

try:
    import fcntl
except ImportError:  # Windows: of two sign-outs in one moment, the file may keep one
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("leasehold")
LOOK_S = 1.0


class SignedOut:
    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        """Without a ``path``, only this process knows."""
        self._path, self._clock = path, clock
        self._expiry: dict[str, int] = {}
        self._lock = threading.Lock()
        self._looked_at = -inf
        self._seen: tuple[int, ...] = ()
        self._trouble = ""

    def __contains__(self, nonce: str) -> bool:
        now = self._clock()
        if self._path is not None and not 0 <= now - self._looked_at < LOOK_S:
            self._looked_at = now
            self._look(self._path)
        return nonce in self._expiry

    def add(self, nonce: str, expires_at: int) -> None:
        # First in memory, where it holds whatever becomes of the file.
        self._merge({nonce: expires_at})
        if self._path is not None:
            self._keep(self._path)

    def _merge(self, more: dict[str, int]) -> None:
        now = self._clock()
        with self._lock:
            self._expiry = {k: at for k, at in (self._expiry | more).items() if at > now}

    def _look(self, path: Path) -> None:
        """What other processes wrote."""
        try:
            found = path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._merge(_read(path))
                self._seen = seen
            self._trouble = ""
        except FileNotFoundError:
            pass
        except OSError as error:
            self._warn(f"{path}, with other processes' sign-outs, cannot be read", error)
        except ValueError:
            self._keep(path)

    def _keep(self, path: Path) -> None:
        try:
            with _locked(path):
                try:
                    self._merge(_read(path))
                except ValueError as error:
                    aside = path.with_name(f"{path.name}.damaged")
                    os.replace(path, aside)
                    log.error("%s is damaged (%s): set aside as %s", path, error, aside.name)
                with private_file(path, self._expiry) as made:
                    os.replace(made, path)
        except OSError as error:
            self._warn(f"{path} cannot be written; sign-outs hold until this process ends", error)

    def _warn(self, what: str, error: OSError) -> None:
        """Once, not every second."""
        if (trouble := f"{what}: {error.strerror}") != self._trouble:
            self._trouble = trouble
            log.warning(trouble)


def _read(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(at, int) for at in found.values()):
        raise ValueError("it has no sign-outs")
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, whatever its process."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(lock, "wb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
