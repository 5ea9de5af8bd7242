"""The request units that Cosmos DB charges each process of the application per second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from homes.local.status_files import read_statuses, write_status

EVERY_S = 5.0


class ChargeFile:
    def __init__(
        self, path: Path, charged: Sequence[object], wall: Callable[[], float] = time.time
    ) -> None:
        """``charged``: feeds, containers and stores, charged or not."""
        # Several may share a connection, which counts for all of them.
        counters = {id(each): each for each in map(_units_of, charged) if each is not None}
        self._path, self._wall, self._counters = path, wall, list(counters.values())
        self._last, self._at = self._charged(), wall()

    async def keep_writing(self) -> None:
        """Until it is cancelled; nothing if nothing is charged."""
        while self._counters:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.write)

    def write(self) -> None:
        now, charged = self._wall(), self._charged()
        seconds = max(now - self._at, 0.001)
        rates = {verb: round((n - self._last[verb]) / seconds, 1) for verb, n in charged.items()}
        self._last, self._at = charged, now
        write_status(self._path, now, {"per_s": rates})

    def _charged(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for each in self._counters:
            found.update(dict(each))  # copied at once, for its keeper goes on counting
        return found


def read_charges(folder: Path, wall: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """By process, as far as it is recent."""
    return read_statuses(folder, _charge, wall())


def _charge(said: Any) -> dict[str, Any]:
    return {"per_s": {str(verb): float(n) for verb, n in said["per_s"].items()}}


def _units_of(charged: object) -> Mapping[str, Any] | None:
    return getattr(charged, "request_units", None)
