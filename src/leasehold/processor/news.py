"""Pumps with nothing to read share one look at the feed, instead of each reading in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from leasehold.clock import within
from leasehold.core.model import Checkpoint
from leasehold.ports import Clock, Feed, TellsEnds
from leasehold.settings import Pace

QUIET_S = 60.0
"""After so long without news a pump reads all the same, whatever the feed says of its ends."""


class _Watch(NamedTuple):
    at: Checkpoint
    wake: Callable[[], None]


class News:
    """The pumps of one instance that wait for something to read. Where the feed does not tell its
    ends, each of them reads again after ``poll_interval_s``."""

    def __init__(self, feed: Feed, clock: Clock, pace: Pace) -> None:
        self._clock, self._pace = clock, pace
        self._ends = feed.ends if isinstance(feed, TellsEnds) else None
        self._watches: dict[str, _Watch] = {}
        self._last: Mapping[str, Checkpoint] = {}
        self._checked: set[str] = set()
        """Those that have nothing to read, by the last look."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, partition: str, at: Checkpoint, wake: Callable[[], None]) -> float:
        """Call ``wake``, once, when the partition ends elsewhere than where a read found nothing.
        Gives how long to wait for that."""
        if self._ends is None:
            return self._pace.poll_interval_s
        self._watches[partition] = _Watch(at, wake)
        self._checked.discard(partition)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look_out())
        return QUIET_S

    def forget(self, partition: str) -> None:
        self._watches.pop(partition, None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look_out(self) -> None:
        while self._watches:
            await self._clock.sleep(self._pace.poll_interval_s)
            await self._look(dict(self._watches))

    async def _look(self, watches: dict[str, _Watch]) -> None:
        """At those that were there before it: who comes meanwhile may have read further."""
        assert self._ends is not None
        try:
            ends = await within(self._clock, self._pace.request_timeout_s, self._ends())
        except Exception:  # each finds out for itself what is wrong, and tells
            ends = {}
        if ends != self._last:  # quickly told, where a feed gives the same answer again
            self._last, self._checked = dict(ends), set()  # a copy: it may change its own
        for (
            partition,
            watch,
        ) in watches.items():  # in order, so that a simulated run can be repeated
            if partition in self._checked or self._watches.get(partition) is not watch:
                continue
            if ends.get(partition) == watch.at:
                self._checked.add(partition)
            else:
                del self._watches[partition]
                watch.wake()
