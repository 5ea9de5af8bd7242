"""The latest cycle of each pipeline instance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from homes.local.status_files import read_statuses, write_status

PARTS = ("plan", "job", "commit")
FIELDS = {"target_s": float, "seconds": float, "events": int, "bytes": int}


class CycleFile:
    """Written by one instance after each cycle."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path, self._wall = path, wall

    def write(self, progress: Any) -> None:
        """``progress`` is a ``leasehold.spark.Progress``."""
        said = {
            "target_s": progress.target_s,
            "seconds": round(progress.seconds, 3),
            "events": progress.events,
            "bytes": progress.size_bytes,
            "parts": {part: round(progress.parts.get(part, 0.0), 3) for part in PARTS},
        }
        write_status(self._path, self._wall(), said)


def read_cycles(folder: Path, wall: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """By instance, as far as its last cycle is recent."""
    return read_statuses(folder, _cycle, wall())


def _cycle(said: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: kind(said[name]) for name, kind in FIELDS.items()}
    return found | {"parts": {part: float(said["parts"][part]) for part in PARTS}}
