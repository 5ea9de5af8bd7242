"""How long a job may take and how much it may have, by its partitions.

Usually all partitions share one pace. One whose job was overdue is given twice as long each time,
for others may be quick meanwhile, and say nothing about what took too long. One to which it happens
again while other jobs are done has jobs of its own, with a pace of its own, until it is about as
quick as the others: its events may cost far more than theirs, by which it would be cut too little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leasehold.core.ranges import Range
from leasehold.spark.pacer import Pacer

QUICK_JOBS = 8
"""After one that was overdue, jobs have twice as long, until so many in a row did not need it: if
every few jobs one is slow whatever its size, each would be cancelled for smaller ones. More than
twice would be too much: a job that hangs now and then holds its partition up for all of it."""


class Patience:
    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._overdue: Counter[str] = Counter()
        """By partition: how many of its jobs were overdue since one was done."""
        self._longer: dict[str, int] = {}
        """Partitions whose jobs have twice as long: how many in a row did not need it."""
        self._apart: dict[str, Pacer] = {}
        """Partitions that have jobs of their own."""

    def is_apart(self, partition: str) -> bool:
        return partition in self._apart

    def pacer_of(self, ranges: Sequence[Range]) -> Pacer:
        (first, *others) = ranges
        return self._pacer if others else self._apart.get(first.partition, self._pacer)

    def limit_s(self, ranges: Sequence[Range]) -> float:
        """How long a job of these may take, before smaller ones are tried instead. Without more
        time at each try, a range that cannot be cut further would never be done."""
        return self.pacer_of(ranges).overdue_s(self._times(ranges))

    def cancelled(self, ranges: Sequence[Range], seconds: float, *, overdue: bool) -> None:
        """A job was, after so long: because it was ``overdue``, or for a limit of the user's."""
        others_go_on = self._pacer.knows
        self.pacer_of(ranges).ended(sum(map(len, ranges)), seconds, finished=False)
        for each in ranges if overdue else ():
            name = each.partition
            again = others_go_on and (name in self._overdue or name in self._longer)
            self._overdue[name] += 1
            if again and name not in self._apart:
                self._apart[name] = self._pacer.apart(len(each), seconds)

    def done(
        self, ranges: Sequence[Range], seconds: float, *, own_s: float, limit_s: float
    ) -> None:
        """A job was done. ``own_s``: how long it would have taken alone. ``limit_s``: how long it
        might have taken."""
        pacer, events = self.pacer_of(ranges), sum(map(len, ranges))
        quick = self._times(ranges) * seconds <= limit_s  # without more time, too
        for each in ranges:
            self._was_done(each.partition, quick=quick)
        if pacer is self._pacer:
            pacer.ended(events, seconds, own_s=own_s)
            return
        if not self._pacer.knows:  # if all are slow, nobody else will tell
            self._pacer.ended(events, seconds, own_s=own_s)
        if self._pacer.is_like(pacer, events, seconds):
            self._apart.pop(ranges[0].partition, None)

    def _times(self, ranges: Sequence[Range]) -> float:
        names = [each.partition for each in ranges]
        return 2.0 ** max(self._overdue[name] + (name in self._longer) for name in names)

    def _was_done(self, partition: str, *, quick: bool) -> None:
        if self._overdue.pop(partition, 0):
            self._longer[partition] = 0
        elif partition in self._longer:
            self._longer[partition] = self._longer[partition] + 1 if quick else 0
            if self._longer[partition] >= QUICK_JOBS:
                del self._longer[partition]
