"""What is remembered for some time, such as sessions that were signed out before they expired:
known to every web process of a folder, and after a restart."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path

from homes.web.private_files import locked, private_file
from leasehold import strict_json

log = logging.getLogger("leasehold")
LOOK_S = 1.0


class KeptUntil:
    def __init__(
        self, path: Path | None, clock: Callable[[], float], *, what: str, most: int | None = None
    ) -> None:
        """Without a ``path``, only this process knows. ``what``: in words, for the log. ``most``:
        more than that, and those that are kept longest stay."""
        self._path, self._clock, self._what, self._most = path, clock, what, most
        self._expiry: dict[str, int] = {}
        self._lock = threading.Lock()
        self._looked_at = -inf
        self._seen: tuple[int, ...] = ()
        self._trouble = ""

    def __contains__(self, key: str) -> bool:
        now = self._clock()
        if self._path is not None and not 0 <= now - self._looked_at < LOOK_S:
            self._looked_at = now
            self._look(self._path)
        return key in self._expiry

    def add(self, key: str, until: int) -> None:
        if self._expiry.get(key, -inf) >= until:
            return
        # First in memory, where it holds whatever becomes of the file.
        self._merge({key: until})
        if self._path is not None:
            self._keep(self._path)

    def _merge(self, more: dict[str, int]) -> None:
        now = self._clock()
        with self._lock:
            longest = {k: max(at, self._expiry.get(k, at)) for k, at in more.items()}
            kept = {k: at for k, at in (self._expiry | longest).items() if at > now}
            if self._most is not None and len(kept) > self._most:
                kept = dict(sorted(kept.items(), key=lambda item: item[1])[-self._most :])
            self._expiry = kept

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
            self._warn(f"{path}, with other processes' {self._what}, cannot be read", error)
        except ValueError:
            self._keep(path)

    def _keep(self, path: Path) -> None:
        try:
            with locked(path):
                try:
                    self._merge(_read(path))
                except ValueError as error:
                    aside = path.with_name(f"{path.name}.damaged")
                    os.replace(path, aside)
                    log.error("%s is damaged (%s): set aside as %s", path, error, aside.name)
                with private_file(path, self._expiry) as made:
                    os.replace(made, path)
        except OSError as error:
            self._warn(
                f"{path} cannot be written; {self._what} hold until this process ends", error
            )

    def _warn(self, what: str, error: OSError) -> None:
        """Once, not every second."""
        if (trouble := f"{what}: {error.strerror}") != self._trouble:
            self._trouble = trouble
            log.warning(trouble)


def _read(path: Path) -> dict[str, int]:
    try:
        found = strict_json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(at, int) for at in found.values()):
        raise ValueError("it has no times by name")
    return found
