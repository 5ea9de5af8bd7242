"""What to do after a handler failed: wait and try again, bisect, dead-letter, or give up.

A batch is tried whole ``attempts`` times. If dead-lettering is on, a binary search then finds the
first event that fails: every try begins at the checkpoint, a success moves the checkpoint to where
the next try begins, a failure narrows the next try. So events are handled in order, none again
after a success, and an event is poison only after ``attempts`` tries alone. The rest of the batch
then gets one try whole before it is searched in turn: about log2(events) + attempts tries per
poison event.

All that outlives a crash is the lease's checkpoint and its ``attempts``, so that number says both
how often and how narrowly the event at the checkpoint was tried:

- up to ``Retry.attempts``: failed tries of the whole batch;
- above that: the search is on, one more for each time it has halved what it knows to fail;
- above ``ALONE``: the event at the checkpoint was tried alone, ``attempts - ALONE`` times.

Only tries alone can make an event poison, and they have numbers of their own. Therefore neither a
batch of another size nor a ``Retry`` with other settings can condemn an event never tried alone.

A crash counts too. Whoever drives a ``Bisection`` writes its ``attempts_if_unfinished`` to the
lease before a try, unless its ``attempts`` is still 0: healthy batches cost no write. Instead,
whoever takes the lease from an owner that died resumes with at least 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Then = Literal["retry-forever", "stop", "dead-letter"]
Do = Literal["again", "bisect", "dead-letter", "give-up"]

ALONE = 1_000_000
ATTEMPTS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often to try, how long to wait between, and what then."""

    attempts: int = 5
    then: Then = "retry-forever"
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        _require(1 <= self.attempts <= ATTEMPTS_MAX, "attempts", f"1 to {ATTEMPTS_MAX}", self)
        _require(self.then in get_args(Then), "then", f"one of {', '.join(get_args(Then))}", self)
        _require(0 <= self.backoff_s < math.inf, "backoff_s", "0 or more", self)
        _require(
            self.backoff_s <= self.backoff_max_s < math.inf,
            "backoff_max_s",
            f"backoff_s ({self.backoff_s}) or more",
            self,
        )
        _require(1 <= self.factor < math.inf, "factor", "1 or more", self)

    def delay_s(self, tries: int, chance: float) -> float:
        """The wait after that many failed tries.

        Half of it is fixed, so that nothing ever spins; half is by ``chance`` in [0, 1), so that
        partitions that failed together do not come back together.
        """
        try:
            full = self.backoff_s * float(self.factor) ** max(0, tries - 1)
        except OverflowError:
            full = self.backoff_max_s
        return min(full, self.backoff_max_s) * (1 + chance) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    do: Do
    delay_s: float = 0.0


def decide(retry: Retry, attempts: int, chance: float) -> Decision:
    """What to do once a try has failed and was counted in ``attempts``."""
    alone = attempts >= ALONE
    if retry.then == "retry-forever" or tries(attempts) < retry.attempts:
        return Decision(do="again", delay_s=retry.delay_s(tries(attempts), chance))
    if retry.then == "stop":
        return Decision(do="give-up")
    return Decision(do="dead-letter" if alone else "bisect")


def tries(attempts: int) -> int:
    """A lease's ``attempts`` as a number for people: without the mark for tries alone."""
    return attempts - ALONE if attempts >= ALONE else attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """A batch in hand, of which everything before ``first`` is done. Begin with ``resume``.

    Positions may be sequences, or indexes into the batch if sequences have gaps.
    """

    retry: Retry
    first: int
    end: int
    bad_end: int | None = None
    """While searching: something before it fails."""
    attempts: int = 0
    """For the lease, beside a checkpoint at ``first``."""

    @property
    def done(self) -> bool:
        return self.first == self.end

    @property
    def poison(self) -> bool:
        """The event at ``first`` must not be tried again, but dead-lettered."""
        enough = self.attempts >= ALONE + self.retry.attempts
        return enough and self.retry.then == "dead-letter" and not self.done

    @property
    def target(self) -> range:
        """What to try next, in one handler call."""
        if self.bad_end is None:
            return range(self.first, self.end)
        return range(self.first, self.first + _half(self.bad_end - self.first))

    @property
    def attempts_if_unfinished(self) -> int:
        """``attempts`` as it will be if the next try fails, or is never heard of again."""
        if len(self.target) == 1:
            return max(self.attempts, ALONE) + 1
        return min(tries(self.attempts) + 1, ALONE - 1)

    def failed(self) -> Bisection:
        attempts = self.attempts_if_unfinished
        searching = self.retry.then == "dead-letter" and attempts >= self.retry.attempts
        bad_end = self.target.stop if searching else None
        return replace(self, bad_end=bad_end, attempts=attempts)

    def succeeded(self) -> Bisection:
        first = self.target.stop
        if self.bad_end is None or first == self.bad_end:
            return replace(self, first=first, bad_end=None, attempts=0)
        # The first half was fine, so what fails is in the second: no need to try that whole.
        return replace(self, first=first, attempts=self.attempts + 1)

    def dead_lettered(self) -> Bisection:
        """Go on behind the poison event, which is now safe in the dead-letter store."""
        rest = replace(self, first=self.first + 1, bad_end=None, attempts=self.retry.attempts - 1)
        return replace(rest, attempts=0) if rest.done else rest


def resume(retry: Retry, first: int, end: int, attempts: int = 0) -> Bisection:
    """The batch that begins at a lease's checkpoint, tried before as ``attempts`` says."""
    batch = Bisection(retry=retry, first=first, end=end, attempts=attempts)
    if retry.then != "dead-letter" or attempts < retry.attempts or batch.done:
        return batch
    if attempts >= ALONE:
        return replace(batch, bad_end=first + 1)
    halvings = attempts - retry.attempts
    # Rounded up like ``_half``, so that what failed before is not left out.
    return replace(batch, bad_end=first - ((first - end) >> halvings))


def _half(size: int) -> int:
    return (size + 1) // 2


def _require(holds: bool, setting: str, wanted: str, retry: Retry) -> None:
    if not holds:
        raise ValueError(f"Retry: {setting} must be {wanted}, but is {getattr(retry, setting)!r}")
