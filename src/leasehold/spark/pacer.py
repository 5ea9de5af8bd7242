"""The pace of one instance's jobs: what the next one may take, by those that have ended."""

from __future__ import annotations

import threading
from dataclasses import replace

from leasehold.core import pacing
from leasehold.core.pacing import Cycle

JOBS_AT_ONCE = 2
"""One at work, and during a backlog another that is about to take over."""
LEAD = 0.25
"""How long before a job's end the next one begins, as a part of the cycle's target: planning it and
committing the one before then cost no time in which Spark has nothing to do."""

WAIT_MAX = 1 + LEAD
"""A job counts for no less than its whole time divided by this, however long it waited behind
another: a cycle that waits for long is too long all the same."""


class SharedTime:
    """How long each job took as if it had been alone: while several run, each has its share."""

    def __init__(self) -> None:
        self._used_s, self._at, self._running = 0.0, 0.0, 0

    def begin(self, now: float) -> float:
        """What to give to ``end``."""
        self._go_on(now)
        self._running += 1
        return self._used_s

    def end(self, now: float, begun: float) -> float:
        self._go_on(now)
        self._running -= 1
        return self._used_s - begun

    def _go_on(self, now: float) -> None:
        if self._running:
            self._used_s += (now - self._at) / self._running
        self._at = now


class Pacer:
    """Threads may share it."""

    def __init__(self, *, target_s: float, max_events: int, overlap: bool) -> None:
        self.target_s = target_s
        self.jobs_at_once = JOBS_AT_ONCE if overlap else 1
        self._pacing = pacing.begin(target_s, max_events)
        self._lock = threading.Lock()

    @property
    def events(self) -> int:
        """How many events a job may take that begins now."""
        return self._pacing.events

    @property
    def claim_events(self) -> int:
        """How many events all partitions may have claimed: enough for every job at once. The first
        job has all of them, or the second one would be as small, whatever the first one tells."""
        return self.events * (self.jobs_at_once if self._pacing.seen else 1)

    def is_full(self, events: int) -> bool:
        """Whether a job that begins now with so many takes about what it may: a backlog."""
        return 2 * events >= self.events

    def begin_next_s(self, events: int, *, full: bool) -> float:
        """How long a job of this size has worked when the next one may begin. Without a backlog, if
        it was not ``full`` when it began, what comes meanwhile is gathered for one job after it."""
        pacing = self._pacing
        if full and pacing.second:
            return 0.0
        ends_s = min(self.target_s, pacing.expected_s(events)) if full else self.target_s
        return max(0.0, ends_s - LEAD * self.target_s)

    def apart(self, events: int, seconds: float) -> Pacer:
        """For what has a pace of its own: it took so long, and was not done."""
        apart = Pacer(target_s=self.target_s, max_events=self._pacing.max_events, overlap=False)
        fitting = events * self.target_s / (pacing.CUT * max(seconds, self.target_s))
        apart._pacing = replace(apart._pacing, events=max(1, min(int(fitting), apart.events)))
        return apart

    def is_like(self, apart: Pacer, events: int, seconds: float) -> bool:
        """Whether what was apart is about as quick, by the job of it that has just ended. What is
        small says little, unless it took longer than its size explains."""
        if apart.is_full(events):
            apart.ended(events, seconds)
            return pacing.CHANGE * apart.events >= self.events
        apart.ended(events, seconds)
        return seconds <= pacing.CHANGE * self._pacing.expected_s(events)

    @property
    def knows(self) -> bool:
        """Whether a job was done since one was cancelled."""
        return bool(self._pacing.seen)

    def overdue_s(self, times: float = 1.0) -> float:
        """How long a job that begins now may take before it is cancelled for smaller ones."""
        return self._pacing.overdue_s(times)

    def take_all(self) -> None:
        """Begin with all that is allowed rather than small: for measurements."""
        self._pacing = replace(self._pacing, events=self._pacing.max_events)

    def ended(
        self, events: int, seconds: float, *, own_s: float | None = None, finished: bool = True
    ) -> None:
        """A job has ended. ``own_s``: how long it would have taken alone. Not ``finished``: it was
        cancelled, because it took too long."""
        if own_s is not None:
            seconds = max(own_s, seconds / WAIT_MAX)
        cycle = Cycle(events=events, seconds=seconds, finished=finished)
        with self._lock:
            self._pacing = self._pacing.after(cycle)
