"""Reads one partition, and the next batch while one is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, TypeVar

from leasehold.core.model import Checkpoint, Lease
from leasehold.core.start import AtSequence
from leasehold.errors import FeedUnavailable, LeaseLost, ReadHung
from leasehold.ports import Batch, Feed, FencesReaders
from leasehold.processor.budget import Budget
from leasehold.settings import Pace

T = TypeVar("T")
End = Literal["done", "late", "broken off"]
HUNG_READS_MAX = 3
"""Reads in a row without an answer before the lease is let go for others to try. Those that run in
threads cannot be ended, so there must be few of them."""


class Reader:
    """``lease`` is what a feed that fences its readers is read under; ``on_lost`` is called when
    such a feed says that another instance has it."""

    def __init__(
        self,
        feed: Feed,
        partition: str,
        pace: Pace,
        budget: Budget | None = None,
        *,
        lease: Lease | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._feed, self._partition, self._pace = feed, partition, pace
        self._fenced = feed if lease is not None and isinstance(feed, FencesReaders) else None
        self._lease, self._on_lost = lease, on_lost
        self._budget = budget or Budget(pace.max_bytes)
        self._in_hand_bytes = 0
        self._ahead: _Read[Batch] | None = None
        self._current: _Read[Any] | None = None
        self._hung = 0

    @property
    def hopeless(self) -> bool:
        return self._hung >= HUNG_READS_MAX

    async def read(self, position: Checkpoint) -> Batch | None:
        """The batch read in the background, or a new one. None: the reading was broken off, or
        there was nothing at the time when it was read in the background."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                batch = await self._result(ahead)
            finally:
                self._count(ahead, 0)
            return self._in_hand(batch if batch is not None and len(batch.events) else None)
        batch = await self._result(self._begin(position))
        return self._in_hand(batch)

    def read_ahead(self, position: Checkpoint) -> None:
        """If there is room for another batch like the one in hand."""
        if self._pace.read_ahead and self._budget.allows(self._in_hand_bytes):
            self._ahead = self._begin(position)
            self._count(self._ahead, self._in_hand_bytes)

    async def fetch(self, events: Sequence[Any], position: Checkpoint) -> list[Any] | None:
        """Events that a feed reads as somebody goes through them: in a thread, or upkeep of all
        leases would wait for it here. None: the reading was broken off."""
        return await self._result(self._start(position, asyncio.to_thread(list, events)))

    async def locate(self, sequence: int) -> Checkpoint:
        """The position of that sequence, as the feed knows it."""
        return await self._feed.locate(self._partition, AtSequence(sequence))

    def break_off(self) -> None:
        """End a read that is being waited for: what it may bring is not wanted any more."""
        if self._current is not None:
            self._current.over("broken off")

    def forget(self) -> None:
        """What was read ahead is not wanted any more."""
        if self._ahead is not None:
            self._ahead.task.cancel()
            self._count(self._ahead, 0)
            self._ahead = None

    def close(self) -> None:
        """Nothing of this partition is in memory any more."""
        self.forget()
        self._in_hand(None)

    async def let_go(self) -> None:
        """Nothing more is read under the lease."""
        self.forget()
        if self._fenced is not None and self._lease is not None:
            await self._fenced.let_go(self._lease)

    def _in_hand(self, batch: Batch | None) -> Batch | None:
        size_bytes = 0 if batch is None else batch.size_bytes
        self._budget.change(self._in_hand_bytes, size_bytes)
        self._in_hand_bytes = size_bytes
        return batch

    def _count(self, ahead: _Read[Batch], size_bytes: int) -> None:
        self._budget.change(ahead.size_bytes, size_bytes)
        ahead.size_bytes = size_bytes

    def _begin(self, position: Checkpoint) -> _Read[Batch]:
        max_events = self._pace.max_events
        if self._fenced is None or self._lease is None:
            reading = self._feed.read(self._partition, position, max_events)
        else:
            reading = self._fenced.read_as_owner(self._lease, position, max_events)
        return self._start(position, reading)

    def _start(self, position: Checkpoint, reading: Coroutine[Any, Any, T]) -> _Read[T]:
        task = asyncio.ensure_future(reading)
        return _Read(position, task, self._pace.read_timeout_s, self._told)

    def _told(self, read: _Read[Any]) -> None:
        """A read is done, whether or not anybody waits for it."""
        error = None if read.task.cancelled() else read.task.exception()
        if isinstance(error, LeaseLost) and self._on_lost is not None:
            self._on_lost()
        if read is self._ahead and error is None and not read.task.cancelled():
            self._count(read, read.task.result().size_bytes)

    async def _result(self, read: _Read[T]) -> T | None:
        self._current = read
        try:
            end = await read.wait()
        finally:
            self._current = None
            read.task.cancel()  # if it is not done: a late answer goes nowhere
        if end == "done":
            self._hung = 0
            return _answer(read.task)
        if end == "broken off":
            return None
        self._hung += 1
        raise ReadHung(
            f"reading partition {self._partition} from {read.position.next_sequence} on gave no "
            f"answer within read_timeout_s={self._pace.read_timeout_s:g}, {self._hung} times in a "
            f"row{': the lease is let go, so that others may try' * self.hopeless}"
        )


class _Read(Generic[T]):
    """A read under way, and who waits for it: until it is done, late, or not wanted any more.

    No task and no clock of its own, and no timer unless somebody waits: it is done for every batch,
    and for every look at every idle partition."""

    def __init__(
        self,
        position: Checkpoint,
        task: asyncio.Task[T],
        limit_s: float,
        told: Callable[[_Read[Any]], None],
    ) -> None:
        self.position, self.task = position, task
        self.size_bytes = 0
        """What a read ahead is expected to bring, and then what it brought."""
        self._loop = asyncio.get_running_loop()
        self._late_at = self._loop.time() + limit_s
        self._told = told
        self._end: End | None = None
        self._waiter: asyncio.Future[None] | None = None
        task.add_done_callback(self._done)

    async def wait(self) -> End:
        if self.task.done():
            return "done"
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(self._late_at, self.over, "late")
        try:
            await self._waiter
        finally:
            timer.cancel()
        return self._end or "done"

    def over(self, end: End) -> None:
        self._end = self._end or end
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _done(self, task: asyncio.Task[T]) -> None:
        self._told(self)
        self.over("done")


def _answer(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise FeedUnavailable("the read was cancelled from within")
    return task.result()
