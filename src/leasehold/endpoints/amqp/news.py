"""Receivers at the end of a partition wait here, and share one look at the hub.

What comes through this endpoint is told at once; what other processes write into the hub's file is
found by looking.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from leasehold.errors import LeaseholdError
from leasehold.feeds.hub import Hub

log = logging.getLogger("leasehold")
LOOK_EVERY_S = 0.1


class EventNews:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: dict[str, set[tuple[int, asyncio.Future[None]]]] = {}
        self._someone = asyncio.Event()

    def waiting(self, partition: str, sequence: int) -> asyncio.Future[None]:
        """Done once the partition has an event with that sequence. Give it back with ``leave``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(partition, set()).add((sequence, future))
        self._someone.set()
        return future

    def leave(self, partition: str, sequence: int, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(partition, set())
        waiting.discard((sequence, future))
        if not waiting:
            self._waiting.pop(partition, None)

    def tell(self, ends: Mapping[str, int]) -> None:
        for partition, end in ends.items():
            for sequence, future in self._waiting.get(partition, ()):
                if end > sequence and not future.done():
                    future.set_result(None)

    async def run(self) -> None:
        while True:
            if not self._waiting:
                self._someone.clear()
                await self._someone.wait()
            try:
                ends = await self._hub.ends()
            except LeaseholdError as error:
                log.warning("the hub cannot be looked at: %s: it is tried again", error)
            else:
                self.tell({partition: end.next_sequence for partition, end in ends.items()})
            await asyncio.sleep(LOOK_EVERY_S)
