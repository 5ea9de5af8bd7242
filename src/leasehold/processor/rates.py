"""How many events a second each partition has lately, as the weight to balance by."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from leasehold.ports import Clock

MEMORY_S = 60.0
"""What was longer ago counts for little: long enough not to follow every burst."""
WARM_UP_S = 30.0
"""What is done in the first moments is mostly what had piled up before, and no rate."""
MEASURE_S = 30.0
"""A rate that nobody knew is measured for that long: events come in batches, and one or two of them
say how large a batch is rather than how many events there are in a second."""


@dataclass(slots=True)
class _Rate:
    weight: float
    """0: not known yet."""
    at: float
    """From when on events count."""
    events: int = 0


class EventRates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates: dict[str, _Rate] = {}

    def begin(self, partition: str, weight: float) -> None:
        """Work on it begins, here; ``weight`` is what its former owner found."""
        wait_s = 0.0 if weight > 0 else WARM_UP_S
        self._rates[partition] = _Rate(max(weight, 0.0), self._clock.monotonic() + wait_s)

    def add(self, partition: str, events: int) -> None:
        rate = self._rates[partition]
        if self._clock.monotonic() >= rate.at:
            rate.events += events

    def weight(self, partition: str) -> float:
        """Events per second, at least a little: an idle partition is some work, too. 0 while it is
        not known."""
        rate, now = self._rates[partition], self._clock.monotonic()
        passed = now - rate.at
        if passed <= 0 or (not rate.weight and passed < MEASURE_S):
            return rate.weight
        share = 1 - exp(-passed / MEMORY_S) if rate.weight else 1.0
        lately = rate.events / passed
        rate.weight = max(share * lately + (1 - share) * rate.weight, 1.0)
        rate.at, rate.events = now, 0
        return rate.weight
