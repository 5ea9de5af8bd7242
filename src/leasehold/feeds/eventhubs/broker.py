"""What the broker says of the hub and its partitions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput
from leasehold.feeds.eventhubs.address import DEFAULT_GROUP, EventHubsSettings
from leasehold.feeds.eventhubs.sdk import Clients, Questions
from leasehold.feeds.eventhubs.troubles import is_busy, translated

BUSY_S = 4.0
"""How long nothing is asked after the broker said that it is busy."""
NO_TOKEN = ("", "-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubInfo:
    created_at: datetime
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    hub: str
    """As messages call it."""
    partition: str
    first: int
    end: int
    last_offset: str
    last_enqueued_at: float | None

    @property
    def extent(self) -> Extent:
        return Extent(
            partition=self.partition,
            first=self.first,
            end=self.end,
            last_enqueued_at=self.last_enqueued_at,
        )

    @property
    def earliest(self) -> Checkpoint:
        return self.latest if self.first == self.end else Checkpoint(next_sequence=self.first)

    @property
    def latest(self) -> Checkpoint:
        token = "" if self.last_offset in NO_TOKEN else self.last_offset
        return Checkpoint(next_sequence=self.end, token=token)


class Broker:
    """Asks on one connection, one question at a time, and never twice for what it just heard."""

    def __init__(
        self, settings: EventHubsSettings, clients: Clients, requests: Counter[str]
    ) -> None:
        self._settings, self._clients, self._requests = settings, clients, requests
        self._questions: Questions | None = None
        self._lock = asyncio.Lock()
        self._heard: dict[str, tuple[float, PartitionInfo]] = {}
        self._known: tuple[str, ...] = ()
        self._silent_until = 0.0

    async def hub(self) -> HubInfo:
        said = await self._ask("partitions", None)
        found = HubInfo(
            created_at=datetime.fromtimestamp(int(said[b"created_at"]) / 1000, UTC),
            partitions=tuple(
                sorted((each.decode() for each in said[b"partition_ids"]), key=_order)
            ),
        )
        self._known = found.partitions
        return found

    async def partition(self, partition: str, *, max_age_s: float = 0.0) -> PartitionInfo:
        heard_at, info = self._heard.get(partition, (float("-inf"), None))
        if info is not None and time.monotonic() - heard_at < max_age_s:
            return info
        if partition not in self._known and partition not in (await self.hub()).partitions:
            raise BadInput(
                f"partition {partition!r} is unknown: {self._settings.host}/{self._settings.hub} "
                f"has {', '.join(self._known)}"
            )
        asked_at = time.monotonic()
        where = f"{self._settings.host}/{self._settings.hub}"
        info = _info(where, partition, await self._ask("properties", partition))
        self._heard[partition] = asked_at, info
        return info

    async def all(self) -> Sequence[PartitionInfo]:
        fresh_s = self._settings.fresh_s
        found = (await self.hub()).partitions
        return [await self.partition(each, max_age_s=fresh_s) for each in found]

    def busy(self) -> None:
        """The broker said so, here or on a link: nobody asks for a while."""
        self._requests["throttled"] += 1
        self._silent_until = time.monotonic() + BUSY_S

    async def patience(self) -> None:
        """Until the broker may be asked again."""
        await asyncio.sleep(max(0.0, self._silent_until - time.monotonic()))

    async def close(self) -> None:
        questions, self._questions = self._questions, None
        if questions is not None:
            await questions.close()

    async def _ask(self, verb: str, partition: str | None) -> Any:
        what = "its properties" if partition is None else f"partition {partition}"
        async with self._lock:
            if self._questions is None:
                client = self._clients.consumer(self._settings.group_of(DEFAULT_GROUP))
                self._questions = Questions(client)
            fresh = not self._questions.is_open
            for again in (True, False):
                await self.patience()
                self._requests[verb] += 1
                try:
                    async with asyncio.timeout(self._settings.timeout_s):
                        return await self._questions.ask(partition)
                except Exception as error:
                    await self._forget()
                    if busy := is_busy(error):
                        self.busy()
                    # A connection that was idle may be gone without a word.
                    if not again or (fresh and not busy):
                        raise translated(error, self._settings, what) from error
                except BaseException:
                    await self._forget()  # an answer to nobody would be taken for the next one's
                    raise
            raise AssertionError("unreachable")

    async def _forget(self) -> None:
        if self._questions is not None:
            with suppress(Exception):  # it was broken anyway
                async with asyncio.timeout(1.0):
                    await self._questions.close()


def _info(hub: str, partition: str, said: Any) -> PartitionInfo:
    end = int(said[b"last_enqueued_sequence_number"]) + 1
    first = end if said[b"is_partition_empty"] else max(int(said[b"begin_sequence_number"]), 0)
    enqueued_ms = int(said[b"last_enqueued_time_utc"])
    return PartitionInfo(
        hub=hub,
        partition=partition,
        first=min(first, end),
        end=end,
        last_offset=said[b"last_enqueued_offset"].decode(),
        last_enqueued_at=enqueued_ms / 1000 if end > 0 else None,
    )


def _order(partition: str) -> tuple[int, str]:
    return (int(partition), "") if partition.isdigit() else (1 << 30, partition)
