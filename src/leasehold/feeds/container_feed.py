"""A container's change feed, as the processor reads it and as it is read by hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, get_args

from leasehold.core.change import Change
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.container_file import ContainerFile
from leasehold.feeds.container_reader import ContainerReader, Mode
from leasehold.feeds.sqlite_file import Threads
from leasehold.ports import Batch

MODES = get_args(Mode)
ALL_SUFFIX = ".all"
_CONTINUATION = re.compile(r"([0-9a-f]{16}-\d{1,18}):(latest|all):(\d{1,18}):(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one read by hand gave."""

    changes: Sequence[Change]
    continuation: str
    """Where to go on in this range."""
    children: Mapping[str, str] = field(default_factory=dict)
    """Not empty: the range was split and is read to its end. Go on in these, by range, from these
    continuations."""


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
    """A ``Feed``: the async methods run the plain ones in the container's own threads.

    ``latest`` has each changed document once, in its newest state, and no deletes; ``all`` has
    every change that is kept. A group reads one of them, so they have different names.
    """

    def __init__(
        self,
        container: Any,
        file: ContainerFile,
        mode: Mode,
        requests: Counter[str],
        threads: Threads,
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
        self.requests = requests
        self._file = file
        self._reader = ContainerReader(file, mode)
        self._threads = threads

    def leaves(self) -> Sequence[Partition]:
        """``partitions`` without waiting for a loop."""
        self.requests["partitions"] += 1
        return self._reader.partitions()

    def read_batch(self, partition: str | int, position: Checkpoint, max_events: int) -> Batch:
        """``read`` without waiting for a loop."""
        self.requests["read"] += 1
        return self._reader.read(self._file.number(partition), position, max_events)

    def position_of(self, partition: str | int, start: Any) -> Checkpoint:
        """``locate`` without waiting for a loop."""
        self.requests["locate"] += 1
        return self._reader.locate(self._file.number(partition), start)

    def kept(self) -> Sequence[Extent]:
        """``extents`` without waiting for a loop."""
        self.requests["extents"] += 1
        return self._reader.extents()

    def times_at(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, float | PositionGone]:
        """``event_times`` without waiting for a loop."""
        self.requests["event_times"] += 1
        return _named(self._reader.event_times(self._numbered(positions)))

    def count_from(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        """``remaining`` without waiting for a loop."""
        self.requests["remaining"] += 1
        return _named(self._reader.remaining(self._numbered(positions)))

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
        return await self._threads.run(self.leaves)

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        return await self._threads.run(self.position_of, partition, start)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        return await self._threads.run(self.read_batch, partition, position, max_events)

    async def extents(self) -> Sequence[Extent]:
        return await self._threads.run(self.kept)

    async def event_times(
        self, positions: Mapping[str, Checkpoint]
    ) -> Mapping[str, float | PositionGone]:
        return await self._threads.run(self.times_at, positions)

    async def remaining(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
        """By range: how many changes there are from its position on.

        LSNs are the container's, so that the distance between two of them says nothing about the
        number of changes in one range.
        """
        return await self._threads.run(self.count_from, positions)

    def close(self) -> None:
        self.container.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _feed_of, (self.container, self.mode)

    def __repr__(self) -> str:
        return f"ChangeFeed({self.namespace}/{self.name})"

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
