"""Time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time for everything outside ``core``: real in production, virtual in simulation."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...
