"""Where a stream stands, and how far its next batch goes: from the feed and the last position only.

No process keeps anything between two calls, so a query that is started again, anywhere, goes on
where its checkpoint says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range, pick
from leasehold.core.start import Earliest, Start
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.ports import ColumnarFeed, CountsRemaining, TellsHistory
from leasehold.settings import OnPositionGone

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What Spark keeps in its checkpoint."""

    feed: str
    """Which feed: one that was recreated is another."""
    next: Mapping[str, int]
    """By partition: the first sequence that is not read yet."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """By partition: the feed's own name for that position, by which a feed that has lost events
    since is noticed. Earlier versions kept none."""
    begin: Mapping[str, int] = field(default_factory=dict)
    """Where the batch that ends here begins, in partitions where the one before it did not end:
    because they are new, or children of a split, or because events are gone."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        try:
            return cls(
                feed=given["feed"],
                next=given["next"],
                tokens=given.get("tokens", {}),
                begin=given.get("begin", {}),
            )
        except (KeyError, TypeError, AttributeError):
            raise BadInput(
                f"{given!r:.200} in the query's checkpoint is no position of this source; give the "
                "query a checkpointLocation of its own"
            ) from None

    def json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares the text."""
        found: dict[str, Any] = {"feed": self.feed, "next": _sorted(self.next)}
        if self.tokens:
            found["tokens"] = _sorted(self.tokens)
        return found | {"begin": _sorted(self.begin)} if self.begin else found

    def same_place(self, other: Offset) -> bool:
        both = self.tokens.keys() & other.tokens.keys()
        return (self.feed, self.next) == (other.feed, other.next) and all(
            self.tokens[p] == other.tokens[p] for p in both
        )

    def position(self, partition: str) -> Checkpoint:
        token = self.tokens.get(partition, "")
        return Checkpoint(next_sequence=self.next[partition], token=token)

    def ranges_after(self, start: Offset) -> list[Range]:
        """What the batch between the two has to read."""
        if self.same_place(start):
            return []
        begins = {**(start.next if start.feed == self.feed else {}), **self.begin}
        return [
            Range(partition=partition, first=begins[partition], end=end)
            for partition, end in self.next.items()
            if partition in begins and begins[partition] < end
        ]


async def initial(
    feed: ColumnarFeed, start: Mapping[str, Start], on_position_gone: OnPositionGone
) -> Offset:
    return _offset(feed, await located(feed, start, on_position_gone))


async def newest(feed: ColumnarFeed) -> Offset:
    ends = {each.partition: each.end for each in await feed.extents()}
    return _offset(feed, {leaf.id: ends[leaf.id] for leaf in await leaves(feed)})


async def advance(
    feed: ColumnarFeed,
    start: Offset,
    *,
    max_events: int | None = None,
    target: Offset | None = None,
    on_position_gone: OnPositionGone = "fail",
) -> Offset:
    """The next batch's end: all there is, or up to ``max_events`` of it, shared fairly over the
    partitions; nothing beyond ``target``. ``start`` itself if there is nothing to read."""
    if target is not None and target.feed != feed.identity:
        raise FeedUnavailable(f"{feed!r} was recreated while the query ran; start it again")
    known = (
        {p: start.position(p) for p in start.next} if _same(feed, start, on_position_gone) else {}
    )
    backlogs = await _backlogs(feed, known, target, on_position_gone)
    begins = {each.partition: each.first for each in backlogs}
    if max_events is None:
        taken: Sequence[Range] = backlogs
    elif isinstance(feed, CountsRemaining):
        taken = await _pick_counted(feed, feed, backlogs, max_events)
    else:
        taken = pick(backlogs, max_events, turn=sum(begins.values()))
    found = _offset(
        feed,
        begins | {each.partition: each.end for each in taken},
        begin={
            p: first
            for p, first in begins.items()
            if p not in known or known[p].next_sequence != first
        },
    )
    return start if found.same_place(start) else found


async def still_there(
    feed: ColumnarFeed, start: Offset, end: Offset, on_position_gone: OnPositionGone
) -> list[Range]:
    """A planned batch's ranges, which may have been planned long ago by a query that then died."""
    if not _same(feed, end, on_position_gone):
        return []
    ranges = end.ranges_after(start)
    ends = {each.partition: end.position(each.partition) for each in ranges}
    lost = await _lost(feed, ends, on_position_gone)
    firsts = await _kept(
        feed,
        {each.partition: Checkpoint(next_sequence=each.first) for each in ranges},
        on_position_gone,
    )
    return [
        replace(each, first=firsts[each.partition])
        for each in ranges
        if firsts[each.partition] < each.end and each.partition not in lost
    ]


async def located(
    feed: ColumnarFeed, wanted: Mapping[str, Start], on_position_gone: OnPositionGone = "fail"
) -> dict[str, int]:
    """What positions given by the user mean right now, for every partition."""
    ids = [leaf.id for leaf in await leaves(feed)]
    unknown = sorted(set(wanted) - set(ids) - {"*"})
    if unknown:
        raise BadInput(
            f"{feed!r} has no partition {', '.join(unknown)}; it has {', '.join(ids[:20])}"
            + (" …" if len(ids) > 20 else "")
        )
    found = {}
    for partition in ids:
        try:
            start = wanted.get(partition, wanted.get("*", Earliest()))
            position = await feed.locate(partition, start)
        except PositionGone as error:
            if isinstance(feed, CountsRemaining) and error.reason == "beyond end":
                position = error.latest  # of a sequence shared by all, this one has not got so far
            elif on_position_gone == "earliest":
                position = error.earliest
            else:
                raise
        found[partition] = position.next_sequence
    return found


