"""Ways to break the mechanism on purpose, to see that the simulation notices.

They work from outside, on what instances see and on what the store accepts; production code has no
switch for any of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, cast

from leasehold.core.balance import by_count
from leasehold.core.lifecycle import Event, Read, Reason
from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.core.progress import begin
from leasehold.core.retry import ALONE, Bisection
from leasehold.errors import StoreUnavailable
from leasehold.ports import Batch, LeaseStore, Renewed
from leasehold.processor.host import Host
from leasehold.processor.pump import Pump
from leasehold.processor.renewals import Renewals
from leasehold.processor.work import Hold
from leasehold.settings import Pace, Retry, Timing
from leasehold.testing.sim_time import SimClock
from leasehold.testing.sim_world import WatchedStore


class Sabotage(Enum):
    NONE = "none"
    NO_FENCING = "no-fencing"
    """The store accepts a stale owner's checkpoint."""
    LOCAL_CLOCK = "local-clock"
    """Ages are told by each instance's own clock, and believed."""
    STEALING = "stealing"
    """Owners do not shed; who lacks a partition takes it."""
    NO_HEARTBEATS = "no-heartbeats"
    """Only owners count as members."""
    ALL_OR_NOTHING = "all-or-nothing"
    """One lease without an answer makes a whole renewal fail."""
    TRUSTING = "trusting"
    """The store's ages are believed whatever the instance's own clock says."""
    IMPATIENT = "impatient"
    """After an outage or a sleep nobody waits until the others have renewed."""
    VANISHING = "vanishing"
    """Who leaves with leases in hand is no longer known as one that leaves."""
    KEEPING = "keeping"
    """Who leaves keeps what it was not told that it has."""
    FORGIVING = "forgiving"
    """After an outage everybody who was ever a member counts as alive."""
    RESTLESS = "restless"
    """Partitions are reassigned from scratch whenever the members change."""
    SPLIT_EARLY = "split-early"
    """A partition that ended is split although not all of it is checkpointed."""
    FORGETFUL = "forgetful"
    """A user's checkpoint of an older event passes for one of all that was handled."""
    BLAMING = "blaming"
    """A store that fails under a handler counts as the handler's failure."""
    ENDLESS_READS = "endless-reads"
    """A read may take forever, and a stop waits for it."""
    CLINGING = "clinging"
    """An instance that lets go of a partition that hangs there takes it back at once."""
    PUSHY = "pushy"
    """Owners that do not shed are overruled long before they have had their time for it."""
    GHOST = "ghost"
    """Who has left goes on saying that it is there."""
    REPEATING = "repeating"
    """A batch whose checkpoint fails is handled again."""
    LAZY = "lazy"
    """A checkpoint that becomes due while nothing comes waits for more events."""
    CONDEMNING = "condemning"
    """What a dead owner had in hand is poison at once."""
    QUITTING = "quitting"
    """A partition whose handler fails is given up as if it hung."""
    DOZING = "dozing"
    """Who waits for something to read is not woken when it comes."""


def altered(store: WatchedStore, sabotage: Sabotage, clock: SimClock) -> LeaseStore:
    """The store as an instance with that clock sees it."""
    if sabotage is Sabotage.LOCAL_CLOCK:
        return _Altered(store, lambda snapshot: _aged(snapshot, clock.wall_off_s))
    if sabotage is Sabotage.ALL_OR_NOTHING:
        return cast(LeaseStore, _AllOrNothing(store))
    if sabotage is Sabotage.NO_HEARTBEATS:
        return _Altered(store, _owners_only)
    return store


class Truster(Host):
    async def _look(self) -> Snapshot:
        return await self._ask_store(self._store.snapshot(self.group))


class Impatient(Host):
    async def _look(self) -> Snapshot:
        self._cut_off = False
        return await super()._look()


class Lumped(Renewals):
    def _ask_apart(self, holds: Mapping[str, Hold]) -> None:
        """They are asked for together again."""


class Lumper(Host):
    renewals = Lumped


class Forgiver(Host):
    async def _look(self) -> Snapshot:
        if self._cut_off:
            self._watched = None
        return replace(await super()._look(), doubted=frozenset())


class Vanisher(Host):
    async def _leave(self) -> None:
        await self._lose_all()
        await self._ask_store(self._store.leave(self.group, self._member()))


class Keeper(Host):
    def _give_back(self, snapshot: Snapshot) -> None:
        """Not a thing."""


class Pushy(Host):
    def __init__(self, *, settings: Timing, **parts: Any) -> None:
        super().__init__(settings=replace(settings, shed_timeout_s=6.0), **parts)


class Ghost(Host):
    async def _leave(self) -> None:
        there = replace(self._member(), leaving=False)
        await super()._leave()
        self.haunting = asyncio.ensure_future(self._haunt(there))

    async def _haunt(self, member: Member) -> None:
        while True:
            await self._clock.sleep(self.settings.balance_interval_s)
            with suppress(Exception):
                await self._ask(self._store.heartbeat(self.group, member))


