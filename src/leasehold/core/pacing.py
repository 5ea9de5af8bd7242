"""How much a cycle takes, so that it lasts about as long as it should.

A cycle costs something whatever its size, and then something for each event. How much that is
nobody knows beforehand, and it changes: so each cycle that has ended says how large the next one
may be. A cycle that was too long makes the next one smaller at once; growth takes a few cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from leasehold.core.ranges import Range, pick

FIRST_EVENTS = 20_000
"""Of the first cycle, before anything was measured."""
GROWTH_MAX = 16.0
"""What is fixed makes small cycles look slow, so one that fits by their rate is never too large."""
CUT = 4.0
"""How much smaller than what fits a cycle is after one that was cancelled."""
SEEN_MAX = 16
"""How many of the last cycles tell what a cycle costs whatever its size."""
CHANGE = 3.0
"""A cycle that takes so many times as long as its size explains, or as short: what was seen before
says nothing any more."""
DOUBT, FEW = 1.3, 4
OVERDUE = 3.0
"""A cycle that takes so many times as long as it should is not waited for."""
UNKNOWN = 10.0
"""A cycle of which nothing is known may take so many times as long: the first one, for which there
is much to load, and one after one that was cancelled. Each that is cancelled all the same, twice as
long as the one before, until one is done and tells what they cost now."""
DOUBLED_MAX = 20
"""Days. A user's limit may cancel thousands of cycles in a row, each after a second."""
QUICK = 0.25
"""A cycle that takes no more of its target than this: most of it may be what is fixed."""
KEPT = 0.95
"""How much of that knowledge is left after each further cycle of about the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One that has ended."""

    events: int
    seconds: float
    finished: bool = True
    """False: it was cancelled. How long it would have taken nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    target_s: float
    max_events: int
    events: int
    """How many events the next cycle may take."""
    fixed_s: float = 0.0
    """What a cycle costs whatever its size, as far as known."""
    seen: tuple[Cycle, ...] = ()
    in_vain: int = 0
    """How many were cancelled since nothing is known."""
    alike: int = 0
    """How many of the last cycles were as large as they might be, and all of about one size."""

    @property
    def wanted_s(self) -> float:
        """The target; but a cycle should not spend most of its time on what is fixed."""
        return max(self.target_s, 2 * self.fixed_s)

    def overdue_s(self, times: float = 1.0) -> float:
        """How long a cycle that begins now may take, before smaller ones are tried instead.
        ``times``: what was cancelled is to be given twice as long each time it comes again. So it
        is done in the end, whatever it costs, and nothing is waited for without end."""
        if not self.seen:
            return OVERDUE * self.wanted_s * max(UNKNOWN * 2.0**self.in_vain, times)
        return OVERDUE * max(self.wanted_s, _typical(self.seen)[1]) * times

    @property
    def second(self) -> bool:
        """One cycle is all that was seen, and it was quick: the next one is so small, too, that
        another may run beside it. What comes after them may not, nor what follows a slow one."""
        return len(self.seen) == 1 and self.seen[0].seconds <= QUICK * self.target_s

    def expected_s(self, events: int) -> float:
        """How long a cycle of this size takes, by the last ones; without any, the target."""
        if not self.seen:
            return self.target_s
        usual_events, usual_s = _typical(self.seen[-FEW:])
        fixed_s = min(self.fixed_s, usual_s)
        return fixed_s + (usual_s - fixed_s) * events / usual_events

    def after(self, cycle: Cycle) -> Pacing:
        """The pace once this cycle has ended."""
        if cycle.events < 1:
            return self
        if not cycle.finished:
            return self._cut(cycle)
        learned = self._learned(cycle)
        fitting = cycle.events * learned.wanted_s / max(cycle.seconds, 1e-3)
        if cycle.seconds > learned.wanted_s:
            events = min(float(self.events), fitting)
        else:  # a small one says little about large ones, and is no reason to take less
            events = max(float(self.events), min(fitting, self.events * GROWTH_MAX))
        if learned.alike >= SEEN_MAX:  # take less once (or more), to find out what is fixed
            events = events / 3 if events >= 3 else 4.0
            learned = replace(learned, alike=0)
        return replace(learned, events=max(1, min(int(events), self.max_events)))

    def _cut(self, cycle: Cycle) -> Pacing:
        """So small that it fits even if the cancelled one was far from its end: to grow again takes
        a cycle or two. Not if nothing is known: it may be slow whatever its size, and then to grow
        again takes long."""
        events, in_vain = cycle.events / CUT, min(self.in_vain + 1, DOUBLED_MAX)
        if self.seen:
            events, in_vain = events * self.wanted_s / max(cycle.seconds, self.wanted_s), 0
        events = max(1, min(int(events), self.events))
        return replace(self, events=events, seen=(), in_vain=in_vain, alike=0)

    def _learned(self, cycle: Cycle) -> Pacing:
        known = _fits(cycle, self.seen)
        before = self if known else replace(self, seen=(), fixed_s=0.0)
        seen = _consistent((*before.seen, cycle)[-SEEN_MAX:])
        fixed_s = _fixed_s(seen)
        if fixed_s is not None:
            return replace(before, seen=seen, fixed_s=fixed_s, in_vain=0, alike=0)
        full = 2 * cycle.events >= self.events
        fixed_s, alike = KEPT * before.fixed_s, before.alike + full
        return replace(before, seen=seen, fixed_s=fixed_s, in_vain=0, alike=alike)


def _fits(cycle: Cycle, seen: Sequence[Cycle]) -> bool:
    """Whether its time may be explained by its size, be it that all costs are fixed or none."""
    if len(seen) < 2:
        return True
    events, seconds = _typical(seen)
    in_proportion_s = seconds * cycle.events / events
    least_s, most_s = sorted((seconds, in_proportion_s))
    return least_s / CHANGE <= cycle.seconds <= most_s * CHANGE


def _consistent(seen: tuple[Cycle, ...]) -> tuple[Cycle, ...]:
    """If small ones took longer than large ones, something has changed: the last ones count."""
    small, large = _by_size(seen)
    if small and _typical(small)[1] > DOUBT * _typical(large)[1]:
        return seen[-FEW:]
    return seen


def _by_size(seen: Sequence[Cycle]) -> tuple[list[Cycle], list[Cycle]]:
    largest = max(each.events for each in seen)
    small = [each for each in seen if 2 * each.events <= largest]
    return small, [each for each in seen if 2 * each.events > largest]


def _fixed_s(seen: Sequence[Cycle]) -> float | None:
    """What cycles of no size would take, by small ones and large ones. Medians, since on a busy
    machine single cycles take any time. None: they are all of about one size."""
    small, large = _by_size(seen)
    if not small:
        return None
    events, seconds = _typical(small)
    more_events, longer_s = _typical(large)
    each_s = max(0.0, (longer_s - seconds) / (more_events - events))
    return min(max(0.0, seconds - each_s * events), longer_s)


def _typical(cycles: Sequence[Cycle]) -> tuple[float, float]:
    return median(each.events for each in cycles), median(each.seconds for each in cycles)


def begin(target_s: float, max_events: int) -> Pacing:
    return Pacing(target_s=target_s, max_events=max_events, events=min(FIRST_EVENTS, max_events))


def share(
    backlogs: Sequence[Range],
    *,
    events: int,
    events_each: int,
    bytes_of: Mapping[str, float],
    max_bytes: int,
    turn: int = 0,
) -> dict[str, Range]:
    """What each partition with a backlog may take now: together at most so many events and bytes,
    and none more than ``events_each``. Whatever the bounds, each takes one event at least, so none
    waits for ever. ``bytes_of``: the size of an event by partition, where it is known."""
    picked = pick(backlogs, events, turn=turn)
    sizes = {each.partition: min(len(each), events_each) for each in picked}
    size_bytes = sum(size * bytes_of.get(name, 0.0) for name, size in sizes.items())
    part = min(1.0, max_bytes / size_bytes) if size_bytes else 1.0
    return {
        each.partition: replace(
            each, end=each.first + max(1, int(sizes.get(each.partition, 1) * part))
        )
        for each in backlogs
        if len(each)
    }
