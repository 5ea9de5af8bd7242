"""Reads the changes of a Cosmos DB container's ranges, and finds positions in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from leasehold.core.change import Mode
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.progress import behind
from leasehold.core.start import (
    NOTHING_COMMITTED,
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    Start,
    StockLeases,
    parse,
)
from leasehold.errors import BadInput, FeedUnavailable, Gone, PositionGone
from leasehold.feeds.cosmos.client import (
    ChangesPage,
    ContainerAbout,
    ContainerRecreated,
    PhysicalRange,
    PositionRefused,
    RangeClient,
    RangeGone,
)
from leasehold.feeds.cosmos.items import ChangeReader
from leasehold.feeds.cosmos.lineage import merged_since
from leasehold.feeds.cosmos.stock_leases import Monitored, read_leases
from leasehold.feeds.cosmos.tokens import Bounds, Position, checkpoint, parse_offset
from leasehold.local.cosmos import CosmosConnection
from leasehold.ports import Batch

TRIES = 3
"""Of what finds its range gone: ranges may split again while they are looked up."""
BEHIND_MAX = 10
"""Answers in a row from where a position is not known yet, until it counts as lost."""
SCAN_ITEMS = 1000
OTHER_NAMES = {"now": "latest", "beginning": "earliest"}
R = TypeVar("R")


class Target(NamedTuple):
    """Where to ask for the changes of a partition."""

    range: PhysicalRange
    bounds: Bounds
    clip: bool
    """The range has more keys than the partition, because it was merged with another."""


class CosmosReader:
    def __init__(self, connection: CosmosConnection, mode: Mode) -> None:
        self._client = RangeClient(connection, mode)
        self._mode = mode
        self._where = connection.settings.address
        self._names = connection.settings.database, connection.settings.container
        self._about: ContainerAbout | None = None
        self._items: ChangeReader | None = None
        self._ranges: list[PhysicalRange] = []
        self._firsts: dict[str, tuple[int, int]] = {}
        """By partition: where it ended when it was last looked at, and where it began."""
        self._behind: Counter[str] = Counter()
        """By partition: answers in a row that did not reach its position."""
        self._other_names: set[str | None] = set()
        self._closed = False

    @property
    def about(self) -> ContainerAbout:
        self._require_open()
        if self._about is None:
            self._about = self._client.about()
            paths = self._about.key_paths
            self._items = ChangeReader(self._about.identity, paths, self._mode)
        return self._about

    def close(self) -> None:
        self._closed = True

    def partitions(self) -> list[Partition]:
        return [
            Partition(id=each.id, ancestors=tuple(reversed(each.parents))) for each in self._look()
        ]

    def leaves_of(self, partition: str) -> list[PhysicalRange]:
        """The ranges that have a partition's changes now."""
        found = [each for each in self._look() if each.id == partition]
        found = found or [each for each in self._ranges if partition in each.parents]
        if not found:
            raise self._unknown(partition)
        return found

    def was_merged(self, partition: str) -> bool:
        """Whether the ranges that have a partition's changes now may have others' as well."""
        return merged_since(partition, self._ranges)

    def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 change must be allowed")
        if position.next_sequence < 0:
            raise BadInput(f"range {partition}: LSN {position.next_sequence} is below 0")
        return self._settled(lambda: self._read(partition, position, max_events))

    def locate(self, partition: str, start: Any) -> Checkpoint:
        """The position that a start setting means right now."""
        try:
            wanted = parse(OTHER_NAMES.get(start, start) if isinstance(start, str) else start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        find = self._finder(wanted)
        return self._settled(lambda: self._located(partition, find))

    def _finder(self, wanted: Start) -> Callable[[Target], Checkpoint]:
        match wanted:
            case Earliest():
                return self._first
            case Latest():
                return self._end
            case AtTime():
                return lambda target: self._at_time(target, wanted)
            case AtSequence(sequence=lsn):
                return lambda target: self._at(target, Checkpoint(next_sequence=lsn))
            case AtOffset(offset=offset):
                return lambda target: self._at_offset(target, offset)
            case StockLeases(url=url):
                return lambda target: self._at_leases(target, url)
            case Committed(group=group):
                raise BadInput(NOTHING_COMMITTED.format(group=group))

    def _located(self, partition: str, find: Callable[[Target], Checkpoint]) -> Checkpoint:
        """What was split is behind with the one that is furthest behind: since then, each child has
        counted its LSNs by itself."""
        parts = self._parts(partition)
        found = min((find(each) for each in parts), key=lambda at: at.next_sequence)
        at = Position.of(found)
        if len(parts) == 1 or at is None:
            return found
        whole = Bounds(
            min(each.bounds.low for each in parts), max(each.bounds.end for each in parts)
        )
        return checkpoint(self.about.identity, whole, at.lsn, at.done, at.left or 0)

    def extents(self) -> list[Extent]:
        """With those of ranges that were merged: what was split lives on in two at least."""
        return self._settled(self._extents)

    def _extents(self) -> list[Extent]:
        found = []
        times = Counter(name for each in self._look() for name in each.parents)
        for each in self._ranges:
            target = Target(each, each.bounds, False)
            end = self._end(target).next_sequence
            known = self._firsts.get(each.id)
            if known is None or known[0] != end:
                known = self._firsts[each.id] = end, min(self._first(target).next_sequence, end)
            for id in (each.id, *(name for name in each.parents if times[name] == 1)):
                found.append(Extent(partition=id, first=known[1], end=end))
        return found

    def event_times(self, positions: Mapping[str, Checkpoint]) -> dict[str, float | PositionGone]:
        times: dict[str, float | PositionGone] = {}
        for partition, position in positions.items():
            try:
                batch = self.read(partition, position, 1)
            except PositionGone as gone:
                times[partition] = gone
                continue
            if batch.events:
                times[partition] = batch.events[0].enqueued_at.timestamp()
        return times

    def _read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        identity = self.about.identity
        assert self._items is not None
        begin = Position.of(position)
        target = self._target(partition, begin)
        if not isinstance(target, Target):
            at = begin or Position(position.next_sequence - 1)
            children = {
                each.id: checkpoint(identity, each.bounds, at.lsn, at.done, at.left or 0)
                for each in target
            }
            return Batch(next=position, children=children)
        if begin is None or begin.identity not in (None, identity):
            raise self._gone(target, partition, position, "other feed")
        after = begin.lsn - 1 if begin.done else begin.lsn
        while True:
            try:
                page = self._changes(
                    "read",
                    target.range.id,
                    after=after,
                    within=target.bounds if target.clip else None,
                    max_items=max_events + begin.done,
                )
            except PositionRefused as error:
                raise self._why_refused(target, partition, position, error) from error
            if page.newest_lsn is not None and after > page.newest_lsn:
                raise self._beyond(target, partition, position, begin)
            self._behind.pop(partition, None)
            changes = self._items.changes(
                partition, target.bounds, page.items, begin, clip=target.clip
            )[:max_events]
            if changes:
                return Batch(events=changes, next=behind(changes[-1]), size_bytes=page.size_bytes)
            if not page.items:
                if begin.done and page.lsn < begin.lsn:
                    return Batch(next=position)  # the rest of a transaction is not told yet
                return Batch(next=checkpoint(identity, target.bounds, max(page.lsn, begin.lsn)))
            after = page.lsn

    def _target(self, partition: str, begin: Position | None) -> Target | Sequence[PhysicalRange]:
        """Where to read; or, if the partition was split, the ranges that have it now."""
        for looked_again in (False, True):
            own = next((each for each in self._ranges if each.id == partition), None)
            if own is not None:
                return Target(own, own.bounds, False)
            bounds = begin.bounds if begin is not None else None
            found = [
                each
                for each in self._ranges
                if (each.bounds.overlaps(bounds) if bounds else partition in each.parents)
            ]
            known = any(partition in each.parents for each in self._ranges)
            if known and found:
                break
            if looked_again:
                raise self._unknown(partition)
            self._look()
        if bounds is None or all(each.bounds.within(bounds) for each in found):
            return found
        if len(found) > 1:
            raise BadInput(
                f"{self._where}: range {partition} was merged with others, and those were split "
                "elsewhere since; its group has to start over: leasehold rewind"
            )
        self._require_clippable()
        return Target(found[0], bounds, True)

    def _require_clippable(self) -> None:
        if self.about.key_version != 2:
            raise BadInput(
                f"{self._where}: ranges were merged, and their keys are hashed by version "
                f"{self.about.key_version}, which cannot be told apart here; only version 2 can"
            )

    def _parts(self, partition: str) -> list[Target]:
        """Where positions of a partition are looked up; if it was split, all that have it now."""
        target = self._target(partition, None)
        if isinstance(target, Target):
            return [target]
        return [Target(each, each.bounds, False) for each in target]

    def _settled(self, ask: Callable[[], R]) -> R:
        """The answer, once no range is found gone meanwhile."""
        gone: RangeGone | None = None
        for _ in range(TRIES):
            try:
                if gone is not None:
                    self._look()
                return ask()
            except RangeGone as error:
                gone = error
        raise FeedUnavailable(f"{self._where}: ranges are being split or merged: {gone}") from gone

    def _changes(self, *arguments: Any, **settings: Any) -> ChangesPage:
        """A page of the container that is known; another one may have its name by now."""
        known = self.about.identity
        page = self._client.changes(*arguments, **settings)
        if page.identity not in (None, known, *self._other_names):
            self._about = None
            if self.about.identity != known:
                self._firsts.clear()
                self._other_names.clear()
                raise ContainerRecreated(f"{self._where} was recreated")
            self._other_names.add(page.identity)  # it names something else of the same container
        return page

    def _look(self) -> list[PhysicalRange]:
        self._require_open()
        _ = self.about
        self._ranges = self._client.ranges()
        return self._ranges

    def _first(self, target: Target) -> Checkpoint:
        after = 0 if self._mode == "all" else None
        try:
            page = self._changes("locate", target.range.id, after=after)
        except PositionRefused as error:
            raise BadInput(
                f"{self._where}: all versions cannot be read from the beginning here ({error}); "
                "begin at latest, or at a time"
            ) from error
        if page.items and self._items is not None:
            return self._checkpoint(target, self._items.lsn_of(page.items[0]) - 1)
        return self._checkpoint(target, page.lsn)

    def _end(self, target: Target) -> Checkpoint:
        page = self._changes("ends", target.range.id, latest=True)
        return self._checkpoint(target, page.lsn)

    def _at_time(self, target: Target, wanted: AtTime) -> Checkpoint:
        """Times are told in whole seconds, so the first page may begin too early, and any change of
        the second that was asked for may be later than that."""
        assert self._items is not None
        second = wanted.time.replace(microsecond=0)
        since = second - timedelta(seconds=1)
        after = None
        while True:
            page = self._changes(
                "locate", target.range.id, after=after, since=since, max_items=SCAN_ITEMS
            )
            for item in page.items:
                if self._items.time_of(item) >= second:
                    return self._checkpoint(target, self._items.lsn_of(item) - 1)
            if not page.items:
                return self._checkpoint(target, page.lsn)
            after = page.lsn

    def _at(self, target: Target, position: Checkpoint) -> Checkpoint:
        """The first change from there on, or the end."""
        batch = self.read(target.range.id, position, 1)
        if not batch.events:
            return batch.next
        return self._checkpoint(target, batch.events[0].lsn - 1)

    def _at_offset(self, target: Target, offset: str) -> Checkpoint:
        found = parse_offset(offset)
        if found is None:
            raise BadInput(f"offset {offset!r:.80} is none of {self._where}")
        lsn, done, left = found
        if done > 1 and left:
            return checkpoint(self.about.identity, target.bounds, lsn, done - 1, left + 1)
        return self._at(target, Checkpoint(next_sequence=lsn))

    def _at_leases(self, target: Target, url: str) -> Checkpoint:
        """Of several that have some of its keys, the one that is furthest behind. Where no batch
        was finished: the beginning, as nothing may be skipped."""
        family = {target.range.id, *target.range.parents}
        leases = read_leases(url, Monitored(*self._names, self.about.rid))
        done = [each.lsn for each in leases if each.covers(family, target.bounds)]
        if not done or None in done:
            return self._first(target)
        return self._checkpoint(target, min(lsn for lsn in done if lsn is not None))

    def _checkpoint(self, target: Target, lsn: int) -> Checkpoint:
        return checkpoint(self.about.identity, target.bounds, lsn)

    def _beyond(
        self, target: Target, partition: str, position: Checkpoint, begin: Position
    ) -> Exception:
        """A position that was read in this very container is not yet known to whoever answered: its
        LSNs do not fall. To begin again for that would repeat all."""
        self._behind[partition] += 1
        if begin.identity is not None and self._behind[partition] < BEHIND_MAX:
            return FeedUnavailable(
                f"{self._where}, range {partition}: LSN {begin.lsn} is not known yet where it was "
                "asked for"
            )
        return self._gone(target, partition, position, "beyond end")

    def _why_refused(
        self, target: Target, partition: str, position: Checkpoint, error: Exception
    ) -> Exception:
        end = self._end(target).next_sequence
        reason: Gone = "beyond end" if position.next_sequence > end else "retention"
        if self._mode == "latest" and reason == "retention":
            return BadInput(f"{self._where}, range {partition}: {error}")
        return self._gone(target, partition, position, reason)

    def _gone(
        self, target: Target, partition: str, position: Checkpoint, reason: Gone
    ) -> PositionGone:
        latest = self._end(target)
        try:
            earliest = self._first(target)
        except BadInput:  # all versions: what was kept is not told
            earliest = latest
        text = {
            "retention": "is older than what is kept of all versions",
            "beyond end": f"is beyond the end, {latest.next_sequence}; was it recreated?",
            "other feed": f"with token {position.token!r:.80} is a position of another container",
            "rolled back": "is lost",
        }[reason]
        return PositionGone(
            f"{self._where}, range {partition}: LSN {position.next_sequence} {text}",
            partition=partition,
            position=position,
            reason=reason,
            earliest=earliest,
            latest=latest,
        )

    def _unknown(self, partition: str) -> BadInput:
        names = ", ".join(each.id for each in self._ranges[:12])
        return BadInput(f"range {partition!r} is unknown: {self._where} has {names}")

    def _require_open(self) -> None:
        if self._closed:
            raise BadInput(f"the feed {self._where} was closed; open it again")
