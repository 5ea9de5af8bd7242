"""``leasehold hub`` where the hub is elsewhere and has a URL: read it, look at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from leasehold.cli.options import opened_feed
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, partition_order
from leasehold.ports import Feed

READ_EVENTS = 500


def is_url(hub: str) -> bool:
    return "://" in hub and not hub.startswith("file://")


def read_events(
    url: str, partitions: Sequence[str], start: str, limit: int | None, show: Callable[[Any], None]
) -> None:
    """Partition by partition, from the start on to where each ends."""

    async def read(feed: Feed) -> None:
        left = limit
        chosen = partitions or sorted(
            (each.id for each in await feed.partitions()), key=partition_order
        )
        starts = {partition: await feed.locate(partition, start) for partition in chosen}
        for partition, position in starts.items():
            async for event in _events(feed, partition, position):
                if left == 0:
                    return
                show(event)
                left = None if left is None else left - 1

    with opened_feed(url, None) as opened:
        asyncio.run(read(opened))


async def _events(feed: Feed, partition: str, position: Checkpoint) -> AsyncIterator[Any]:
    while len((batch := await feed.read(partition, position, READ_EVENTS)).events):
        for event in batch.events:
            yield event
        position = batch.next


def feed_info(url: str) -> tuple[dict[str, Any], FittedTable]:
    """As an object, and as a table."""
    with opened_feed(url, None) as feed:
        extents = asyncio.run(_extents(feed))
        about = {"namespace": feed.namespace, "name": feed.name, "unit": feed.unit}
        if identity := getattr(feed, "identity", ""):
            about["identity"] = identity
    values = about | {
        "events": sum(each.end - each.first for each in extents),
        "partitions": [_as_dict(each) for each in extents],
    }
    return values, _table(extents)


async def _extents(feed: Feed) -> Sequence[Extent]:
    return sorted(await feed.extents(), key=lambda each: partition_order(each.partition))


def _as_dict(extent: Extent) -> dict[str, Any]:
    return {
        "partition": extent.partition,
        "first_sequence": extent.first,
        "last_sequence": extent.end - 1,
        "events": extent.end - extent.first,
        "last_enqueued_at": _time(extent),
    }


def _table(extents: Sequence[Extent]) -> FittedTable:
    names = ("partition", "first", "last", "events", "last enqueued")
    table = FittedTable(*(Column(name=name) for name in names))
    for each in extents:
        kept = each.end > each.first
        table.add_row(
            each.partition,
            f"{each.first:,}" if kept else "-",
            f"{each.end - 1:,}" if each.end else "-",
            f"{each.end - each.first:,}",
            (_time(each) or "-")[:19],
        )
    return table


def _time(extent: Extent) -> str | None:
    at = extent.last_enqueued_at
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
