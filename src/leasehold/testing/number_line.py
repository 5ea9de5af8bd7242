"""A feed whose events are their sequences, and which can be rolled back."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint
from leasehold.core.start import AtSequence
from leasehold.errors import PositionGone

PARTITIONS = ("0", "1")
EVENTS = 40
"""What every partition holds."""


class NumberLine:
    """With ``EVENTS`` events in each partition; its history, too."""

    namespace, name = "t", "sensors"

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._lives = {partition: [1] * (EVENTS + 1) for partition in PARTITIONS}
        """By sequence: which writing of the event is there now. A position is of the same as the
        event before it."""

    def life(self, partition: str, sequence: int) -> int:
        return self._lives[partition][sequence + 1]

    def roll_back(self, partition: str, to: int) -> None:
        """What lay behind is lost, and was written once more."""
        lives = self._lives[partition]
        lives[to + 1 :] = [max(lives) + 1] * (EVENTS - to)

    def numbers(self, positions: Mapping[str, int]) -> dict[str, int]:
        return {partition: self._lives[partition][at] for partition, at in positions.items()}

    def number_at(self, position: Checkpoint) -> int:
        return int(position.token)

    def lost(self, positions: Mapping[str, tuple[int, int]]) -> dict[str, PositionGone]:
        return {
            partition: self._gone(partition, at, number)
            for partition, (at, number) in positions.items()
            if self._lives[partition][at] != number
        }

    def _gone(self, partition: str, at: int, number: int) -> PositionGone:
        earliest, latest, here = (self._at(partition, each) for each in (0, EVENTS, at))
        kept = [n for n, life in enumerate(self._lives[partition]) if life <= number and n <= at]
        return PositionGone(
            "rolled back",
            partition=partition,
            position=here,
            reason="rolled back",
            earliest=earliest,
            latest=latest,
            shared=self._at(partition, max(kept)),
        )

    def _at(self, partition: str, sequence: int) -> Checkpoint:
        return Checkpoint(next_sequence=sequence, token=str(self._lives[partition][sequence]))

    async def extents(self) -> list[Extent]:
        return [Extent(partition=p, first=0, end=EVENTS) for p in PARTITIONS]

    async def locate(self, partition: str, start: AtSequence) -> Checkpoint:
        return self._at(partition, start.sequence)
