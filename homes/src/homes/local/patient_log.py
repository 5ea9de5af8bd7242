"""A log that a full disk delays, but neither tears nor loses."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

LINES_MAX = 500
AGAIN_S = 1.0


class PatientLog(logging.Handler):
    """Writes to an open file. What its disk does not take waits, and is written when there is room:
    the first lines of it, which say what began when."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._again: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        if len(self._waiting) < LINES_MAX:
            self._waiting.append(line)
        else:
            self._left_out += 1
        if self._again is None:
            self.flush()

    def flush(self) -> None:
        """What can be written now; the rest by itself."""
        with self.lock or threading.RLock():
            self._again = None
            try:
                self._write()
            except OSError:
                self._again = threading.Timer(AGAIN_S, self.flush)
                self._again.daemon = True
                self._again.start()

    def _write(self) -> None:
        while self._waiting:
            line = self._waiting.popleft()
            try:
                written = os.write(self._file, line)
            except OSError:
                self._waiting.appendleft(line)
                raise
            if written < len(line):
                self._waiting.appendleft(line[written:])
            elif not self._waiting and self._left_out:
                self._waiting.append(b"... and %d lines that were left out\n" % self._left_out)
                self._left_out = 0
