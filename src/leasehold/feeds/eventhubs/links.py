"""The links of a feed: one for each partition that is read, in each consumer group and epoch."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from leasehold.core.event import Event
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds.eventhubs.address import EventHubsSettings
from leasehold.feeds.eventhubs.broker import Broker, PartitionInfo
from leasehold.feeds.eventhubs.link import OtherHub, PartitionLink, PrefetchBounds
from leasehold.feeds.eventhubs.messages import event_of, size_of
from leasehold.feeds.eventhubs.positions import begin_of, gone, require
from leasehold.feeds.eventhubs.sdk import Clients, Lookups, OnMessage, SdkReceiver
from leasehold.feeds.eventhubs.troubles import is_busy, is_crowded, translated
from leasehold.ports import Batch

CHUNK_EVENTS = 5_000
LINGERING_MAX = 2
"""Links of one partition that may still be closing when the next is opened: without an owner level,
the broker allows 5 in a consumer group."""
CROWDED_S = 0.1


class LinkKey(NamedTuple):
    group: str
    partition: str
    owner_level: int | None = None


class Links:
    """All of it runs in the feed's own loop."""

    def __init__(
        self, settings: EventHubsSettings, clients: Clients, broker: Broker, requests: Counter[str]
    ) -> None:
        self._settings, self._clients = settings, clients
        self._broker, self._requests = broker, requests
        self._bounds = PrefetchBounds(events=settings.prefetch, bytes=settings.prefetch_bytes)
        self._links: dict[LinkKey, PartitionLink] = {}
        self._locks: dict[LinkKey, asyncio.Lock] = {}
        self._closing: dict[asyncio.Task[None], str] = {}
        """Links on their way out, with their partition."""
        self._lookups = Lookups(clients, settings.group_of(None))
        self._looking_up = asyncio.Lock()

    async def read(self, key: LinkKey, position: Checkpoint, max_events: int) -> Batch:
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 event must be allowed")
        self._requests["read"] += 1
        async with self._locks.setdefault(key, asyncio.Lock()):
            link = await self._link(key, position)
            try:
                events = await self._take(link, position, max_events)
            except OtherHub:
                self._discard(key)
                info = await self._broker.partition(key.partition)
                raise gone(info, position, "other feed") from None
            except Exception as error:
                self._discard(key)
                raise self._translated(error, key) from error
        after = link.next if events else position
        return Batch(events=events, next=after, size_bytes=sum(map(size_of, events)))

    async def drop(self, key: LinkKey) -> None:
        """Its link is closed when this returns."""
        link = self._links.pop(key, None)
        self._locks.pop(key, None)
        if link is not None:
            await link.close()

    async def look_up(self, partition: str, begin: str | int, *, inclusive: bool) -> Event:
        """The first event from there on."""
        key = LinkKey(self._settings.group_of(None), partition)
        until = time.monotonic() + self._settings.timeout_s / 4
        async with self._looking_up:
            while True:
                fresh = not self._lookups.is_open
                await self._broker.patience()
                self._requests["attach"] += 1
                try:
                    async with asyncio.timeout(self._settings.timeout_s):
                        found = await self._lookups.first(partition, begin, inclusive=inclusive)
                    return event_of(found, partition)
                except Exception as error:
                    await self._forget_lookups()
                    if is_crowded(error) and time.monotonic() < until:
                        await asyncio.sleep(CROWDED_S)
                    elif fresh or is_busy(error):
                        raise self._translated(error, key) from error
                    # A connection that was idle may be gone without a word.
                except BaseException:
                    await self._forget_lookups()  # what comes late would be the next one's answer
                    raise

    async def first_since(self, key: LinkKey, not_before: datetime) -> Event:
        """The first event from that time on."""
        # A millisecond is as exact as the broker is asked.
        before = datetime.fromtimestamp(max(0, int(not_before.timestamp() * 1000) - 1) / 1000, UTC)
        link = PartitionLink(key.partition, Checkpoint(next_sequence=0), self._bounds)
        link.start(partial(self._open, key, before, False))
        try:
            while True:
                await link.wait(self._settings.timeout_s)
                for event in link.take(100):
                    if event.enqueued_at >= not_before:
                        return event
        except Exception as error:
            raise self._translated(error, key) from error
        finally:
            self.close_soon(link)

    def time_of(self, partition: str, sequence: int) -> float | None:
        """Of an event that some link has at hand."""
        for key, link in self._links.items():
            if key.partition == partition and (found := link.time_of(sequence)) is not None:
                return found
        return None

    async def begin(self, key: LinkKey, wanted: Range) -> PartitionLink:
        """A link for a range, apart from those that are read on."""
        self._requests["read"] += 1
        position = Checkpoint(next_sequence=wanted.first)
        info = await self._broker.partition(wanted.partition)
        require(info, position)
        if wanted.end > info.end:
            raise FeedUnavailable(
                f"{info.hub}, partition {wanted.partition}: it ends at {info.end}, although the "
                f"range up to {wanted.end} was planned"
            )
        return self._attach(key, position, info)

    async def next_of(self, key: LinkKey, link: PartitionLink, wanted: Range) -> Sequence[Event]:
        """What comes next in the range; nothing at its end."""
        try:
            if link.next.next_sequence < wanted.end:
                await link.wait(self._settings.timeout_s)
                await link.gather(min(CHUNK_EVENTS, wanted.end - link.next.next_sequence))
                if events := link.take(CHUNK_EVENTS, end=wanted.end):
                    return events
            missing = min(link.gap_at, link.next.next_sequence)
            if missing < wanted.end:  # by compaction, or retention has overtaken the range
                position = Checkpoint(next_sequence=missing)
                require(await self._broker.partition(key.partition), position)
            return ()
        except Exception as error:
            raise self._translated(error, key) from error

    def close_soon(self, link: PartitionLink) -> None:
        """Its end takes a moment, for which nobody waits."""
        task = asyncio.ensure_future(link.close())
        self._closing[task] = link.partition
        task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        for key in list(self._links):
            self._discard(key)
        await self._forget_lookups()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _link(self, key: LinkKey, position: Checkpoint) -> PartitionLink:
        """The one that stands at the position, or a new one."""
        link = self._links.get(key)
        if link is not None and link.error is None and link.is_at(position):
            return link
        if link is not None:
            self._discard(key)
            if link.error is not None and link.is_at(position):
                self._requests["reattached"] += 1
                found = self._translated(link.error, key)
                if not isinstance(found, FeedUnavailable):  # to be told: another reader has it
                    raise found from link.error
        info = await self._broker.partition(key.partition)
        require(info, position)
        link = self._links[key] = self._attach(key, position, info)
        if info.end == position.next_sequence:
            link.at_end_since = time.monotonic()
        return link

    async def _take(
        self, link: PartitionLink, position: Checkpoint, max_events: int
    ) -> Sequence[Event]:
        while True:
            if link.ahead > position.next_sequence:
                # Removed by retention, or by compaction, which is nobody's loss.
                require(await self._broker.partition(link.partition), position)
            if link.ahead >= 0:
                await link.gather(max_events)
                return link.take(max_events)
            if link.error is not None:
                raise link.error
            if time.monotonic() - link.at_end_since < self._settings.fresh_s:
                return ()
            info = await self._broker.partition(link.partition)
            require(info, position)
            if info.end <= position.next_sequence:
                link.at_end_since = time.monotonic()
                return ()
            link.known_end = info.end
            await link.wait(self._settings.timeout_s)

    def _attach(self, key: LinkKey, position: Checkpoint, info: PartitionInfo) -> PartitionLink:
        begin, inclusive = begin_of(position, info.first)
        link = PartitionLink(key.partition, position, self._bounds)
        link.known_end = info.end
        link.start(partial(self._open, key, begin, inclusive))
        return link

    async def _open(
        self, key: LinkKey, begin: Any, inclusive: bool, on_message: OnMessage
    ) -> SdkReceiver:
        until = time.monotonic() + self._settings.timeout_s / 4
        while (
            len(old := [t for t, p in self._closing.items() if p == key.partition]) > LINGERING_MAX
        ):
            await asyncio.wait(old, return_when=asyncio.FIRST_COMPLETED)
        while True:
            await self._broker.patience()
            self._requests["attach"] += 1
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    return await SdkReceiver.open(
                        self._clients.consumer(key.group),
                        key.partition,
                        begin,
                        inclusive=inclusive,
                        owner_level=key.owner_level,
                        on_message=on_message,
                    )
            except Exception as error:
                # The broker may not have noticed yet that links of ours are closed.
                if not is_crowded(error) or time.monotonic() > until:
                    raise
                await asyncio.sleep(CROWDED_S)

    async def _forget_lookups(self) -> None:
        with suppress(Exception):  # it is gone, one way or another
            async with asyncio.timeout(1.0):
                await self._lookups.close()

    def _discard(self, key: LinkKey) -> None:
        if (link := self._links.pop(key, None)) is not None:
            self.close_soon(link)

    def _translated(self, error: Exception, key: LinkKey) -> Exception:
        if is_busy(error):
            self._broker.busy()
        what = f"partition {key.partition}, consumer group {key.group}"
        return translated(error, self._settings, what, owner_level=key.owner_level)
