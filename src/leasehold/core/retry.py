"""What to do after a handler failed: wait and try again, bisect, dead-letter, or give up.

A batch is tried whole ``attempts`` times. If dead-lettering is on, a binary search then finds the
first event that fails: every try begins at the checkpoint, a success moves the checkpoint to where
the next try begins, a failure narrows the next try. So events are handled in order, none again
after a success, and an event is poison only after ``attempts`` tries alone. The rest of the batch
then gets one try whole before it is searched in turn: about log2(events) + attempts tries per
poison event.

All that outlives a crash is the lease's checkpoint and its ``attempts``. So that number holds all
that is known about the events from the checkpoint on, and a search is resumed just where it was:

- below ``ALONE``: the batch failed that often;
- ``ALONE`` + n: the next event failed n times alone;
- ``WITHIN`` + n: something within the next n events fails.

Only tries alone can make an event poison, and they have numbers of their own. Therefore neither a
batch of another size nor a ``Retry`` with other settings can condemn an event never tried alone.

A crash counts too. The caller of a ``Bisection`` writes its ``attempts_if_unfinished`` to the
lease before a try, unless its ``attempts`` is still 0: healthy batches cost no write. Instead,
the instance that takes over from a dead owner resumes with at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from leasehold.settings import Retry

Do = Literal["again", "bisect", "dead-letter", "give-up"]

ALONE = 1_000_000
WITHIN = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    do: Do
    delay_s: float = 0.0


def decide(retry: Retry, attempts: int, chance: float) -> Decision:
    """What to do once a try has failed and was counted in ``attempts``."""
    if attempts >= WITHIN:
        return Decision(do="bisect")
    tries = _tries(attempts)
    if retry.then == "retry-forever" or tries < retry.attempts:
        return Decision(do="again", delay_s=retry.delay_s(tries, chance))
    if retry.then == "stop":
        return Decision(do="give-up")
    return Decision(do="dead-letter" if attempts >= ALONE else "bisect")


def describe(attempts: int) -> str:
    """A lease's ``attempts`` for people."""
    if attempts >= WITHIN:
        return f"failing within the next {attempts - WITHIN} events"
    if attempts >= ALONE:
        return f"next event failed {attempts - ALONE} times alone"
    return f"batch failed {attempts} times" if attempts else "no failure"


def describe_try(retry: Retry, attempts: int) -> str:
    """The try that has just failed, for a log."""
    if attempts >= WITHIN:
        return f"one of the next {attempts - WITHIN} events fails"
    most = "" if retry.then == "retry-forever" else f" of {retry.attempts}"
    return f"try {_tries(attempts)}{most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """A batch in hand, of which everything before ``first`` is done. Begin with ``resume``.

    Positions may be sequences, or indexes into the batch if sequences have gaps.
    """

    retry: Retry
    first: int
    end: int
    attempts: int = 0
    """For the lease, beside a checkpoint at ``first``; also once the batch is done."""

    @property
    def done(self) -> bool:
        return self.first == self.end

    @property
    def poison(self) -> bool:
        """The event at ``first`` must not be tried again, but dead-lettered."""
        enough = ALONE + self.retry.attempts <= self.attempts < WITHIN
        return enough and self.retry.then == "dead-letter" and not self.done

    @property
    def target(self) -> range:
        """What to try next, in one handler call."""
        if self.attempts < ALONE or self.retry.then != "dead-letter":
            return range(self.first, self.end)
        half = (self._suspects + 1) // 2
        return range(self.first, min(self.first + half, self.end))

    @property
    def attempts_if_unfinished(self) -> int:
        """``attempts`` as it will be if the next try fails, or is never heard of again."""
        size = len(self.target)
        if size == 1:
            alone = self.attempts - ALONE if ALONE <= self.attempts < WITHIN else 0
            return min(ALONE + alone + 1, WITHIN - 1)
        tries = _tries(self.attempts) + 1
        if self.retry.then == "dead-letter" and tries >= self.retry.attempts:
            return WITHIN + size
        return min(tries, ALONE - 1)

    def failed(self) -> Bisection:
        return replace(self, attempts=self.attempts_if_unfinished)

    def succeeded(self) -> Bisection:
        """If half of the suspects were fine, the other half fails: no need to try that whole."""
        suspects = max(0, self._suspects - len(self.target))
        first = self.target.stop
        return replace(self, first=first, attempts=WITHIN + suspects if suspects else 0)

    def dead_lettered(self) -> Bisection:
        """Go on behind the poison event, which is now safe in the dead-letter store."""
        first = self.first + 1
        return replace(
            self, first=first, attempts=self.retry.attempts - 1 if first < self.end else 0
        )

    @property
    def _suspects(self) -> int:
        """How many of the next events are known to hold one that fails; 0 if not known."""
        if self.attempts >= WITHIN:
            return self.attempts - WITHIN
        return 1 if self.attempts >= ALONE else 0


def resume(retry: Retry, first: int, end: int, attempts: int = 0) -> Bisection:
    """The batch that begins at a lease's checkpoint, tried before as its ``attempts`` says."""
    if retry.then != "dead-letter" and attempts >= WITHIN:
        # The search is switched off; it had begun after this many tries.
        attempts = retry.attempts
    return Bisection(retry=retry, first=first, end=end, attempts=attempts)


def _tries(attempts: int) -> int:
    return attempts - ALONE if attempts >= ALONE else attempts
