"""What became of every event: reads what the instances wrote down, and says which rules held.

A *tenure* is one partition in one epoch at one instance. It ends in order (the instance let go by
itself, and said so), or it does not: the instance was killed, was stopped for a while, was cut off
together with all others because the store was out, or was overruled by others who had not heard of
it in time. Only the latter may lead to events handled twice.

An outage alone is no reason to lose anything. Whoever was there before it leaves the leases to
their owners for a time to live after it; no owner begins more than the one call in hand once a time
to live went by without the store. So what may be handled twice is what an owner that did not come
back in time had in hand: handled within a time to live and a call, and in no checkpoint.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations, pairwise
from math import inf
from pathlib import Path
from typing import Literal

ORDERLY = ("balanced", "shutdown")
Cause = Literal["orderly", "paused", "killed", "outage", "overruled", "unknown"]
EXPLAINED: tuple[Cause, ...] = ("paused", "killed", "outage", "overruled")


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, and what was done to it."""

    instance: str
    killed: bool = False
    pauses: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """When nobody could renew anything: from ``began`` at the latest, until ``ended`` at least."""

    began: float
    ended: float
    ttl_s: float
    """Of all leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One handler call that came to its end."""

    began: float
    ended: float
    sequences: Sequence[int]
    numbers: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Tenure:
    life: Life
    partition: str
    epoch: int
    opened: float
    closed: float = inf
    reason: str | None = None
    batches: list[Batch] = field(default_factory=list)

    outages: Sequence[Outage] = ()

    @property
    def cause(self) -> Cause:
        """Why it ended."""
        if self.reason in ORDERLY:
            return "orderly"
        if any(self.spans(*pause) for pause in self.life.pauses):
            return "paused"
        if self.life.killed and self.reason is None:
            return "killed"
        if self.reason != "lost":
            return "unknown"
        return "outage" if self.outlasted else "overruled"

    @property
    def outlasted(self) -> list[Outage]:
        """The outages that it was there before and after."""
        return [
            outage
            for outage in self.outages
            if self.opened < outage.began and outage.ended < self.closed
        ]

    def spans(self, since: float, until: float) -> bool:
        return since < self.closed and self.opened < until

    @property
    def sequences(self) -> list[int]:
        return [sequence for batch in self.batches for sequence in batch.sequences]

    def __str__(self) -> str:
        return f"partition {self.partition}, epoch {self.epoch}, {self.life.instance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One lease as the store had it, no later than ``at``."""

    at: float
    partition: str
    next_sequence: int
    epoch: int
    owner: str | None


