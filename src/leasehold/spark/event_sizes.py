"""How many bytes the events of a range have, by a few of them that were looked at."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator

from leasehold.core.ranges import Range

KEPT = 64
"""Places by partition."""
UNKNOWN_BYTES = 1_000.0
"""What an event has before any was looked at."""


class EventSizes:
    """Between two places an event counts as much as the larger one of them: sizes may change
    anywhere, and too much is worse than too little. Threads may ask while one notes."""

    def __init__(self) -> None:
        self._places: dict[str, list[tuple[int, float]]] = {}
        """By partition: sequences, and the size of events there."""

    def note(self, partition: str, sequence: int, size_bytes: float) -> None:
        known = self._places.get(partition, [])
        places = [each for each in known if each[0] != sequence]
        insort(places, (sequence, size_bytes))
        self._places[partition] = places[-KEPT:]

    def forget(self, partition: str) -> None:
        self._places.pop(partition, None)

    def at(self, partition: str, sequence: int) -> float | None:
        """Of the last place before it; None: not known yet."""
        places = self._places.get(partition)
        if not places:
            return None
        return places[max(0, _behind(places, sequence) - 1)][1]

    def bytes_in(self, wanted: Range) -> float:
        return sum((end - first) * size for first, end, size in self._stretches(wanted))

    def fitting(self, wanted: Range, max_bytes: float) -> int:
        """Where it must end to have no more bytes than that; one event may be too large."""
        for first, end, size in self._stretches(wanted):
            if (end - first) * size > max_bytes:
                return max(wanted.first + 1, first + int(max_bytes / size))
            max_bytes -= (end - first) * size
        return wanted.end

    def is_certain(self, wanted: Range, max_bytes: float, growth: float) -> bool:
        """Whether a look at its end would tell nothing that matters, if events have become so many
        times as large since the last place at most."""
        places = self._places.get(wanted.partition)
        if not places:
            return False
        behind = _behind(places, wanted.end - 1)
        sequence, size = places[max(0, behind - 1)]
        if behind == len(places):
            return (wanted.end - 1 - sequence) * size * growth <= max_bytes
        alike = max(size, places[behind][1]) <= 2 * min(size, places[behind][1])
        return alike or sequence == wanted.end - 1 or self.bytes_in(wanted) <= max_bytes

    def _stretches(self, wanted: Range) -> Iterator[tuple[int, int, float]]:
        """Of one size each."""
        places = self._places.get(wanted.partition)
        if not places:
            known = [each[-1][1] for each in list(self._places.values())]
            yield wanted.first, wanted.end, max(known, default=UNKNOWN_BYTES)
            return
        at, behind = wanted.first, _behind(places, wanted.first)
        size = places[max(0, behind - 1)][1]
        for sequence, next_size in places[behind:]:
            if sequence >= wanted.end:
                yield at, wanted.end, max(size, next_size)
                return
            yield at, sequence, max(size, next_size)
            at, size = sequence, next_size
        yield at, wanted.end, size


def _behind(places: list[tuple[int, float]], sequence: int) -> int:
    """How many of them are not behind it."""
    return bisect_right(places, sequence, key=lambda place: place[0])
