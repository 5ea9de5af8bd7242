"""What became of every event: reads what the instances wrote down, and says which rules held.

A *tenure* is one partition in one epoch at one instance. It ends in order (the instance let go by
itself, and said so), or it does not: the instance was killed, was stopped for a while, or was
overruled by others who had not heard of it in time. Only the latter may lead to events handled
twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import inf
from pathlib import Path
from typing import Literal

ORDERLY = ("balanced", "shutdown")
Cause = Literal["orderly", "paused", "killed", "overruled", "unknown"]
EXPLAINED: tuple[Cause, ...] = ("paused", "killed", "overruled")


@dataclass(slots=True, kw_only=True)
class Life:
    """One process, and what was done to it."""

    instance: str
    killed: bool = False
    pauses: list[tuple[float, float]] = field(default_factory=list)


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

    @property
    def cause(self) -> Cause:
        """Why it ended."""
        if self.reason in ORDERLY:
            return "orderly"
        if any(since < self.closed and self.opened < until for since, until in self.life.pauses):
            return "paused"
        if self.life.killed and self.reason is None:
            return "killed"
        return "overruled" if self.reason == "lost" else "unknown"

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
    at_once: Counter[str] = field(default_factory=Counter)
    """Moves during which old and new owner were in their handlers at one moment, by cause."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.events} events, {self.calls} handler calls; moves: {_shown(self.moves)}; "
            f"handled twice: {_shown(self.twice)}; both at work: {_shown(self.at_once)}"
        )


def judge(
    held: Mapping[str, Sequence[int]],
    tenures: Iterable[Tenure],
    samples: Iterable[Sample],
) -> Verdict:
    """``held`` is what the feed holds: by partition, the number of the event at each sequence."""
    verdict = Verdict(events=sum(map(len, held.values())))
    by_partition: dict[str, list[Tenure]] = {partition: [] for partition in held}
    for tenure in tenures:
        by_partition.setdefault(tenure.partition, []).append(tenure)
        verdict.calls += len(tenure.batches)
    looks: dict[str, list[Sample]] = {partition: [] for partition in held}
    for sample in samples:
        looks[sample.partition].append(sample)
    for partition, numbers in held.items():
        mine = sorted(by_partition[partition], key=lambda tenure: tenure.epoch)
        for tenure in mine:
            verdict.problems += _within(tenure, numbers)
        verdict.problems += _one_tenure_per_epoch(mine)
        verdict.problems += _all_handled(partition, mine, len(numbers))
        verdict.problems += _none_skipped(mine)
        _moves(mine, verdict)
        verdict.problems += _checkpoints(partition, mine, looks[partition], len(numbers))
    return verdict


def _within(tenure: Tenure, numbers: Sequence[int]) -> Iterator[str]:
    for before, after in pairwise(tenure.sequences):
        if after != before + 1:
            yield f"{tenure}: event {after} handled right after {before}"
    for batch in tenure.batches:
        for sequence, number in zip(batch.sequences, batch.numbers, strict=True):
            if sequence >= len(numbers) or numbers[sequence] != number:
                yield f"{tenure}: event {sequence} is not what was sent"
    for one, other in pairwise(tenure.batches):
        if other.began < one.ended:
            yield f"{tenure}: two handler calls at once"


def _one_tenure_per_epoch(tenures: Sequence[Tenure]) -> Iterator[str]:
    for one, other in pairwise(tenures):
        if one.epoch == other.epoch:
            yield f"{one}: {other.life.instance} has the same epoch"


def _all_handled(partition: str, tenures: Sequence[Tenure], end: int) -> Iterator[str]:
    handled = {sequence for tenure in tenures for sequence in tenure.sequences}
    if missing := sorted(set(range(end)) - handled):
        yield f"partition {partition}: {len(missing)} events never handled, from {missing[0]} on"


def _none_skipped(tenures: Sequence[Tenure]) -> Iterator[str]:
    """A new owner begins where the last one was, or before."""
    reached = 0
    for tenure in tenures:
        if not (sequences := tenure.sequences):
            continue
        if sequences[0] > reached:
            yield f"{tenure}: begins at {sequences[0]} although only {reached} were handled before"
        reached = max(reached, sequences[-1] + 1)


def _moves(tenures: Sequence[Tenure], verdict: Verdict) -> None:
    last: dict[int, Tenure] = {}
    for tenure in tenures:
        for sequence in tenure.sequences:
            before = last.get(sequence, tenure)
            last[sequence] = tenure
            if before is tenure:
                continue
            verdict.twice[before.cause] += 1
            if before.cause not in EXPLAINED:
                verdict.problems.append(
                    f"{tenure}: event {sequence} again, which {before.life.instance} handled in "
                    f"epoch {before.epoch} and let go as {before.reason}"
                )
    for before, _ in pairwise(tenures):
        verdict.moves[before.cause] += 1
    for before, after in combinations(tenures, 2):
        if _at_once(before, after):
            verdict.at_once[before.cause] += 1
            if before.cause not in EXPLAINED:
                verdict.problems.append(f"{before} and {after.life.instance} at work at once")


def _at_once(before: Tenure, after: Tenure) -> bool:
    late = [batch for batch in before.batches if batch.ended > after.opened]
    return any(
        one.began < other.ended and other.began < one.ended
        for one in late
        for other in after.batches
    )


def _checkpoints(
    partition: str, tenures: Sequence[Tenure], samples: Sequence[Sample], end: int
) -> Iterator[str]:
    """They only go forward, never ahead of the handlers, and only by the hand of the epoch's owner;
    in the end everything is behind them and nobody holds anything."""
    where = f"partition {partition}"
    for before, after in pairwise(samples):
        if after.next_sequence < before.next_sequence:
            yield f"{where}: checkpoint from {before.next_sequence} back to {after.next_sequence}"
        if after.epoch < before.epoch:
            yield f"{where}: epoch from {before.epoch} back to {after.epoch}"
    done_by = _done_by(tenures, end)
    by_epoch = {tenure.epoch: tenure for tenure in tenures}
    for sample in samples:
        if sample.next_sequence > end or done_by[sample.next_sequence] > sample.at:
            yield f"{where}: checkpoint {sample.next_sequence} before these events were handled"
        elif sample.epoch in by_epoch and not _may_have_written(by_epoch[sample.epoch], sample):
            yield f"{where}: checkpoint {sample.next_sequence} by another epoch than {sample.epoch}"
    last = samples[-1] if samples else None
    if last is None or last.next_sequence != end or last.owner is not None:
        yield f"{where}: ends with {last}, {end} events"


def _may_have_written(owner: Tenure, sample: Sample) -> bool:
    """Whether the owner found or reached that checkpoint. One that handled nothing may have found
    anything."""
    done = [batch.sequences[-1] for batch in owner.batches if batch.ended <= sample.at]
    reached = done[-1] + 1 if done else 0
    return not owner.batches or sample.next_sequence <= max(reached, owner.sequences[0])


def _done_by(tenures: Sequence[Tenure], end: int) -> list[float]:
    """By when everything before a sequence had been handled at least once."""
    ended = [inf] * end
    for tenure in tenures:
        for batch in tenure.batches:
            for sequence in batch.sequences:
                if sequence < end:
                    ended[sequence] = min(ended[sequence], batch.ended)
    done_by = [-inf]
    for moment in ended:
        done_by.append(max(done_by[-1], moment))
    return done_by


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
