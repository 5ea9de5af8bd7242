"""How far positions are behind a feed's end, in events and in seconds."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.core.model import Checkpoint
from leasehold.errors import PositionGone
from leasehold.ports import CountsRemaining, Feed

FeedLag = tuple[int, float | None]
"""Events, and the age of the first of them: None where the feed cannot tell."""


async def feed_lag(
    feed: Feed, positions: Mapping[str, Checkpoint], wall_s: float
) -> Mapping[str, FeedLag]:
    events = await _events(feed, positions)
    behind = {partition: positions[partition] for partition, count in events.items() if count}
    times = await feed.event_times(behind) if behind else {}
    return {
        partition: (count, _age_s(times.get(partition), wall_s) if count else 0.0)
        for partition, count in events.items()
    }


async def _events(feed: Feed, positions: Mapping[str, Checkpoint]) -> Mapping[str, int]:
    """Where sequences have gaps, the feed counts them."""
    if isinstance(feed, CountsRemaining):
        return await feed.remaining(positions)
    ends = {each.partition: each.end for each in await feed.extents()}
    return {
        partition: max(0, ends[partition] - position.next_sequence)
        for partition, position in positions.items()
        if partition in ends
    }


def _age_s(enqueued_s: float | PositionGone | None, wall_s: float) -> float | None:
    if enqueued_s is None or isinstance(enqueued_s, PositionGone):
        return None
    return max(0.0, wall_s - enqueued_s)
