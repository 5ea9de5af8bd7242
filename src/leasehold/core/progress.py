"""How far a partition is handled, and how much of that is stored.

Both are positions, and what is unsaved follows from them: a checkpoint covers what lies before it
and nothing else, no matter which instance writes it and when.

Of two positions at the same sequence, only their tokens tell which is further on, and only the feed
can read those: where events share a sequence, such as the changes of one transaction. They count as
different, and the newer word of the owner is taken. So whoever has the events in hand says whether
a user's checkpoint lies among those that are still to come (``ahead``), and when it is passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from leasehold.core.model import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    handled: Checkpoint
    """Everything before it is done: handled, dead-lettered, or no event any more."""
    taken: Checkpoint
    """Behind the last event that the handler took. What follows up to ``handled`` (dead letters,
    deleted documents) is not the user's to checkpoint."""
    saved: Checkpoint
    saved_at: float
    """When all that was handled had been saved last."""
    events: int = 0
    batches: int = 0
    """Handled since then."""
    ahead: bool = False
    """Whether ``saved`` is the user's word on an event behind ``handled``, still to be finished."""

    @property
    def unsaved(self) -> bool:
        return not self.ahead and _is_further(self.handled, self.saved)

    @property
    def known(self) -> Checkpoint:
        """The furthest that may be stored without another word of the user."""
        return self.saved if self.ahead else self.handled

    @property
    def owed(self) -> bool:
        """Whether the handler took events that no checkpoint covers. Where it writes them itself,
        nothing may pass these."""
        return not self.ahead and _is_further(self.taken, self.saved)

    def reach(self, position: Checkpoint, *, ahead: bool = False) -> Checkpoint:
        """How far a user's checkpoint reaches: behind the last event taken, to all that follows.
        An older word than what is stored, where all is stored, takes nothing back."""
        at = position.next_sequence
        if not ahead and not self.unsaved and self.saved.token and at == self.saved.next_sequence:
            return self.saved
        if at == self.taken.next_sequence and _is_further(self.taken, position):
            return position
        reaches = self.taken.next_sequence <= at < self.handled.next_sequence
        return self.handled if reaches or position == self.taken else position

    def advance(
        self,
        to: Checkpoint,
        *,
        events: int = 1,
        batches: int = 1,
        taken: bool = False,
        past_saved: bool = False,
    ) -> PartitionProgress:
        """``past_saved``: the event that ``saved`` is behind is among those handled now."""
        behind_saved = to.next_sequence <= self.saved.next_sequence and to != self.saved
        return PartitionProgress(
            handled=to,
            taken=to if taken else self.taken,
            saved=self.saved,
            saved_at=self.saved_at,
            events=self.events + events,
            batches=self.batches + batches,
            ahead=self.ahead and behind_saved and not past_saved,
        )

    def store(self, position: Checkpoint, now: float, *, ahead: bool = False) -> PartitionProgress:
        """A checkpoint was stored. Answers may overtake one another: it never goes back."""
        saved = further(self.saved, position)
        ahead = saved == position if ahead else self.ahead and saved == self.saved
        if not ahead and _is_further(self.handled, saved):
            return replace(self, saved=saved, ahead=False)
        return PartitionProgress(
            handled=self.handled, taken=self.taken, saved=saved, saved_at=now, ahead=ahead
        )

    def jump(self, to: Checkpoint) -> PartitionProgress:
        """Go on elsewhere: the feed no longer has what was here, so none of it is owed."""
        return replace(self, handled=to, taken=self.saved, events=self.events + 1, ahead=False)


def begin(at: Checkpoint, now: float) -> PartitionProgress:
    return PartitionProgress(handled=at, taken=at, saved=at, saved_at=now)


def behind(event: Any) -> Checkpoint:
    """The position once it is handled: still at its sequence, if others follow that share it."""
    follows = 0 if getattr(event, "more_follow", False) else 1
    return Checkpoint(next_sequence=event.sequence + follows, token=event.offset)


def further(saved: Checkpoint, told: Checkpoint) -> Checkpoint:
    """What a store keeps: never less, and at the same sequence what the owner told last."""
    if told.next_sequence == saved.next_sequence and not told.token:
        return saved
    return max(told, saved, key=_place)


def _place(position: Checkpoint) -> int:
    return position.next_sequence


def _is_further(position: Checkpoint, than: Checkpoint) -> bool:
    if position.next_sequence != than.next_sequence:
        return position.next_sequence > than.next_sequence
    return "" not in (position.token, than.token) and position.token != than.token
