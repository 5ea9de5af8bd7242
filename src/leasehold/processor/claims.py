"""What this instance asked for and was not told whether it has.

The store shows such a lease as its own. Taken again it is no dead owner's, and one that stops gives
it back: nobody works on it, and the others would wait for it until it expires.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from leasehold.core.model import Lease, Snapshot


class Former(NamedTuple):
    """What was known of the owner before, when the lease was claimed."""

    orphaned: bool
    overruled: bool


class _Claim(NamedTuple):
    epoch: int
    """Its own is this one, or a later one."""
    former: Former


class Claims:
    def __init__(self, me: str) -> None:
        self._me = me
        self._sent: dict[str, _Claim] = {}
        """By partition, the first of the claims without an answer that came one after another."""

    def __bool__(self) -> bool:
        return bool(self._sent)

    def send(self, leases: Sequence[Lease]) -> Mapping[str, Former]:
        """These are about to be asked for, as they were seen. By partition, from whom."""
        for lease in leases:
            if not self._is_stray(lease):
                owned = lease.owner is not None
                former = Former(orphaned=owned, overruled=owned and lease.live)
                self._sent[lease.partition] = _Claim(lease.epoch + 1, former)
        return {lease.partition: self._sent[lease.partition].former for lease in leases}

    def answered(self, partition: str) -> None:
        """It has it, and knows."""
        self._sent.pop(partition, None)

    def look(self, snapshot: Snapshot) -> None:
        """Forget what came to nothing: somebody else was first, or the lease is gone."""
        now = {lease.partition: lease for lease in snapshot.leases}
        self._sent = {
            partition: claim
            for partition, claim in self._sent.items()
            if (lease := now.get(partition)) is not None
            and (lease.epoch < claim.epoch or self._is_stray(lease))
        }

    def strays(self, snapshot: Snapshot, held: Collection[str]) -> list[Lease]:
        """Leases that it got and does not work on."""
        return [x for x in snapshot.leases if x.partition not in held and self._is_stray(x)]

    def _is_stray(self, lease: Lease) -> bool:
        claim = self._sent.get(lease.partition)
        return claim is not None and lease.owner == self._me and lease.epoch >= claim.epoch
