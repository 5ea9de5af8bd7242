"""Who did what, from where, and with what result: one line of JSON each, in a file of its own that
only its owner can read. No secret is ever in it, right or wrong."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homes.web.private_files import locked

log = logging.getLogger("leasehold")
FILE_BYTES_MAX = 8 << 20
FILES = 5
REPEATED_WITHIN_S = 60.0
KEYS_MAX = 10_000


class Audit:
    def __init__(
        self,
        path: Path | None,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files: int = FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """At most ``files`` of ``file_bytes_max`` are kept; the newest is ``path``, the others
        have a number behind it. Without a ``path``, nothing is."""
        self._path, self._clock = path, clock
        self._file_bytes_max, self._files = file_bytes_max, files
        self._repeats = Repeats(REPEATED_WITHIN_S)
        self._lock = threading.Lock()
        self._failing = False

    def write(self, action: str, *, who: str, address: str, result: str, **more: Any) -> None:
        entry = {"action": action, "who": who, "address": address, "result": result, **more}
        self._append(entry)

    def repeated(self, action: str, *, who: str, address: str, result: str, **more: Any) -> None:
        """For what anybody can cause as often as they like: once a minute, with how often."""
        times = self._repeats.times((action, who, address, result))
        if times:
            entry = {"action": action, "who": who, "address": address, "result": result, **more}
            self._append({**entry, "times": times})

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is None:
            return
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        # ASCII: whatever is in a name, it stays on its line and moves no cursor.
        line = json.dumps({"at": at, **entry}).encode() + b"\n"
        try:
            with self._lock, locked(self._path):
                self._rotate(self._path, len(line))
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(file, line)
                finally:
                    os.close(file)
            self._failing = False
        except OSError as error:
            if not self._failing:  # nobody is kept out because a disk is full
                log.error("the audit log %s cannot be written: %s", self._path, error.strerror)
            self._failing = True

    def _rotate(self, path: Path, more: int) -> None:
        try:
            if path.stat().st_size + more <= self._file_bytes_max:
                return
        except FileNotFoundError:
            return
        names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, self._files))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                os.replace(newer, older)
        if self._files == 1:
            path.unlink()


class Repeats:
    """The same thing over and over: told about once in some time."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s, self._clock = within_s, clock
        self._seen: dict[Any, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def times(self, key: Any) -> int:
        """How often since it was told last; 0: it was just told."""
        now = self._clock()
        with self._lock:
            told_at, count = self._seen.pop(key, (-self._within_s, 0))
            due = now - told_at >= self._within_s
            self._seen[key] = (now, 0) if due else (told_at, count + 1)
            while len(self._seen) > KEYS_MAX:
                del self._seen[next(iter(self._seen))]
        return count + 1 if due else 0
