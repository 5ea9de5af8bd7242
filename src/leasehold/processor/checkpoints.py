"""One partition's progress, and the writing of it into the lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from leasehold.core import progress
from leasehold.core.model import Checkpoint
from leasehold.errors import CheckpointMissing
from leasehold.ports import Clock, LeaseStore
from leasehold.processor.work import Hold, answered
from leasehold.settings import Every

Saved = Callable[[str, Checkpoint], None]
"""Told of each checkpoint that the store has taken."""


class Checkpoints:
    def __init__(
        self,
        hold: Hold,
        store: LeaseStore,
        policy: Every,
        *,
        clock: Clock,
        limit_s: float,
        on_saved: Saved | None = None,
    ) -> None:
        self.progress = progress.begin(hold.lease.checkpoint, clock.monotonic())
        self._hold, self._store, self._policy = hold, store, policy
        self._clock, self._limit_s, self._on_saved = clock, limit_s, on_saved

    @property
    def handled(self) -> Checkpoint:
        return self.progress.handled

    @property
    def owed(self) -> bool:
        return self.progress.owed

    @property
    def unsaved(self) -> bool:
        """Whether there is anything to save without the user's word."""
        return self.progress.unsaved and not (self._policy.manual and self.progress.owed)

    @property
    def due(self) -> bool:
        since = self._clock.monotonic() - self.progress.saved_at
        due = self._policy.due(self.progress.events, since, self.progress.batches)
        return due or self._policy.manual  # what is not the user's to checkpoint, at once

    @property
    def due_at(self) -> float:
        """When time alone makes the next one due."""
        seconds = self._policy.seconds
        return inf if seconds is None else self.progress.saved_at + seconds

    @property
    def events_due(self) -> float:
        """After how many more events the next one is due."""
        events = self._policy.events
        return inf if events is None else events - self.progress.events

    def advance(
        self,
        to: Checkpoint,
        *,
        events: int = 1,
        batches: int = 1,
        taken: bool = False,
        past_saved: bool = False,
    ) -> None:
        self.progress = self.progress.advance(
            to, events=events, batches=batches, taken=taken, past_saved=past_saved
        )

    def jump(self, to: Checkpoint) -> None:
        self.progress = self.progress.jump(to)

    async def write(self, attempts: int) -> bool:
        """Checkpoint and attempts, if the lease is still ours. Where the user checkpoints by hand,
        failures on the way to the next one are not the stored position's, and stay in memory; and
        tries that were stored for what is handled by now are over."""
        if self.progress.ahead:  # what was tried lies before that, and so do its tries
            return await self._put(self.progress.known, self._hold.lease.attempts)
        if self._policy.manual and self.progress.owed:
            return not self._hold.lease.attempts or await self._put(self.progress.saved, 0)
        return await self._put(self.progress.handled, attempts)

    async def write_by_hand(
        self, position: Checkpoint, attempts: int, *, ahead: Callable[[], bool]
    ) -> bool:
        """The user's own, with the attempts that are known of where the pump stands. ``ahead``:
        whether it is behind an event that the pump has not finished, and may share its sequence.
        Asked again once the answer is there: the pump may have finished it meanwhile."""
        is_ahead = ahead()
        position = self.progress.reach(position, ahead=is_ahead)
        if is_ahead and position != self.progress.saved:
            return await self._put(position, 0, ahead=ahead)
        if position.next_sequence <= self.progress.saved.next_sequence:
            return await self._put(position, self._hold.lease.attempts)
        return await self._put(position, attempts if position == self.progress.handled else 0)

    def missing(self) -> CheckpointMissing:
        """Why a partition that ended is not split yet."""
        return CheckpointMissing(
            f"partition {self._hold.lease.partition} ended, and its children wait for the "
            f"checkpoint of event {self.progress.taken.next_sequence - 1}; the stored one is at "
            f"{self.progress.saved.next_sequence}. Call context.checkpoint, or give the processor "
            "checkpoint=every(…)"
        )

    async def _put(
        self, position: Checkpoint, attempts: int, *, ahead: Callable[[], bool] = lambda: False
    ) -> bool:
        held = self._hold.lease
        wanted = replace(held, checkpoint=position, attempts=attempts)
        kept = await answered(self._clock, self._limit_s, self._store.checkpoint([wanted]))
        if kept:
            stored, now = kept[0].checkpoint, self._clock.monotonic()
            is_ahead = stored == position and ahead()
            self.progress = self.progress.store(stored, now, ahead=is_ahead)
            saved, tries = self.progress.saved, kept[0].attempts
            if held is not self._hold.lease or (saved, tries) != (position, attempts):
                # Renewed meanwhile, or stored otherwise: by a rewind, or an answer that came late.
                wanted = replace(self._hold.lease, checkpoint=saved, attempts=tries)
            self._hold.lease = wanted
            if self._on_saved is not None:
                self._on_saved(self._hold.lease.partition, self.progress.saved)
        return bool(kept)
