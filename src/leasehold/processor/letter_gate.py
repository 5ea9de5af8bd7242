"""Lets an instance's poison events go to the dead letters, or holds them."""

from __future__ import annotations

from collections.abc import Callable

from leasehold.core.breaker import Breaker, Verdict
from leasehold.errors import DeadLettersHeld
from leasehold.ports import Clock, reason_of
from leasehold.settings import Retry


class LetterGate:
    """``held`` is told once each time that the breaker opens."""

    def __init__(self, retry: Retry, clock: Clock, held: Callable[[DeadLettersHeld], None]) -> None:
        self._breaker = Breaker(limit=retry.dead_in_a_row, pause_s=retry.backoff_max_s)
        self._clock, self._held = clock, held

    def verdict(self, tried_at: float) -> Verdict:
        return self._breaker.verdict(self._clock.monotonic(), tried_at)

    def handled(self) -> None:
        self._breaker = self._breaker.handled()

    def buried(self, error: str) -> None:
        was_open = self._breaker.open
        self._breaker = self._breaker.buried(self._clock.monotonic())
        if self._breaker.open and not was_open:
            self._held(
                DeadLettersHeld(
                    f"{self._breaker.in_a_row} events in a row became dead letters and none was "
                    f"handled in between, so it is hardly their fault; the last failed with "
                    f"{reason_of(error)}. Until one is handled, only one event in "
                    f"{self._breaker.pause_s:g} s becomes a letter. Mend the handler or what it "
                    "needs, then redrive the letters; if these events really are all bad, raise "
                    "Retry(dead_in_a_row=…)"
                )
            )
