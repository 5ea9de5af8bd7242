"""Which history of a feed a position is of, as a number: sinks keep numbers, not tokens.

Once an older copy of a feed was restored and written to, the same sequences hold other events. The
number tells them apart. A feed that cannot lose events has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leasehold.core.model import Checkpoint
from leasehold.errors import PositionGone
from leasehold.ports import Feed, TellsHistory
from leasehold.sinks.fence import UNKNOWN


@dataclass(frozen=True, slots=True)
class History:
    feed: Feed

    def numbers(self, positions: Mapping[str, int]) -> dict[str, int]:
        """By partition: the number of a position in the feed as it is now."""
        if not isinstance(self.feed, TellsHistory):
            return {}
        tokens = self.feed.tokens_of(positions)
        return {partition: self.feed.history_of(token) for partition, token in tokens.items()}

    def number_at(self, position: Checkpoint) -> int:
        if not isinstance(self.feed, TellsHistory):
            return UNKNOWN
        return self.feed.history_of(position.token)

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> Mapping[str, PositionGone]:
        """Which positions, each with its number, the feed has lost."""
        if not positions or not isinstance(self.feed, TellsHistory):
            return {}
        return self.feed.lost(positions)