async def leaves(feed: ColumnarFeed) -> Sequence[Partition]:
    """The partitions that are not split, in the order of their names."""
    return sorted(await feed.partitions(), key=lambda leaf: _rank(leaf.id))


async def _backlogs(
    feed: ColumnarFeed,
    known: Mapping[str, Checkpoint],
    target: Offset | None,
    on_position_gone: OnPositionGone,
) -> list[Range]:
    """A child of a split goes on where its parent stands, even in mid-way: what a range holds of
    its ancestors' changes is part of its feed. So the parent need not be read to its end."""
    extents = {each.partition: each for each in await feed.extents()}
    begins: dict[str, Checkpoint] = {}
    ends = {}
    for leaf in await leaves(feed):
        line = (leaf.id, *leaf.ancestors)
        begin, end = _stand(feed, leaf, known, on_position_gone), extents[leaf.id].end
        if target is not None:
            bound = _nearest(line, target.next)
            if bound is None and begin is None:
                continue  # it came after the query began
            stands = 0 if begin is None else begin.next_sequence
            end = min(end, stands if bound is None else bound)
        first = Checkpoint(next_sequence=extents[leaf.id].first)
        begins[leaf.id] = first if begin is None else begin
        ends[leaf.id] = end
    return [
        Range(partition=partition, first=first, end=max(first, ends[partition]))
        for partition, first in (await _kept(feed, begins, on_position_gone)).items()
    ]


async def _pick_counted(
    feed: ColumnarFeed, counting: CountsRemaining, backlogs: Sequence[Range], max_events: int
) -> list[Range]:
    """Only counting and reading tell where a number of events ends."""
    positions = {each.partition: Checkpoint(next_sequence=each.first) for each in backlogs}
    counts = await counting.remaining(positions)
    sizes = [
        Range(partition=each.partition, first=0, end=counts[each.partition]) for each in backlogs
    ]
    turn = sum(each.first for each in backlogs)
    shares = {each.partition: len(each) for each in pick(sizes, max_events, turn=turn)}
    taken = []
    for each in backlogs:
        share, end = shares.get(each.partition, 0), each.end
        if share < counts[each.partition]:
            if not share:
                continue
            read = await feed.read(each.partition, positions[each.partition], share)
            end = min(end, read.next.next_sequence)
        taken.append(replace(each, end=end))
    return taken


def _same(feed: ColumnarFeed, offset: Offset, on_position_gone: OnPositionGone) -> bool:
    if feed.identity == offset.feed:
        return True
    if on_position_gone == "earliest":
        return False
    raise BadInput(f"{feed!r} was recreated since the query's checkpoint was written. {ADVICE}")


async def _kept(
    feed: ColumnarFeed, positions: Mapping[str, Checkpoint], on_position_gone: OnPositionGone
) -> dict[str, int]:
    """The positions, moved to where nothing is left out if that is wanted."""
    lost = await _lost(feed, positions, on_position_gone)
    return {
        p: lost[p].resume.next_sequence if p in lost else position.next_sequence
        for p, position in positions.items()
    }


async def _lost(
    feed: ColumnarFeed, positions: Mapping[str, Checkpoint], on_position_gone: OnPositionGone
) -> dict[str, PositionGone]:
    """Which of them the feed does not have (any more)."""
    found = {}
    for partition, time in (await feed.event_times(positions)).items():
        if isinstance(time, PositionGone):
            if on_position_gone == "fail":
                raise BadInput(f"{time}. {ADVICE}") from time
            found[partition] = time
    return found


def _offset(
    feed: ColumnarFeed, next: Mapping[str, int], begin: Mapping[str, int] | None = None
) -> Offset:
    tokens = feed.tokens_of(next) if isinstance(feed, TellsHistory) else {}
    return Offset(feed=feed.identity, next=next, tokens=tokens, begin=begin or {})


ADVICE = (
    "Start the query with a new checkpointLocation, or with option 'onPositionGone' set to "
    "'earliest' to go on with what there is"
)


def _stand(
    feed: ColumnarFeed,
    leaf: Partition,
    known: Mapping[str, Checkpoint],
    on_position_gone: OnPositionGone,
) -> Checkpoint | None:
    """Where a partition's changes were read up to. A query knows the partitions of one moment, so
    several ancestors mean that those were merged: one position cannot stand for all of them."""
    merged = [each for each in leaf.ancestors if each in known and leaf.id not in known]
    if len({known[each].next_sequence for each in merged}) > 1:
        if on_position_gone == "fail":
            raise BadInput(
                f"{feed!r}: {', '.join(sorted(merged, key=_rank))} were merged into {leaf.id} when "
                f"they were not read equally far. {ADVICE}: from the earliest of them, so that "
                "some changes come again"
            )
        return min((known[each] for each in merged), key=lambda at: at.next_sequence)
    return _nearest((leaf.id, *leaf.ancestors), known)


def _nearest(line: Sequence[str], positions: Mapping[str, T]) -> T | None:
    return next((positions[each] for each in line if each in positions), None)


def _sorted(positions: Mapping[str, T]) -> dict[str, T]:
    return {partition: positions[partition] for partition in sorted(positions, key=_rank)}


def _rank(partition: str) -> tuple[int, str]:
    return len(partition), partition
