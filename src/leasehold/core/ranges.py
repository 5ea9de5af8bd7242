"""Which events to read next, and how to deal them out over tasks."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The sequences ``first`` up to, not including, ``end`` of one partition."""

    partition: str
    first: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.first:
            raise ValueError(
                f"partition {self.partition}: a range cannot end at {self.end}, "
                f"before its first sequence {self.first}"
            )

    def __len__(self) -> int:
        return self.end - self.first


def without(ranges: Sequence[Range], begin_at: Mapping[str, object]) -> list[Range]:
    """What is left to do of each range once its partition begins at that sequence. A partition with
    anything but a sequence is left out; one that is not named stays as it is."""
    left = []
    for each in ranges:
        first = begin_at.get(each.partition, each.first)
        if isinstance(first, int) and first < each.end:
            left.append(replace(each, first=max(first, each.first)))
    return left


def there(ranges: Sequence[Range], begin_at: Mapping[str, object]) -> list[Range]:
    """The other side of ``without``: what of each range lies before that sequence."""
    found = []
    for each in ranges:
        at = begin_at.get(each.partition, each.first)
        if isinstance(at, int) and at > each.first:
            found.append(replace(each, end=min(at, each.end)))
    return found


def pick(backlogs: Sequence[Range], max_events: int, *, turn: int = 0) -> tuple[Range, ...]:
    """The next ``max_events`` events, shared fairly over the partitions.

    Each backlog runs from a partition's checkpoint to its end. Small backlogs are taken whole and
    the others get equal shares, so no partition gets less because another one is far behind. What
    does not divide evenly goes to others each time the caller raises ``turn`` by one. Partitions
    with nothing to read are left out.
    """
    if max_events < 0:
        raise ValueError(f"max_events must not be negative, but is {max_events}")
    sizes = _fair_shares([len(backlog) for backlog in backlogs], max_events, turn)
    return tuple(
        replace(backlog, end=backlog.first + size)
        for backlog, size in zip(backlogs, sizes, strict=True)
        if size
    )


def _fair_shares(wanted: list[int], total: int, turn: int) -> list[int]:
    shares = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for position, i in enumerate(by_size):
        unserved = len(wanted) - position
        level = total // unserved
        if wanted[i] > level:
            _share_equally(shares, sorted(by_size[position:]), total, turn)
            break
        shares[i] = wanted[i]
        total -= wanted[i]
    return shares


def _share_equally(shares: list[int], members: list[int], total: int, turn: int) -> None:
    """Every member wants more than ``total / len(members)``, rounded down; so one more fits."""
    level, extra = divmod(total, len(members))
    for position, i in enumerate(members):
        shares[i] = level + ((position - turn) % len(members) < extra)


def pack(
    ranges: Sequence[Range], tasks: int, *, min_split: int = 1
) -> tuple[tuple[Range, ...], ...]:
    """Deal the ranges out over at most ``tasks`` tasks of nearly equal size.

    The largest piece goes to the emptiest task; what sticks out there is cut off and dealt again.
    A cut fills its task, so there are fewer cuts than tasks. No cut leaves a piece smaller than
    ``min_split``, because opening a partition once more must pay off. No task is larger than
    ``total / tasks`` rounded up, plus ``2 * (min_split - 1)``.
    """
    if tasks < 1 or min_split < 1:
        raise ValueError(f"tasks ({tasks}) and min_split ({min_split}) must be at least 1")
    full = -(-sum(len(r) for r in ranges) // tasks)
    # The order of the input comes second, so that equal sizes are dealt the same way every time.
    pieces = [(-len(r), order, r) for order, r in enumerate(ranges) if len(r)]
    heapq.heapify(pieces)
    loads = [(0, task) for task in range(tasks)]
    dealt: list[list[tuple[int, Range]]] = [[] for _ in range(tasks)]
    while pieces:
        _, order, piece = heapq.heappop(pieces)
        load, task = loads[0]
        cut = _cut(piece, full - load, min_split)
        if cut < piece.end:
            rest = replace(piece, first=cut)
            heapq.heappush(pieces, (-len(rest), order, rest))
            piece = replace(piece, end=cut)
        dealt[task].append((order, piece))
        heapq.heapreplace(loads, (load + len(piece), task))
    return tuple(tuple(_in_input_order(task)) for task in dealt if task)


def _cut(piece: Range, room: int, min_split: int) -> int:
    """Where the piece must end to fit into ``room``; its own end if a cut is not worth it."""
    size = len(piece)
    if size - room < min_split or size < 2 * min_split:
        return piece.end
    return piece.first + max(room, min_split)


def _in_input_order(task: list[tuple[int, Range]]) -> list[Range]:
    return [piece for _, piece in sorted(task, key=lambda dealt: dealt[0])]
