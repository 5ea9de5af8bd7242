"""What every member's program has: its settings, its log, its aggregates. Standard library only,
for each program runs in the virtual environment of its own library."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

RECORD = Struct("<Iqd")
"""A partition, an offset, and when it was handled by the machine's monotonic clock."""
MINUTE_MS = 60_000

Partial = tuple[tuple[str, int], int, int, int, int]
"""Home and minute; count, sum, least and most."""


class PeerProcess:
    """One process of one group. It either logs what it handles until it is stopped, or aggregates
    ``events`` events and ends."""

    def __init__(self) -> None:
        told: dict[str, Any] = json.loads(sys.argv[1])
        self.brokers: str = told["brokers"]
        self.topic: str = told["topic"]
        self.group: str = told["group"]
        self.instance: str = told["instance"]
        self.commit_s: float = told["commit_s"]
        self.settings: dict[str, Any] = told["settings"]
        self.events: int = told.get("events", 0)
        self.columns = _by_column() if told.get("columns") else None
        self._out = Path(told["out"])
        # Unbuffered: what was handled before a SIGKILL is in the log.
        self._log = os.open(self._out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._began_s = 0.0
        threading.Thread(target=_end_with_parent, daemon=True).start()

    def begin(self) -> None:
        """Called with the first event: imports and connections are no part of the work."""
        self._began_s = time.process_time()

    def handled(self, partition: int, offset: int) -> None:
        os.write(self._log, RECORD.pack(partition, offset, time.monotonic()))

    def tell(self, aggregates: Aggregates, *, besides_s: float = 0.0) -> None:
        """Called right after the last event: what was found, and what it took. ``besides_s``: CPU
        time of other processes that worked for this one."""
        spent_s = time.process_time() - self._began_s + besides_s
        found = [[*key, *values] for key, values in sorted(aggregates.found.items())]
        self._out.write_text(json.dumps({"cpu_s": spent_s, "found": found}))


class Aggregates:
    """Per home and minute, of whole numbers: no order of the readings changes a sum."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        self.events = 0

    def add(self, reading: Mapping[str, Any]) -> None:
        value = reading["value"]
        self.merge((reading["home"], reading["time_ms"] // MINUTE_MS), 1, value, value, value)

    def add_all(self, partials: Iterable[Partial]) -> None:
        for each in partials:
            self.merge(*each)

    def merge(self, key: tuple[str, int], count: int, total: int, least: int, most: int) -> None:
        self.events += count
        if (before := self.found.get(key)) is None:
            self.found[key] = count, total, least, most
        else:
            self.found[key] = (
                before[0] + count,
                before[1] + total,
                min(before[2], least),
                max(before[3], most),
            )


def _by_column() -> Callable[[Sequence[bytes]], Iterable[Partial]]:
    # Polars loads slowly, and most members do without.
    from benchmarks.peers.columns import per_home_minute  # noqa: PLC0415

    return per_home_minute


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
