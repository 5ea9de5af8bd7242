"""Where a stream stands, and how far its next batch goes: from the feed and the last position only.

No process keeps anything between two calls, so a query that is started again, anywhere, goes on
where its checkpoint says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range, pick
from leasehold.core.start import Earliest, Start
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.hub import Hub
from leasehold.spark.reading import Address
from leasehold.spark.source_options import Gone

AnyFeed = Hub | ChangeFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What Spark keeps in its checkpoint."""

    feed: str
    """Which feed: one that was made anew is another."""
    next: Mapping[str, int]
    """By partition: the first sequence that is not read yet."""
    begin: Mapping[str, int] = field(default_factory=dict)
    """Where the batch that ends here begins, in partitions where the one before it did not end:
    because they are new, or children of a split, or because events are gone."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        try:
            return cls(feed=given["feed"], next=given["next"], begin=given.get("begin", {}))
        except (KeyError, TypeError, AttributeError):
            raise BadInput(
                f"{given!r:.200} in the query's checkpoint is no position of this source; give the "
                "query a checkpointLocation of its own"
            ) from None

    def json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares the text."""
        found: dict[str, Any] = {"feed": self.feed, "next": _sorted(self.next)}
        return found | {"begin": _sorted(self.begin)} if self.begin else found

    def same_place(self, other: Offset) -> bool:
        return (self.feed, self.next) == (other.feed, other.next)

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


def initial(feed: AnyFeed, start: Mapping[str, Start], gone: Gone) -> Offset:
    return Offset(feed=identity(feed), next=located(feed, start, gone))


def newest(feed: AnyFeed) -> Offset:
    ends = {each.partition: each.end for each in feed.kept()}
    return Offset(feed=identity(feed), next={leaf.id: ends[leaf.id] for leaf in leaves(feed)})


def advance(
    feed: AnyFeed,
    start: Offset,
    *,
    max_events: int | None = None,
    target: Offset | None = None,
    gone: Gone = "fail",
) -> Offset:
    """The next batch's end: all there is, or up to ``max_events`` of it, shared fairly over the
    partitions; nothing beyond ``target``. ``start`` itself if there is nothing to read."""
    if target is not None and target.feed != identity(feed):
        raise FeedUnavailable(f"{feed!r} was made anew while the query ran; start it again")
    known = start.next if _same(feed, start, gone) else {}
    backlogs = _backlogs(feed, known, target, gone)
    begins = {each.partition: each.first for each in backlogs}
    if max_events is None:
        taken: Sequence[Range] = backlogs
    elif isinstance(feed, Hub):
        taken = pick(backlogs, max_events, turn=sum(begins.values()))
    else:
        taken = _pick_changes(feed, backlogs, max_events)
    found = Offset(
        feed=identity(feed),
        next=begins | {each.partition: each.end for each in taken},
        begin={p: first for p, first in begins.items() if known.get(p) != first},
    )
    return start if found.same_place(start) else found


def still_there(feed: AnyFeed, start: Offset, end: Offset, gone: Gone) -> list[Range]:
    """A planned batch's ranges, which may have been planned long ago by a query that then died."""
    if not _same(feed, end, gone):
        return []
    ranges = end.ranges_after(start)
    firsts = _kept(feed, {each.partition: each.first for each in ranges}, gone)
    return [
        replace(each, first=firsts[each.partition])
        for each in ranges
        if firsts[each.partition] < each.end
    ]


def located(feed: AnyFeed, wanted: Mapping[str, Start], gone: Gone = "fail") -> dict[str, int]:
    """What positions given by the user mean right now, for every partition."""
    ids = [leaf.id for leaf in leaves(feed)]
    unknown = sorted(set(wanted) - set(ids) - {"*"})
    if unknown:
        raise BadInput(
            f"{feed!r} has no partition {', '.join(unknown)}; it has {', '.join(ids[:20])}"
            + (" …" if len(ids) > 20 else "")
        )
    found = {}
    for partition in ids:
        try:
            position = feed.position_of(
                partition, wanted.get(partition, wanted.get("*", Earliest()))
            )
        except PositionGone as error:
            if isinstance(feed, ChangeFeed) and error.reason == "beyond end":
                position = error.latest  # LSNs are the container's: this range has not got so far
            elif gone == "earliest":
                position = error.earliest
            else:
                raise
        found[partition] = position.next_sequence
    return found


def leaves(feed: AnyFeed) -> Sequence[Partition]:
    """The partitions that are not split, in the order of their names."""
    found = (
        [Partition(id=id) for id in feed.partition_ids()]
        if isinstance(feed, Hub)
        else feed.leaves()
    )
    return sorted(found, key=lambda leaf: _rank(leaf.id))


def identity(feed: AnyFeed) -> str:
    return Address.of(feed).identity


def _backlogs(
    feed: AnyFeed, known: Mapping[str, int], target: Offset | None, gone: Gone
) -> list[Range]:
    """A child of a split goes on where its parent stands, even in mid-way: what a range holds of
    its ancestors' changes is part of its feed. So the parent need not be read to its end."""
    extents = {each.partition: each for each in feed.kept()}
    begins, ends = {}, {}
    for leaf in leaves(feed):
        line = (leaf.id, *leaf.ancestors)
        begin, end = _nearest(line, known), extents[leaf.id].end
        if target is not None:
            bound = _nearest(line, target.next)
            if bound is None and begin is None:
                continue  # it came after the query began
            end = min(end, begin or 0 if bound is None else bound)
        begins[leaf.id] = extents[leaf.id].first if begin is None else begin
        ends[leaf.id] = end
    begins = _kept(feed, begins, gone)
    return [
        Range(partition=partition, first=first, end=max(first, ends[partition]))
        for partition, first in begins.items()
    ]


def _pick_changes(feed: ChangeFeed, backlogs: Sequence[Range], max_events: int) -> list[Range]:
    """LSNs have gaps, so that only counting and reading tell where a number of changes ends."""
    positions = {each.partition: Checkpoint(next_sequence=each.first) for each in backlogs}
    counts = feed.count_from(positions)
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
            read = feed.read_batch(each.partition, positions[each.partition], share)
            end = min(end, read.next.next_sequence)
        taken.append(replace(each, end=end))
    return taken


def _same(feed: AnyFeed, offset: Offset, gone: Gone) -> bool:
    if identity(feed) == offset.feed:
        return True
    if gone == "earliest":
        return False
    raise BadInput(f"{feed!r} was made anew since the query's checkpoint was written. {ADVICE}")


def _kept(feed: AnyFeed, positions: Mapping[str, int], gone: Gone) -> dict[str, int]:
    """The positions, moved to where the feed begins if that is wanted."""
    found = dict(positions)
    wanted = {p: Checkpoint(next_sequence=at) for p, at in positions.items()}
    for partition, time in feed.times_at(wanted).items():
        if isinstance(time, PositionGone):
            if gone == "fail":
                raise BadInput(f"{time}. {ADVICE}") from time
            found[partition] = time.earliest.next_sequence
    return found


ADVICE = (
    "Start the query with a new checkpointLocation, or with option 'gone' set to 'earliest' to go "
    "on with what there is"
)


def _nearest(line: Sequence[str], positions: Mapping[str, int]) -> int | None:
    return next((positions[each] for each in line if each in positions), None)


def _sorted(positions: Mapping[str, int]) -> dict[str, int]:
    return {partition: positions[partition] for partition in sorted(positions, key=_rank)}


def _rank(partition: str) -> tuple[int, str]:
    return len(partition), partition
