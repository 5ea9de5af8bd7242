"""What this instance asked for and was not told whether it has.

The store shows such a lease as its own. Taken again it is no dead owner's, and one that stops gives
it back: nobody works on it, and the others would wait for it until it expires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from leasehold.core.model import Lease, Snapshot


@dataclass(frozen=True, slots=True)
class Former:
    """What was known of the owner before, when the lease was claimed."""

    orphaned: bool
    overruled: bool


class Claims:
    def __init__(self, me: str) -> None:
        self._me = me
        self._sent: dict[tuple[str, int], Former] = {}
        """(partition, the epoch that the claim would begin)."""

    def __bool__(self) -> bool:
        return bool(self._sent)

    def send(self, leases: Iterable[Lease]) -> None:
        """These are about to be asked for, in the state in which they were seen."""
        for lease in leases:
            owned = lease.owner is not None
            former = self._former(lease) or Former(owned, owned and lease.live)
            self._sent[lease.partition, lease.epoch + 1] = former

    def won(self, lease: Lease) -> Former:
        """The answer came; which owner the lease was taken from."""
        former = self._sent[lease.partition, lease.epoch]
        self._sent = {key: each for key, each in self._sent.items() if key[0] != lease.partition}
        return former

    def look(self, snapshot: Snapshot) -> None:
        """Forget what came to nothing: somebody else was first, or the lease is gone."""
        now = {lease.partition: lease for lease in snapshot.leases}
        self._sent = {
            (partition, epoch): former
            for (partition, epoch), former in self._sent.items()
            if (lease := now.get(partition)) is not None
            and (lease.epoch < epoch or self._former(lease) is former)
        }

    def strays(self, snapshot: Snapshot, held: Collection[str]) -> list[Lease]:
        """Leases that it got and does not work on."""
        return [x for x in snapshot.leases if x.partition not in held and self._former(x)]

    def _former(self, lease: Lease) -> Former | None:
        mine = lease.owner == self._me
        return self._sent.get((lease.partition, lease.epoch)) if mine else None