@dataclass(slots=True, kw_only=True)
class Verdict:
    events: int = 0
    calls: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    """Tenures that ended and were followed by another, by cause."""
    twice: Counter[str] = field(default_factory=Counter)
    """Events handled once more, by why their handling before did not count."""
    resumed_s: float = 0.0
    """The longest time from the end of an outage until a partition was handled again."""
    at_once: Counter[str] = field(default_factory=Counter)
    """Moves during which old and new owner were in their handlers at one moment, by cause."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.events} events, {self.calls} handler calls; moves: {_shown(self.moves)}; "
            f"handled twice: {_shown(self.twice)}; both at work: {_shown(self.at_once)}; "
            f"all at work {self.resumed_s:.1f} s after an outage"
        )


def judge(
    held: Mapping[str, Sequence[int]],
    tenures: Iterable[Tenure],
    samples: Iterable[Sample],
    dead: Collection[tuple[str, int]] = (),
    outages: Sequence[Outage] = (),
) -> Verdict:
    """``held`` is what the feed holds: by partition, the number of the event at each sequence;
    ``dead`` are the events set aside as dead letters, by partition and sequence."""
    tenures = [replace(tenure, outages=outages) for tenure in tenures]
    came: dict[str, float] = {}
    for tenure in sorted(tenures, key=lambda tenure: tenure.opened):
        came.setdefault(tenure.life.instance, tenure.opened)
    stories = {
        partition: _Story(
            partition,
            numbers,
            frozenset(sequence for at, sequence in dead if at == partition),
            outages,
            came,
        )
        for partition, numbers in held.items()
    }
    for tenure in sorted(tenures, key=lambda tenure: tenure.epoch):
        stories[tenure.partition].tenures.append(tenure)
    for sample in samples:
        stories[sample.partition].samples.append(sample)
    verdict = Verdict(events=sum(map(len, held.values())))
    for story in stories.values():
        story.tell(verdict)
    return verdict


class _Story:
    """Everything about one partition, in the order of its epochs."""

    def __init__(
        self,
        partition: str,
        numbers: Sequence[int],
        dead: frozenset[int],
        outages: Sequence[Outage],
        came: Mapping[str, float],
    ) -> None:
        self.partition, self.numbers, self.dead = partition, numbers, dead
        self.outages, self.came = outages, came
        self.tenures: list[Tenure] = []
        self.samples: list[Sample] = []

    def tell(self, verdict: Verdict) -> None:
        verdict.calls += sum(len(tenure.batches) for tenure in self.tenures)
        verdict.moves += Counter(before.cause for before, _ in pairwise(self.tenures))
        verdict.problems += self._in_order()
        verdict.problems += self._as_sent()
        verdict.problems += self._all_handled()
        verdict.problems += self._none_skipped()
        verdict.problems += self._twice(verdict.twice)
        verdict.problems += self._at_once(verdict.at_once)
        verdict.problems += self._checkpoints()
        verdict.problems += self._from_the_checkpoint()
        verdict.problems += self._not_robbed()
        verdict.problems += self._not_without_the_store()
        verdict.resumed_s = max(verdict.resumed_s, self._resumed_s())

    def _in_order(self) -> Iterator[str]:
        for one, other in pairwise(self.tenures):
            if one.epoch == other.epoch:
                yield f"{one}: {other.life.instance} has the same epoch"
        for tenure in self.tenures:
            for before, after in pairwise(tenure.sequences):
                if after <= before or not self.dead.issuperset(range(before + 1, after)):
                    yield f"{tenure}: event {after} handled right after {before}"
            for first, second in pairwise(tenure.batches):
                if second.began < first.ended:
                    yield f"{tenure}: two handler calls at once"

    def _as_sent(self) -> Iterator[str]:
        for tenure in self.tenures:
            for batch in tenure.batches:
                for sequence, number in zip(batch.sequences, batch.numbers, strict=True):
                    if [number] != self.numbers[sequence : sequence + 1]:
                        yield f"{tenure}: event {sequence} is not what was sent"

    def _all_handled(self) -> Iterator[str]:
        handled = {sequence for tenure in self.tenures for sequence in tenure.sequences}
        if missing := sorted({*range(len(self.numbers))} - handled - self.dead):
            count, first = len(missing), missing[0]
            yield f"partition {self.partition}: {count} events never handled, from {first} on"
        for sequence in sorted(handled & self.dead):
            yield f"partition {self.partition}: event {sequence} is dead, but was handled"

    def _none_skipped(self) -> Iterator[str]:
        """A new owner begins where the last one was, or before."""
        reached = 0
        for tenure in self.tenures:
            if not (sequences := tenure.sequences):
                continue
            if not self.dead.issuperset(range(reached, sequences[0])):
                yield f"{tenure}: begins at {sequences[0]} although only {reached} were handled"
            reached = max(reached, sequences[-1] + 1)

    def _twice(self, counts: Counter[str]) -> Iterator[str]:
        last: dict[int, Tenure] = {}
        for tenure in self.tenures:
            for sequence in tenure.sequences:
                before = last.get(sequence, tenure)
                last[sequence] = tenure
                if before is tenure:
                    continue
                counts[before.cause] += 1
                if before.cause not in EXPLAINED:
                    yield (
                        f"{tenure}: event {sequence} again, which {before.life.instance} handled "
                        f"in epoch {before.epoch} and let go as {before.reason}"
                    )

    def _at_once(self, counts: Counter[str]) -> Iterator[str]:
        for before, after in combinations(self.tenures, 2):
            late = [batch for batch in before.batches if batch.ended > after.opened]
            if any(
                one.began < other.ended and other.began < one.ended
                for one in late
                for other in after.batches
            ):
                counts[before.cause] += 1
                if before.cause not in EXPLAINED:
                    yield f"{before} and {after.life.instance} at work at once"

    def _checkpoints(self) -> Iterator[str]:
        """They only go forward, never ahead of the handlers, and only by the hand of the epoch's
        owner; in the end everything is behind them and nobody holds anything."""
        where, end = f"partition {self.partition}", len(self.numbers)
        for before, after in pairwise(self.samples):
            if after.next_sequence < before.next_sequence:
                yield f"{where}: checkpoint {before.next_sequence} back to {after.next_sequence}"
            if after.epoch < before.epoch:
                yield f"{where}: epoch from {before.epoch} back to {after.epoch}"
        done_by = self._done_by()
        owners = {tenure.epoch: tenure for tenure in self.tenures if tenure.batches}
        for sample in self.samples:
            at, epoch = sample.next_sequence, sample.epoch
            if at > end or done_by[at] > sample.at:
                yield f"{where}: checkpoint {at} before these events were handled"
            elif epoch in owners and at > self._reached(owners[epoch], sample.at):
                yield f"{where}: checkpoint {at} by another epoch than {epoch}"
        last = self.samples[-1] if self.samples else None
        if last is None or last.next_sequence != end or last.owner is not None:
            yield f"{where}: ends with {last}, {end} events"

    def _from_the_checkpoint(self) -> Iterator[str]:
        """What a checkpoint covered never comes again."""
        for tenure in self.tenures:
            saved = [each.next_sequence for each in self.samples if each.epoch < tenure.epoch]
            if tenure.batches and saved and tenure.sequences[0] < max(saved):
                yield f"{tenure}: begins at {tenure.sequences[0]} before checkpoint {max(saved)}"

    def _not_robbed(self) -> Iterator[str]:
        """Who was there before an outage leaves the owners time to renew after it."""
        for before, after in pairwise(self.tenures):
            for outage in before.outlasted if before.cause == "outage" else ():
                waited_s = after.opened - outage.ended
                witness = self.came[after.life.instance] < outage.began
                if witness and 0 <= waited_s < outage.ttl_s:
                    yield f"{after}: robs {before.life.instance} {waited_s:.3f} s after an outage"

    def _not_without_the_store(self) -> Iterator[str]:
        for outage in self.outages:
            for tenure in self.tenures:
                stale = outage.began + outage.ttl_s
                begun = [each for each in tenure.batches if stale < each.began < outage.ended]
                if len(begun) > 1:  # one may have been about to begin for as long as it likes
                    yield f"{tenure}: {len(begun)} calls begun when its lease was long stale"

    def _resumed_s(self) -> float:
        """As far as the next outage left time for it."""
        began = [batch.began for tenure in self.tenures for batch in tenure.batches]
        longest_s, until = 0.0, inf
        for outage in reversed(self.outages):
            first = min((at for at in began if outage.ended < at < until), default=outage.ended)
            longest_s, until = max(longest_s, first - outage.ended), outage.began
        return longest_s

    def _done_by(self) -> list[float]:
        """By when everything before a sequence had been handled at least once."""
        ended = [-inf if n in self.dead else inf for n in range(len(self.numbers))]
        for tenure in self.tenures:
            for batch in tenure.batches:
                for sequence in batch.sequences:
                    ended[sequence] = min(ended[sequence], batch.ended)
        return list(accumulate(ended, max, initial=-inf))

    def _reached(self, owner: Tenure, at: float) -> int:
        """The checkpoint that an owner could have written by then: at least the one it found."""
        done = [batch.sequences[-1] + 1 for batch in owner.batches if batch.ended <= at]
        reached = done[-1] if done else owner.sequences[0]
        while reached in self.dead:
            reached += 1
        return reached


def read_log(path: Path, life: Life) -> Iterator[Tenure]:
    """The tenures of one process. A kill may have cut its last line short."""
    tenures: dict[tuple[str, int], Tenure] = {}
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for line in lines:
        what, partition, epoch, *rest = json.loads(line)
        if what == "open":
            assert (partition, epoch) not in tenures, f"{path} opens {partition} twice in {epoch}"
            tenures[partition, epoch] = Tenure(
                life=life, partition=partition, epoch=epoch, opened=rest[0]
            )
        elif what == "close":
            tenures[partition, epoch].closed, tenures[partition, epoch].reason = rest
        else:
            began, ended, sequences, numbers = rest
            batch = Batch(began=began, ended=ended, sequences=sequences, numbers=numbers)
            tenures[partition, epoch].batches.append(batch)
    return iter(tenures.values())


def _shown(counts: Counter[str]) -> str:
    said = ", ".join(f"{count} {cause}" for cause, count in sorted(counts.items()))
    return f"{counts.total()} ({said})" if said else "0"
