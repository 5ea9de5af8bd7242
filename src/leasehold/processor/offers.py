"""Partitions that an instance gave up, and those that others do not take although it lets them go.

Whoever gave a partition up because its reads or its handler hang would be the one to get it back:
it has one too few. So it leaves the others time to take it, and who took it does not offer it back
over and over: it keeps it, for longer each time. Who did not come for what it was offered knows
that, and does not overrule such an owner. The store has no word for any of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from leasehold.core.model import Lease, Snapshot

GIVEN_UP_S = 300.0
"""How long others go first with a partition that hung here."""
KEPT_S = (0.0, 4.0, 16.0, 64.0, 256.0)
"""How long what was let go and not taken is kept, after the first, the second such time and so on.
"""


@dataclass(frozen=True, slots=True)
class _Offer:
    member: str
    epoch: int
    misses: int = 0
    kept_until: float = 0.0


class Offers:
    def __init__(self, given_up_s: float = GIVEN_UP_S) -> None:
        self._given_up_s = given_up_s
        self._given_up: dict[str, float] = {}
        self._offers: dict[str, _Offer] = {}
        self._missed: dict[tuple[str, int], float] = {}
        """(partition, epoch) in which its owner has it back, and how long it may keep it."""

    def give_up(self, partition: str, now: float) -> None:
        """Its reads or its handler hang here."""
        self._given_up[partition] = now + self._given_up_s

    def given_up(self, now: float) -> frozenset[str]:
        """What others should take first."""
        self._given_up = {p: until for p, until in self._given_up.items() if now < until}
        return frozenset(self._given_up)

    @property
    def over_at(self) -> float:
        """When nothing is left to others or kept from them any more."""
        kept = (offer.kept_until for offer in self._offers.values())
        return max((*self._given_up.values(), *kept), default=-inf)

    def offer(self, lease: Lease, member: str | None, now: float) -> bool:
        """Whether to let it go to that member; not if it did not come for it the last times."""
        before = self._offers.get(lease.partition)
        if member is None or before is None or before.member != member:
            if member is not None:
                self._offers[lease.partition] = _Offer(member, lease.epoch)
            return True
        if before.epoch == lease.epoch:  # it is being let go already, or kept
            return now >= before.kept_until
        self._offers.pop(lease.partition)
        return self.offer(lease, member, now)

    def look(self, snapshot: Snapshot, me: str, members: Collection[str], now: float) -> None:
        """What a look shows: which leases are offered to this instance, and who is left. Who comes
        back gets a new offer."""
        for lease in snapshot.leases:
            if lease.owner is None and lease.offered_to == me:
                self._missed[lease.partition, lease.epoch + 1] = now + KEPT_S[-1]
        for partition, offer in tuple(self._offers.items()):
            if offer.member not in members and offer.member not in snapshot.doubted:
                del self._offers[partition]

    def missed(self, now: float) -> frozenset[tuple[str, int]]:
        """What was offered to this instance and not taken, so that its owner may keep it."""
        self._missed = {key: until for key, until in self._missed.items() if now < until}
        return frozenset(self._missed)

    def taken(self, lease: Lease, now: float) -> None:
        """We have it. If nobody had it since we let it go, it was not wanted."""
        self._missed.pop((lease.partition, lease.epoch), None)
        before = self._offers.pop(lease.partition, None)
        if before is not None and before.epoch + 1 == lease.epoch:
            kept_s = KEPT_S[min(before.misses, len(KEPT_S) - 1)]
            self._offers[lease.partition] = _Offer(
                before.member, lease.epoch, before.misses + 1, now + kept_s
            )