def host_kind(sabotage: Sabotage) -> type[Host]:
    kinds: dict[Sabotage, type[Host]] = {
        Sabotage.LOCAL_CLOCK: Truster,
        Sabotage.TRUSTING: Truster,
        Sabotage.ALL_OR_NOTHING: Lumper,
        Sabotage.IMPATIENT: Impatient,
        Sabotage.FORGIVING: Forgiver,
        Sabotage.VANISHING: Vanisher,
        Sabotage.KEEPING: Keeper,
        Sabotage.PUSHY: Pushy,
        Sabotage.GHOST: Ghost,
    }
    return kinds.get(sabotage, Host)


def reassigned(
    partitions: Collection[str],
    current: Mapping[str, str],
    members: Collection[str],
    weights: Mapping[str, float],
) -> dict[str, str]:
    return by_count(partitions, {}, members, weights)


class _AllOrNothing:
    def __init__(self, store: WatchedStore) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        if any(lease.partition in self._store.locked for lease in leases):
            raise StoreUnavailable("one of them is locked")
        return await self._store.renew(leases)


class Stayer(Pump):
    """A pump that does not shed."""

    def let_go(self, offered_to: str | None, reason: Reason) -> None:
        if reason is not Reason.BALANCED:
            super().let_go(offered_to, reason)


class EarlySplitter(Pump):
    def _ended(self) -> Event:
        return Read(ended=True)


class Forgetful(Pump):
    async def save(self, position: Checkpoint) -> bool:
        kept = await super().save(position)
        progress, now = self._checkpoints.progress, self._clock.monotonic()
        self._checkpoints.progress = progress.store(progress.handled, now)
        return kept


class EndlessReader(Pump):
    def __init__(self, hold: Hold, *, pace: Pace, **parts: Any) -> None:
        super().__init__(hold, pace=replace(pace, read_timeout_s=1e9), **parts)

    def _signal(self, event: Event) -> None:
        self._signals.append(event)
        self._signalled.set()


class Repeater(Pump):
    async def _save(self) -> Event:
        try:
            return await super()._save()
        except StoreUnavailable:
            progress = self._checkpoints.progress
            self._checkpoints.progress = begin(progress.saved, self._clock.monotonic())
            self._batch, self._done = Batch(next=progress.saved), 0
            self._reader.forget()
            raise


class Lazy(Pump):
    def _wait_for_news(self) -> float:
        return self._news.watch(self.hold.lease.partition, self._batch.next, self.wake)


class Condemner(Pump):
    def __init__(self, hold: Hold, *, retry: Retry, **parts: Any) -> None:
        super().__init__(hold, retry=retry, **parts)
        if hold.orphaned:
            self._attempts = ALONE + retry.attempts


class Quitter(Pump):
    async def _failed(self, error: BaseException, search: Bisection) -> Event:
        self.let_go(None, Reason.HUNG)
        return await super()._failed(error, search)


class Dozer(Pump):
    def wake(self) -> None:
        self._failures = 0


_KINDS: dict[Sabotage, type[Pump]] = {
    Sabotage.STEALING: Stayer,
    Sabotage.SPLIT_EARLY: EarlySplitter,
    Sabotage.FORGETFUL: Forgetful,
    Sabotage.ENDLESS_READS: EndlessReader,
    Sabotage.REPEATING: Repeater,
    Sabotage.LAZY: Lazy,
    Sabotage.CONDEMNING: Condemner,
    Sabotage.QUITTING: Quitter,
    Sabotage.DOZING: Dozer,
}


def pump_kind(sabotage: Sabotage) -> type[Pump]:
    return _KINDS.get(sabotage, Pump)


def blamed(error: Exception, sabotage: Sabotage) -> Exception:
    """The error as the pump sees it."""
    return RuntimeError(str(error)) if sabotage is Sabotage.BLAMING else error


class _Altered:
    """A store whose snapshots are tampered with."""

    def __init__(self, store: LeaseStore, alter: Callable[[Snapshot], Snapshot]) -> None:
        self._store, self._alter = store, alter

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def snapshot(self, group: Group) -> Snapshot:
        return self._alter(await self._store.snapshot(group))


def _aged(snapshot: Snapshot, off_s: float) -> Snapshot:
    return replace(
        snapshot,
        leases=tuple(replace(lease, age_s=lease.age_s + off_s) for lease in snapshot.leases),
        members=tuple(replace(member, age_s=member.age_s + off_s) for member in snapshot.members),
    )


def _owners_only(snapshot: Snapshot) -> Snapshot:
    owners = {lease.owner for lease in snapshot.leases}
    return replace(
        snapshot, members=tuple(each for each in snapshot.members if each.instance in owners)
    )
