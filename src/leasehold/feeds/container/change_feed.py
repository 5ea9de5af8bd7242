"""A container's change feed, as the processor reads it and as it is read by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, get_args

from leasehold.core.change import Mode, Page
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, PositionGone, only_lost
from leasehold.feeds.change_chunks import CHANGE_COLUMNS, ChangeChunk, chunks
from leasehold.feeds.container.file import ContainerFile
from leasehold.feeds.container.reader import ContainerReader, history_of, in_history
from leasehold.local.threads import OwnThreads
from leasehold.ports import Batch

MODES = get_args(Mode)
ALL_SUFFIX = ".all"
_CONTINUATION = re.compile(
    r"([0-9a-f]{16}-\d{1,18}(?:-[0-9a-f]{8})?):(latest|all):(\d{1,18}):(\d{1,18})", re.ASCII
)


class Continuation(NamedTuple):
    """Where reading by hand goes on, as text that a user may keep."""

    mode: Mode
    range: str
    position: Checkpoint

    @classmethod
    def parse(cls, text: str) -> Continuation:
        parts = _CONTINUATION.fullmatch(text)
        if parts is None:
            raise BadInput(f"{text!r:.80} is not a continuation; use what a page gave you")
        token, mode, range, lsn = parts.groups()
        return cls(cast(Mode, mode), range, Checkpoint(next_sequence=int(lsn), token=token))

    def __str__(self) -> str:
        return f"{self.position.token}:{self.mode}:{self.range}:{self.position.next_sequence}"


class ChangeFeed:
    """A ``ColumnarFeed``: its async methods work in the container's own threads.

    ``latest`` has each changed document once, in its newest state, and no deletes; ``all`` has
    every change that is kept. A group reads one of them, so they have different names.
    """

    unit = "change"
    columns = CHANGE_COLUMNS
    has_gaps = True

    def __init__(
        self,
        container: Any,
        file: ContainerFile,
        mode: Mode,
        requests: Counter[str],
        threads: OwnThreads,
    ) -> None:
        settings = file.settings
        if mode not in MODES:
            raise BadInput(f"mode {mode!r}: a change feed is read as one of {', '.join(MODES)}")
        if mode == "all" and settings.versions_s == 0:
            raise BadInput(
                f"the container {file.path} keeps no versions, so it has no feed of all of them: "
                "make it with versions_s=, the seconds to keep them for"
            )
        self.container = container
        self.mode = mode
        self.namespace = settings.namespace
        self.name = settings.name + (ALL_SUFFIX if mode == "all" else "")
        self.identity = settings.identity
        self.address = f"{file.path.resolve().as_uri()}?mode={mode}"
        self.requests = requests
        self._file = file
        self._reader = ContainerReader(file, mode)
        self._threads = threads

    def read_batch(
        self,
        partition: str | int,
        position: Checkpoint,
        max_events: int,
        hashes: tuple[int, int] | None = None,
    ) -> Batch:
        """``read`` for callers with a thread of their own: it blocks. ``hashes``: only keys
        between these."""
        self.requests["read"] += 1
        return self._reader.read(self._file.number(partition), position, max_events, hashes)

    def position_of(self, partition: str | int, start: Any) -> Checkpoint:
        """``locate`` for callers with a thread of their own: it blocks."""
        self.requests["locate"] += 1
        return self._reader.locate(self._file.number(partition), start)

    def tokens_of(self, lsns: Mapping[str, int]) -> Mapping[str, str]:
        """By range: the token of the position before that LSN."""
        self.requests["tokens"] += 1
        return _named(self._reader.tokens({self._file.number(r): at for r, at in lsns.items()}))

    def read_columns(self, ranges: Sequence[Range]) -> Iterator[ChangeChunk]:
        for each in ranges:
            yield from chunks(self.read_batch, each)

    def history_of(self, token: str) -> int:
        """The mark in a token tells the container's histories apart."""
        return history_of(token)

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        here = self.tokens_of({range: lsn for range, (lsn, _) in positions.items()})
        known = {
            range: Checkpoint(next_sequence=lsn, token=in_history(here[range], mark))
            for range, (lsn, mark) in positions.items()
        }
        return only_lost(self._event_times(known))

    def page(self, range: str | int, continuation: str | None, max_items: int, start: Any) -> Page:
        position = self._position(range, continuation, start)
        batch = self.read_batch(range, position, max_items)
        return Page(
            changes=batch.events,
            continuation=self._continuation(range, batch.next),
            children={
                child: self._continuation(child, begin) for child, begin in batch.children.items()
            },
        )

    async def partitions(self) -> Sequence[Partition]:
        return await self._threads.run(self._partitions)

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._threads.run(self.position_of, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._threads.run(self.read_batch, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        return await self._threads.run(self._extents)

    async def ends(self) -> Mapping[str, Checkpoint]:
        return await self._threads.run(self._ends)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._threads.run(self._event_times, positions)

    async def remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        """By range: how many changes there are from its position on.

        LSNs are the container's, so that the distance between two of them says nothing about the
        number of changes in one range.
        """
        return await self._threads.run(self._remaining, positions)

    def close(self) -> None:
        self.container.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _feed_of, (self.container, self.mode)

    def __repr__(self) -> str:
        return f"ChangeFeed({self.namespace}/{self.name})"

    def _partitions(self) -> Sequence[Partition]:
        self.requests["partitions"] += 1
        return self._reader.partitions()

    def _extents(self) -> Sequence[Extent]:
        self.requests["extents"] += 1
        return self._reader.extents()

    def _ends(self) -> Mapping[str, Checkpoint]:
        self.requests["ends"] += 1
        return self._reader.ends()

    def _event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        self.requests["event_times"] += 1
        return _named(self._reader.event_times(self._numbered(positions)))

    def _remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        self.requests["remaining"] += 1
        return _named(self._reader.remaining(self._numbered(positions)))

    def _numbered(self, positions: Mapping[str, Checkpoint]) -> dict[int, Checkpoint]:
        return {self._file.number(range): position for range, position in positions.items()}

    def _continuation(self, range: str | int, position: Checkpoint) -> str:
        return str(Continuation(self.mode, str(range), position))

    def _position(self, range: str | int, continuation: str | None, start: Any) -> Checkpoint:
        if continuation is None:
            return self.position_of(range, start)
        of = Continuation.parse(continuation)
        if (of.mode, of.range) != (self.mode, str(range)):
            raise BadInput(
                f"the continuation {continuation} is of range {of.range}, mode {of.mode}; "
                f"it cannot be used for range {range}, mode {self.mode}"
            )
        return of.position


def _named(found: Mapping[int, Any]) -> dict[str, Any]:
    return {str(range): value for range, value in found.items()}


def _feed_of(container: Any, mode: Mode) -> Any:
    """Another process opens the file for itself."""
    return container.feed(mode)
