"""What the rules for lease stores are told with: groups, leases and members in a few words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.ports import LeaseStore
from leasehold.settings import TIMING

OpenStore = Callable[[], Awaitable[LeaseStore]]
Check = Callable[[OpenStore, Group], Awaitable[None]]

EARLIEST = Checkpoint(next_sequence=0, token="-1")


def any_group() -> Group:
    return Group(namespace="homes.local", feed="sensors", name=f"g-{uuid4().hex[:12]}")


def at(sequence: int) -> Checkpoint:
    return Checkpoint(next_sequence=sequence, token=str(sequence * 100))


def member(instance: str, incarnation: str = "1", ttl_s: float = TIMING.lease_ttl_s) -> Member:
    return Member(instance=instance, incarnation=incarnation, ttl_s=ttl_s)


async def leases_of(store: LeaseStore, group: Group) -> dict[str, Lease]:
    return {lease.partition: lease for lease in (await store.snapshot(group)).leases}


async def take(
    store: LeaseStore, group: Group, partition: str, owner: str, ttl_s: float = TIMING.lease_ttl_s
) -> Lease:
    seen = (await leases_of(store, group))[partition]
    (lease,) = await store.acquire([seen], owner, ttl_s)
    return lease
