"""One partition being read: a link to the broker, and what it has brought that nobody took yet."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from leasehold.core.event import Event
from leasehold.core.model import Checkpoint
from leasehold.feeds.eventhubs.address import EVENT_BYTES_MAX
from leasehold.feeds.eventhubs.broker import NO_TOKEN
from leasehold.feeds.eventhubs.messages import event_of, size_of
from leasehold.feeds.eventhubs.positions import same_offset
from leasehold.feeds.eventhubs.sdk import SdkReceiver

FULL_S = 1.0
"""How long a link that is full waits before it listens for other news from the broker."""

GATHER_S = 1.0
"""How long to wait for more of what is known to be there, once some of it has come."""


class OtherHub(Exception):
    """The event before a position has another offset than the position says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchBounds:
    """How much may come before anybody asks for it."""

    events: int
    bytes: int


class PartitionLink:
    def __init__(self, partition: str, position: Checkpoint, bounds: PrefetchBounds) -> None:
        self.partition, self.next = partition, position
        self.error: Exception | None = None
        self.at_end_since = float("-inf")
        """When the broker last said that there is nothing more to come."""
        self.known_end = 0
        """The sequence up to which the broker said that there are events."""
        self.gap_at = sys.maxsize
        """The first sequence that did not come, though later ones did."""
        self._begin, self._bounds = position, bounds
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._average: float | None = None
        """About the size of the events that come; rather too much than too little."""
        self._news, self._taken = asyncio.Event(), asyncio.Event()
        self._receiver: SdkReceiver | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self, opening: Any) -> None:
        """``opening`` opens the receiver, and is told what to do with messages."""
        self._task = asyncio.ensure_future(self._run(opening))

    def is_at(self, position: Checkpoint) -> bool:
        tokens = {self.next.token, position.token} - set(NO_TOKEN)
        return self.next.next_sequence == position.next_sequence and len(tokens) < 2

    @property
    def ahead(self) -> int:
        """The sequence of the next event that is here already; -1 without any."""
        return self._events[0].sequence if self._events else -1

    def time_of(self, sequence: int) -> float | None:
        if self._events and self._events[0].sequence == sequence:
            return self._events[0].enqueued_at.timestamp()
        return None

    async def wait(self, seconds: float) -> None:
        """Until there is something to take. Raises what ended the link, if nothing came before."""
        async with asyncio.timeout(seconds):
            while not self._events:
                if self.error is not None:
                    raise self.error
                self._news.clear()
                await self._news.wait()

    async def gather(self, max_events: int) -> None:
        """Let so many come, of those that are known to be there and that there is room for."""
        known = self.known_end - self.next.next_sequence
        wanted = min(max_events, known, self._bounds.events)
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while len(self._events) < wanted and self._by_size() > 0 and self.error is None:
                    self._news.clear()
                    await self._news.wait()

    def take(self, max_events: int, end: int | None = None) -> Sequence[Event]:
        """What is here, up to a gap in the sequences and before ``end``."""
        taken: list[Event] = []
        events, expected = self._events, self.next.next_sequence
        while events and len(taken) < max_events:
            head = events[0]
            if (taken and head.sequence != expected) or (end is not None and head.sequence >= end):
                break
            taken.append(events.popleft())
            self._bytes -= size_of(head)
            expected = head.sequence + 1
        if taken:
            if taken[0].sequence > self.next.next_sequence:
                self.gap_at = min(self.gap_at, self.next.next_sequence)
            self.next = Checkpoint(next_sequence=expected, token=taken[-1].offset)
            self._taken.set()
        return taken

    async def close(self) -> None:
        self._closed = True  # the SDK's waits may lose a cancellation, in Python 3.11
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, opening: Any) -> None:
        try:
            self._receiver = await opening(self._came)
            while self.error is None and not self._closed:
                if not await self._allow():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._taken.wait(), FULL_S)
                if not await self._receiver.receive():
                    break
            self.error = self.error or ConnectionError("the link was closed")
        except Exception as error:
            self.error = error
        finally:
            self._news.set()
            if self._receiver is not None:
                try:
                    async with asyncio.timeout(2.0):
                        await self._receiver.close()
                except Exception:  # it is gone, one way or another
                    pass

    async def _came(self, message: Any) -> None:
        """The SDK logs what is raised here and goes on with the next event."""
        try:
            self._keep(event_of(message, self.partition))
        except Exception as error:
            self.error = self.error or error
        self._news.set()

    def _keep(self, event: Event) -> None:
        if self.error is not None:
            return  # what comes behind a loss would hide it
        begin = self._begin
        if event.sequence < begin.next_sequence:
            if event.sequence == begin.next_sequence - 1 and not same_offset(
                begin.token, event.offset
            ):
                raise OtherHub(event.offset)
            return
        size = size_of(event)
        known = size if self._average is None else self._average
        self._average = max(size, known - (known - size) / 16)
        self._events.append(event)
        self._bytes += size

    def _by_size(self) -> int:
        return int((self._bounds.bytes - self._bytes) / (self._average or EVENT_BYTES_MAX))

    async def _allow(self) -> bool:
        """Let more come, once half of what may is here or taken. False: nothing can come until
        something is taken."""
        assert self._receiver is not None
        self._taken.clear()
        at_least = 0 if self._events else 1
        room = min(self._bounds.events - len(self._events), max(self._by_size(), at_least))
        if room > 0 and self._receiver.credit <= room // 2:
            await self._receiver.allow(room)
        return self._receiver.credit > 0
