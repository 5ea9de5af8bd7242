"""Expiry that no clock can fake: the store's ages, checked against the watcher's own clock.

Every instance passes each look at the store through ``watch``. What the store says of a record's
age is believed while it agrees with the watcher's monotonic clock: between two looks an unchanged
record grows as old as the time between them, and a changed one is no older than that. Where they
disagree (the store's clock was set, a machine was suspended), and after a time without any answer,
ages are void: a record counts as live until it was *seen unchanged* for its time to live. Of a time
without answers only a moment counts as seen, but that does, or where every look comes after such a
time the dead would never be found dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from leasehold.core.model import Lease, Member, Snapshot

_Key = tuple[str, str]
R = TypeVar("R", Lease, Member)


class Trust(Enum):
    FULL = "full"
    """The age is what the store says."""
    COLD = "cold"
    """From a first look: what seems dead must stay unchanged for a moment, since all may seem dead
    right after an outage or a step of the clock."""
    VOID = "void"
    """The age is for how long the record was seen unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One record as the watcher knows it."""

    version: str
    holder: tuple[str | None, str | int]
    since: float
    """The watcher's time at which it was first seen with this version."""
    age_s: float
    ttl_s: float
    trust: Trust
    spared: bool = False
    """After a time without answers it was given a whole time to live, as this version."""
    heard: bool = False
    """It was seen to change from one look to the next, and not over a time without answers."""

    @property
    def unsure(self) -> bool:
        """Whether nothing tells that its owner is alive."""
        cold = self.trust is Trust.COLD and self.age_s > self.ttl_s
        return not self.heard and (cold or self.trust is Trust.VOID)

    @property
    def seems_dead(self) -> bool:
        return self.age_s > self.ttl_s and self.trust is not Trust.VOID


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the watcher keeps from one look to the next."""

    sights: Mapping[_Key, Sight]
    asked: float
    answered: float


def watch(
    before: Watched | None,
    snapshot: Snapshot,
    *,
    asked: float,
    answered: float,
    cut_off: bool,
    doubt_s: float,
) -> tuple[Watched, Snapshot]:
    """The snapshot with ages to decide by. ``asked`` and ``answered`` are the watcher's own times
    of this look; ``cut_off``: the store was not heard for so long that others may have missed their
    renewals as well; ``doubt_s``: for how long what seems dead at a first look is doubted."""
    known = before.sights if before is not None else {}
    if cut_off:
        trust: Trust | None = Trust.VOID
        if before is not None:
            known = _spare(before, max(asked - before.answered - doubt_s, 0.0))
    elif before is None:
        trust = Trust.COLD
    else:
        agreed = all(_agrees(before, record, asked, answered) for record in _records(snapshot))
        trust = None if agreed else Trust.VOID
    sights = {
        _key(record): _see(record, known.get(_key(record)), answered, trust, spared=cut_off)
        for record in _records(snapshot)
    }
    if trust is Trust.COLD:
        sights = _spare_the_living(sights)
    aged = {key: _age_s(sight, asked, doubt_s) for key, sight in sights.items()}
    return (
        Watched(sights=sights, asked=asked, answered=answered),
        replace(
            snapshot,
            doubted=_doubted(sights, aged),
            leases=tuple(_aged(lease, aged[_key(lease)]) for lease in snapshot.leases),
            members=tuple(_aged(member, aged[_key(member)]) for member in snapshot.members),
        ),
    )


def _aged(record: R, age_s: float) -> R:
    """A copy only where it differs, which it mostly does not: there may be thousands."""
    return record if record.age_s == age_s else replace(record, age_s=age_s)


def _doubted(sights: Mapping[_Key, Sight], aged: Mapping[_Key, float]) -> frozenset[str]:
    """Who counts as alive only because nobody could have said so: neither its heartbeat nor any of
    its leases was seen to change since."""
    alive: dict[bool, set[str]] = {True: set(), False: set()}
    for key, sight in sights.items():
        if sight.holder[0] is not None and aged[key] <= sight.ttl_s:
            alive[sight.unsure].add(sight.holder[0])
    return frozenset(alive[True] - alive[False])


def _spare(before: Watched, silent_s: float) -> dict[_Key, Sight]:
    """What is left of the sights after a time in which nobody could renew. That says nothing about
    anybody, so each has a whole time to live again; a second time in a row, what was left of it.
    Only who had been seen unchanged for that long before stays dead, or the group would hand
    partitions to everybody who ever crashed."""
    kept = {}
    for key, sight in before.sights.items():
        if before.asked - sight.since > sight.ttl_s:
            kept[key] = sight
        elif sight.spared:
            kept[key] = replace(sight, since=sight.since + silent_s)
    return kept


def _spare_the_living(sights: Mapping[_Key, Sight]) -> dict[_Key, Sight]:
    """Who renews one lease at a first look is no owner from the day before: it may just not have
    got round to renewing the others since the clock was set. A heartbeat is no such sign: the next
    life of a dead owner has the same name."""
    alive = {
        sight.holder[0]
        for (kind, _), sight in sights.items()
        if kind == "lease" and not sight.seems_dead
    }
    return {
        key: replace(sight, trust=Trust.VOID)
        if sight.seems_dead and sight.holder[0] in alive
        else sight
        for key, sight in sights.items()
    }


def _records(snapshot: Snapshot) -> Iterator[Lease | Member]:
    yield from snapshot.leases
    yield from snapshot.members


def _key(record: Lease | Member) -> _Key:
    if isinstance(record, Lease):
        return "lease", record.partition
    return "member", record.instance


def _holder(record: Lease | Member) -> tuple[str | None, str | int]:
    if isinstance(record, Lease):
        return record.owner, record.epoch
    return record.instance, record.incarnation


def _see(
    record: Lease | Member, sight: Sight | None, now: float, trust: Trust | None, *, spared: bool
) -> Sight:
    """``trust``: what this look says of all records; None: those that changed are believed again,
    for they carry a stamp of the clock as it is now."""
    same = sight if sight is not None and sight.version == record.version else None
    if trust is None:
        trust = same.trust if same is not None else Trust.FULL
    return Sight(
        version=record.version,
        holder=_holder(record),
        since=same.since if same is not None else now,
        age_s=record.age_s,
        ttl_s=record.ttl_s,
        trust=Trust.VOID if record.age_s < -_slack_s(record.ttl_s) else trust,
        spared=spared or (same is not None and same.spared),
        heard=same.heard if same is not None else sight is not None and not spared,
    )


def _agrees(before: Watched, record: Lease | Member, asked: float, answered: float) -> bool:
    """Whether a record's age fits the time since the last look."""
    holder, slack_s = _holder(record), _slack_s(record.ttl_s)
    if holder[0] is None:
        return True  # what nobody owns does not have to stay as it was
    sight, most_s = before.sights.get(_key(record)), answered - before.asked + slack_s
    if sight is None or sight.version != record.version:
        # Who seemed dead and goes on as before was not: all were kept from renewing.
        revived = sight is not None and sight.seems_dead and sight.holder == holder
        return not revived and -slack_s <= record.age_s <= most_s
    if min(sight.age_s, record.age_s) > record.ttl_s:
        return True  # dead before and dead now
    return asked - before.answered - slack_s <= record.age_s - sight.age_s <= most_s


def _age_s(sight: Sight, asked: float, doubt_s: float) -> float:
    seen_s = max(asked - sight.since, 0.0)
    if sight.trust is Trust.VOID:
        return seen_s
    if sight.trust is Trust.COLD and sight.age_s > sight.ttl_s and seen_s < doubt_s:
        return max(sight.ttl_s - (doubt_s - seen_s), 0.0)
    return max(sight.age_s, seen_s)


def _slack_s(ttl_s: float) -> float:
    """How far the clocks may differ: some stores tell whole seconds, and less than this robs
    nobody who renews twice within the time to live."""
    return max(1.0, ttl_s / 4)
