"""Alarms that residents of the demo raise themselves, to see what happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf

from starlette.exceptions import HTTPException

from homes.domain.kinds import SENSOR_KINDS

DRILLS = {kind.name: kind.drill_value for kind in SENSOR_KINDS if kind.drill_text}
"""By kind of sensor: the reading that it sends."""
PAUSE_S = 1.0
"""Between two drills of all residents together."""


class Drills:
    def __init__(
        self,
        send: Callable[[str, str, float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``send``: home, kind, value."""
        self._send, self._clock, self._last = send, clock, -inf

    async def start(self, home: str, kind: str) -> None:
        if kind not in DRILLS:
            raise HTTPException(404, f"there is no drill {kind!r}; there are {', '.join(DRILLS)}")
        if self._clock() - self._last < PAUSE_S:
            raise HTTPException(409, "a drill has only just begun; try again in a second")
        self._last = self._clock()
        await asyncio.to_thread(self._send, home, kind, DRILLS[kind])
