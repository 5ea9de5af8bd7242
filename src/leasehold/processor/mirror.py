"""Shows a group's checkpoints where the feed's own tools look for them. Best effort: the leases are
what counts, and nothing ever waits for the mirror."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from leasehold.clock import within
from leasehold.core.model import Checkpoint
from leasehold.errors import FeedUnavailable, LeaseholdError
from leasehold.ports import Clock, MirrorsCheckpoints
from leasehold.processor.work import Report

log = logging.getLogger("leasehold")
EVERY_S = 1.0
RETRY_MAX_S = 30.0


class Mirror:
    """Positions are collected and sent at most every second, all of an instance in one request."""

    def __init__(
        self, feed: MirrorsCheckpoints, group: str, *, clock: Clock, report: Report, limit_s: float
    ) -> None:
        self._feed, self._group = feed, group
        self._clock, self._report, self._limit_s = clock, report, limit_s
        self._waiting: dict[str, Checkpoint] = {}
        self._task: asyncio.Task[None] | None = None
        self._sending = self._closing = False
        self._trouble = ""

    def saved(self, partition: str, position: Checkpoint) -> None:
        """A checkpoint that the store has taken."""
        self._waiting[partition] = position
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """What is waiting goes out, if that can be done in time; what is on its way before it, or
        the older position might be the last one shown."""
        self._closing = True
        if self._task is not None and self._sending:
            await asyncio.wait((self._task,))
        elif self._task is not None:
            self._task.cancel()
        if self._waiting:
            await self._send()

    async def _run(self) -> None:
        pause_s = EVERY_S
        while self._waiting and not self._closing:
            await self._clock.sleep(pause_s)
            well = await self._send()
            pause_s = EVERY_S if well else min(2 * pause_s, RETRY_MAX_S)

    async def _send(self) -> bool:
        sent, self._waiting = self._waiting, {}
        self._sending = True
        try:
            asked = self._feed.mirror(self._group, sent)
            refused = await within(self._clock, self._limit_s, asked)
        except (LeaseholdError, TimeoutError) as error:
            refused = dict.fromkeys(sent, str(error) or "no answer in time")
        finally:
            self._sending = False
        # What is newer by now stays.
        self._waiting = {p: at for p, at in sent.items() if p in refused} | self._waiting
        self._tell(refused)
        return not refused

    def _tell(self, refused: Mapping[str, str]) -> None:
        """Once for each kind of trouble: it may last for days."""
        trouble = "; ".join(sorted(set(refused.values())))
        if trouble and trouble != self._trouble:
            self._report(
                "mirroring checkpoints",
                FeedUnavailable(
                    f"the offsets of {self._group} are not shown for partitions "
                    f"{', '.join(sorted(refused, key=int))}: {trouble}. A consumer group of this "
                    "name with live members refuses them; checkpoints are not affected"
                ),
            )
        if self._trouble and not trouble:
            log.info("the offsets of %s are mirrored again", self._group)
        self._trouble = trouble
