"""When to stop dead-lettering: what fails for every event is no event's fault.

A broken setting, a missing package or a full disk fails for all events alike, and would send a
whole feed to the dead letters. So after ``limit`` letters in a row, with no event handled in
between by the same instance, the breaker is open. Then only one letter goes out in each
``pause_s``, and only if its event was tried once more after the pause. The first event that is
handled closes the breaker.

So a feed that really holds nothing but poison is not blocked forever; and if it is the handler's
fault after all, few events are set aside before somebody has read the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Whatever was wrong may be mended by now."""


@dataclass(frozen=True, slots=True)
class Bury:
    pass


Verdict = Bury | TryAgain | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    limit: int
    pause_s: float
    in_a_row: int = 0
    """Letters since an event was handled."""
    next_letter_at: float = -inf
    """No letter before then, once it is open."""

    @property
    def open(self) -> bool:
        return self.in_a_row >= self.limit

    def verdict(self, now: float, tried_at: float) -> Verdict:
        """About an event that failed often enough for a letter, and last when tried then."""
        if not self.open:
            return Bury()
        if now < self.next_letter_at:
            return Wait(seconds=self.next_letter_at - now)
        return Bury() if tried_at >= self.next_letter_at else TryAgain()

    def buried(self, now: float) -> Breaker:
        after = replace(self, in_a_row=self.in_a_row + 1)
        return replace(after, next_letter_at=now + self.pause_s) if after.open else after

    def handled(self) -> Breaker:
        return replace(self, in_a_row=0, next_letter_at=-inf) if self.in_a_row else self
