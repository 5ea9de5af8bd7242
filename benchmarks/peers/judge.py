"""What the members' logs say. It knows no member's library: only who handled what, and when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.member import RECORD

PAUSE_S = 1.0
"""A partition without an event for so long waits. Every partition gets many a second."""


class HandledEvent(NamedTuple):
    at: float
    partition: int
    offset: int
    member: str


class LogReader:
    """A member's log, as far as it is written."""

    def __init__(self, path: Path, member: str) -> None:
        self._path, self._member, self._read = path, member, 0

    def new(self) -> list[HandledEvent]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) - len(data) % RECORD.size  # a record may be half written
        self._read += whole
        return [
            HandledEvent(at, partition, offset, self._member)
            for partition, offset, at in RECORD.iter_unpack(data[:whole])
        ]


def twice(
    handled: Iterable[HandledEvent], since: float = float("-inf"), until: float = float("inf")
) -> int:
    """How many times, within a time, an event was handled that had been handled before."""
    seen: set[tuple[int, int]] = set()
    again = 0
    for each in sorted(handled):
        again += (each.partition, each.offset) in seen and since < each.at <= until
        seen.add((each.partition, each.offset))
    return again


def never(handled: Iterable[HandledEvent], starts: Mapping[int, int]) -> int:
    """How many events were passed over: between where the group began and the last one handled."""
    seen = defaultdict(set)
    for each in handled:
        seen[each.partition].add(each.offset)
    return sum(
        len(set(range(start, max(seen[partition], default=start - 1) + 1)) - seen[partition])
        for partition, start in starts.items()
    )


def owners(handled: Iterable[HandledEvent], since: float, until: float) -> dict[int, str]:
    """Who handled each partition last, within a time."""
    return {each.partition: each.member for each in _within(handled, since, until)}


def changes(handled: Iterable[HandledEvent], since: float, until: float) -> list[float]:
    """When a partition was handled by another member than before."""
    before: dict[int, str] = {}
    found = []
    for each in sorted(handled):
        member = before.get(each.partition, each.member)
        if member != each.member and since < each.at <= until:
            found.append(each.at)
        before[each.partition] = each.member
    return found


def fewest_moves(before: Mapping[int, str], members: Collection[str]) -> int:
    """How many partitions must change hands so that these members have even shares."""
    counts = sorted((Counter(before.values())[member] for member in members), reverse=True)
    share, more = divmod(len(before), len(members))
    kept = sum(min(count, share + (place < more)) for place, count in enumerate(counts))
    return len(before) - kept


def spread(owned: Mapping[int, str], members: Collection[str]) -> int:
    """The most partitions of a member less the fewest."""
    counts = Counter(owned.values())
    shares = [counts[member] for member in members]
    return max(shares) - min(shares)


def pauses(handled: Iterable[HandledEvent], since: float, until: float) -> dict[int, float]:
    """Each partition's longest time without an event that reaches into this time."""
    times = defaultdict(list)
    for each in sorted(handled):
        times[each.partition].append(each.at)
    return {
        partition: max(
            (end - begin for begin, end in pairwise(at) if end > since and begin <= until),
            default=0.0,
        )
        for partition, at in times.items()
    }


def failover(handled: Sequence[HandledEvent], killed: str, at: float) -> dict[int, float]:
    """How long each partition of a killed member waited for another; infinite if none came.

    Its own are those that it was the last to handle.
    """
    waits: dict[int, float] = {}
    for partition, owner in owners(handled, float("-inf"), at).items():
        if owner == killed:
            first = (each.at for each in handled if each.partition == partition and each.at > at)
            waits[partition] = min(first, default=float("inf")) - at
    return waits


def delays(
    handled: Iterable[HandledEvent],
    sent: Mapping[tuple[int, int], float],
    since: float,
    until: float,
) -> list[float]:
    """From sending to handling, the first time, of events sent within a time; in order of size."""
    first: dict[tuple[int, int], float] = {}
    for each in sorted(handled):
        first.setdefault((each.partition, each.offset), each.at)
    within = {key: at for key, at in sent.items() if since <= at <= until}
    return sorted(first[key] - at for key, at in within.items() if key in first)


def waiting(
    handled: Iterable[HandledEvent], since: float, until: float, step_s: float = 0.1
) -> Iterator[tuple[float, int]]:
    """Seconds, and how many partitions have had no event for ``PAUSE_S`` then, or more."""
    last: dict[int, float] = {}
    ordered = iter(sorted(handled))
    upcoming = next(ordered, None)
    for place in range(round((until - since) / step_s) + 1):
        now = since + place * step_s
        while upcoming is not None and upcoming.at <= now:
            last[upcoming.partition] = upcoming.at
            upcoming = next(ordered, None)
        yield now - since, sum(now - at >= PAUSE_S for at in last.values())


def _within(handled: Iterable[HandledEvent], since: float, until: float) -> list[HandledEvent]:
    return [each for each in sorted(handled) if since < each.at <= until]
