"""The log of an application's process: every entry on its own lines, floods counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from leasehold import OneLine

FORMAT = "%(asctime)s %(levelname)s %(message)s"
LINES, WITHIN_S = 60, 60.0


def start_log(handler: logging.Handler, level: int = logging.INFO) -> None:
    """Everything that the process logs, its libraries' included, goes there."""
    handler.addFilter(Floods(handler))
    handler.addFilter(OneLine())
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("py4j").setLevel(logging.WARNING)


@dataclass(slots=True)
class _Place:
    began_at: float
    first: logging.LogRecord
    count: int = 1


class Floods(logging.Filter):
    """Of one place in the code, ``lines`` within some time are written; more are counted, and at
    its end written as one. Anyone who can cause an entry could otherwise fill a disk."""

    def __init__(
        self,
        handler: logging.Handler,
        *,
        lines: int = LINES,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler, self._lines, self._within_s = handler, lines, within_s
        self._clock = clock
        self._places: dict[tuple[str, int], _Place] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "counts_others", False):
            return True
        key, now = (record.pathname, record.lineno), self._clock()
        with self._lock:
            place = self._places.get(key)
            if place is None or now - place.began_at >= self._within_s:
                self._places[key] = _Place(now, record)
                ended = place
            else:
                ended = None
                place.count += 1
                if place.count == self._lines + 1:  # the first that is left out
                    self._later(key, place.began_at + self._within_s - now)
        if ended is not None:
            self._tell(ended)
        return place is None or ended is not None or place.count <= self._lines

    def _later(self, key: tuple[str, int], seconds: float) -> None:
        timer = threading.Timer(seconds, self._over, (key,))
        timer.daemon = True
        timer.start()

    def _over(self, key: tuple[str, int]) -> None:
        with self._lock:
            place = self._places.pop(key, None)
        if place is not None:
            self._tell(place)

    def _tell(self, place: _Place) -> None:
        left_out = place.count - self._lines
        if left_out <= 0:
            return
        record = logging.makeLogRecord(place.first.__dict__)
        record.exc_info = record.exc_text = None
        record.msg = f"{left_out} more within {self._within_s:.0f} s like: {record.getMessage()}"
        record.args, record.counts_others = (), True
        record.created = time.time()
        self._handler.handle(record)
