"""What the pages say while the application starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from homes.domain.waiting import Startup, waiting_for
from homes.local.places import ACTIVITY
from homes.local.startup import startup_of
from homes.supervisor.fleet import Fleet
from homes.web.operations import Operations

LOOK_S = 1.0


class Waiting:
    """Asked for every answer, found out once a second."""

    def __init__(
        self,
        operations: Operations,
        fleet: Fleet | None = None,
        history: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``history``: how much of it the sensors have sent."""
        self._operations, self._fleet = operations, fleet
        self._history, self._clock = history, clock
        self._looked_at, self._text = -inf, ""

    def text(self) -> str:
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at, self._text = now, waiting_for(self._startup())
        return self._text

    def _startup(self) -> Startup:
        states = None
        if self._fleet is not None:
            states = [each.state for each in self._fleet.instances()]
        lag = self._operations.estimate(ACTIVITY)
        return startup_of(lag, history=self._history(), instances=states)
