"""How many events a second each partition has lately, as the weight to balance by."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from leasehold.ports import Clock

MEMORY_S = 60.0
"""What was longer ago counts for little: long enough not to follow every burst."""


@dataclass(slots=True)
class _Rate:
    at: float
    events: int = 0
    per_s: float | None = None


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates: dict[str, _Rate] = {}

    def add(self, partition: str, events: int) -> None:
        self._rate(partition).events += events

    def weight(self, partition: str) -> float:
        """Events per second, at least a little: an idle partition is some work, too."""
        rate, now = self._rate(partition), self._clock.monotonic()
        passed = now - rate.at
        if passed > 0:
            lately = rate.events / passed
            share = 1.0 if rate.per_s is None else 1 - exp(-passed / MEMORY_S)
            rate.per_s = share * lately + (1 - share) * (rate.per_s or 0.0)
            rate.at, rate.events = now, 0
        return max(rate.per_s or 0.0, 1.0)

    def forget(self, partition: str) -> None:
        self._rates.pop(partition, None)

    def _rate(self, partition: str) -> _Rate:
        return self._rates.setdefault(partition, _Rate(self._clock.monotonic()))
