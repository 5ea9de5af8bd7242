"""Checkpoints on their way to where the feed's own tools look for them."""

import asyncio
from collections.abc import Mapping

import pytest

from leasehold.clock import SystemClock
from leasehold.core.model import Checkpoint
from leasehold.processor import mirror
from leasehold.processor.mirror import Mirror


class SlowFeed:
    """Takes positions when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.shown: list[int] = []

    async def mirror(self, group: str, positions: Mapping[str, Checkpoint]) -> Mapping[str, str]:
        self.asked.set()
        await self.go.wait()
        self.shown += [at.next_sequence for at in positions.values()]
        return {}


@pytest.mark.parametrize("later", [[], [8]])
def test_at_the_end_the_last_position_is_shown_last_although_one_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch, later: list[int]
) -> None:
    monkeypatch.setattr(mirror, "EVERY_S", 0.0)

    async def scenario() -> list[int]:
        feed = SlowFeed()
        told: list[BaseException] = []
        shown = Mirror(
            feed,
            "activity",
            clock=SystemClock(),
            report=lambda what, error: told.append(error),
            limit_s=60.0,
        )
        shown.saved("0", Checkpoint(next_sequence=7))
        await feed.asked.wait()
        for sequence in later:
            shown.saved("0", Checkpoint(next_sequence=sequence))
        closing = asyncio.ensure_future(shown.close())
        await asyncio.sleep(0)
        feed.go.set()
        await closing
        assert not told
        return feed.shown

    assert asyncio.run(scenario()) == [7, *later]
