"""Leases in Azure Cosmos DB: one document per lease and per member, changed by compare and swap.

A look at a group is one query of one partition key. Its own writes are tried with the etag that it
knows, and read again only where somebody else was faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.core.progress import further
from leasehold.errors import BadInput
from leasehold.local.cosmos import CosmosConnection, CosmosSettings
from leasehold.local.cosmos_documents import CosmosDocuments, Document
from leasehold.local.outcomes import outcomes
from leasehold.local.threads import OwnThreads
from leasehold.ports import Renewed
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.cosmos.records import (
    LEASE,
    MEMBER,
    group_of,
    id_of,
    key_of,
    lease_document,
    lease_of,
    member_document,
    member_of,
    touched,
)

EVERYTHING = "SELECT * FROM c"
KEYS = "SELECT VALUE c.group FROM c WHERE c.kind = 'lease' AND NOT c.replaced"
FORGET_MEMBERS_AFTER_S = 24 * 3600.0
REQUESTS_MAX = 32
"""At once. A renewal is a request of its own here: with fewer, many leases could not be kept. There
are only as many threads and connections as were ever needed at the same time."""
R = TypeVar("R")
Edit = Callable[[Lease], Lease | None]
"""The lease as it is to be; None: it is not as it must be for that."""


class CosmosStore:
    def __init__(self, settings: CosmosSettings, *, timeout_s: float = STORE_TIMEOUT_S) -> None:
        if not 0 < timeout_s < float("inf"):
            raise BadInput("timeout_s is a number of seconds above 0")
        self._timeout_s = timeout_s
        self._connection = CosmosConnection(settings, timeout_s, at_once=REQUESTS_MAX)
        self._documents = CosmosDocuments(self._connection)
        self.requests = self._connection.requests
        self.request_units = self._connection.request_units
        self._threads = OwnThreads(f"cosmos-{settings.container}", REQUESTS_MAX)
        self._seen: dict[tuple[str, str], Document] = {}
        """By key and id: as last seen, with its etag."""
        self._beats = count(1)

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> CosmosStore:
        """``cosmos://ACCOUNT.documents.azure.com/DATABASE/CONTAINER?timeout_s=…``. The secret comes
        from the environment; the container is made when it is first used."""
        said = CosmosSettings.from_url(url, more=["timeout_s"])
        return cls(said, **({"timeout_s": said.timeout_s(STORE_TIMEOUT_S)} | settings))

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        await self._all(self._create, [(group, *each) for each in starts.items()])

    async def snapshot(self, group: Group) -> Snapshot:
        return await self._threads.run(self._snapshot, group)

    async def join(self, group: Group, member: Member) -> None:
        await self._threads.run(self._join, group, member)

    async def heartbeat(self, group: Group, member: Member) -> bool:
        return await self._threads.run(self._heartbeat, group, member)

    async def leave(self, group: Group, member: Member) -> None:
        await self._threads.run(self._leave, group, member)

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        def take(wanted: Lease) -> Lease | None:
            def edit(now: Lease) -> Lease | None:
                if now.version != wanted.version:
                    return None
                return replace(now, owner=owner, epoch=now.epoch + 1, offered_to=None, ttl_s=ttl_s)

            return self._change("acquire", wanted, edit)

        done = await self._each(take, leases)
        return [lease for lease in done if isinstance(lease, Lease)]

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        def keep(wanted: Lease) -> Lease | None:
            return self._change(
                "renew",
                wanted,
                _held(wanted, lambda now: replace(now, weight=wanted.weight, ttl_s=wanted.ttl_s)),
            )

        done = await self._each(keep, leases)
        return Renewed(
            kept=tuple(lease for lease in done if isinstance(lease, Lease)),
            unknown={
                lease.partition: failure
                for lease, failure in zip(leases, done, strict=True)
                if isinstance(failure, Exception)
            },
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        def drop(wanted: Lease) -> Lease | None:
            return self._change(
                "release",
                wanted,
                _held(wanted, lambda now: replace(now, owner=None, offered_to=wanted.offered_to)),
            )

        await self._all(drop, [(lease,) for lease in leases])

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        def write(wanted: Lease) -> Lease | None:
            return self._change("checkpoint", wanted, _held(wanted, lambda now: _on(now, wanted)))

        return _kept(await self._all(write, [(lease,) for lease in leases]))

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        def send_back(wanted: Lease) -> Lease | None:
            def edit(now: Lease) -> Lease | None:
                if now.version != wanted.version:
                    return None
                return replace(
                    now,
                    checkpoint=wanted.checkpoint,
                    owner=None,
                    offered_to=None,
                    epoch=now.epoch + 1,
                    attempts=0,
                )

            return self._change("rewind", wanted, edit)

        return _kept(await self._all(send_back, [(lease,) for lease in leases]))

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        return await self._threads.run(self._split, parent, children)

    async def groups(self) -> Sequence[Group]:
        keys, _ = await self._threads.run(self._documents.query, "groups", KEYS)
        return sorted(group_of(key) for key in set(keys))

    async def close(self) -> None:
        """It may be used again."""
        await self._threads.rest(then=self._connection.close)

    def _create(self, group: Group, partition: str, start: Checkpoint) -> None:
        lease = Lease(group=group, partition=partition, checkpoint=start, version="0")
        self._documents.create("create", lease_document(touched(lease)))

    def _snapshot(self, group: Group) -> Snapshot:
        key = key_of(group)
        found, now = self._documents.query("snapshot", EVERYTHING, key)
        for each in found:
            self._seen[key, each["id"]] = each
        leases = [each for each in found if each["kind"] == LEASE]
        members = [member_of(each, now) for each in found if each["kind"] == MEMBER]
        open_leases = [lease_of(each, now) for each in leases if not each["replaced"]]
        return Snapshot(
            leases=tuple(sorted(open_leases, key=lambda lease: lease.partition)),
            members=tuple(sorted(members, key=lambda member: member.instance)),
            taken_at=now,
            replaced=frozenset(each["partition"] for each in leases if each["replaced"]),
        )

    def _join(self, group: Group, member: Member) -> None:
        key = key_of(group)
        self._documents.put("join", member_document(group, member, next(self._beats)))
        found, now = self._documents.query("join", EVERYTHING, key)
        for each in found:
            if each["kind"] == MEMBER and now - each["_ts"] > FORGET_MEMBERS_AFTER_S:
                self._documents.remove("join", key, each["id"], each["_etag"])

    def _heartbeat(self, group: Group, member: Member) -> bool:
        key, id = key_of(group), id_of(MEMBER, member.instance)
        known = self._seen.get((key, id))
        while True:
            if known is None:
                known = self._documents.read("heartbeat", key, id)
            if known is not None and known["incarnation"] != member.incarnation:
                known = self._documents.read("heartbeat", key, id)
                if known is not None and known["incarnation"] != member.incarnation:
                    return False
            beat = 1 if known is None else known["beat"] + 1
            wanted = member_document(group, member, beat)
            if known is None:
                if self._documents.create("heartbeat", wanted):
                    return True
                continue
            stored = self._documents.replace("heartbeat", wanted, known["_etag"])
            if stored is not None:
                self._seen[key, id] = stored
                return True
            known = None

    def _leave(self, group: Group, member: Member) -> None:
        key, id = key_of(group), id_of(MEMBER, member.instance)
        while (known := self._documents.read("leave", key, id)) is not None:
            if known["incarnation"] != member.incarnation:
                return
            if self._documents.remove("leave", key, id, known["_etag"]):
                return

    def _change(self, verb: str, wanted: Lease, edit: Edit) -> Lease | None:
        key, id = key_of(wanted.group), id_of(LEASE, wanted.partition)
        known, is_fresh = self._seen.get((key, id)), False
        while True:
            if known is None:
                known, is_fresh = self._documents.read(verb, key, id), True
            if known is None or known["replaced"]:
                if known is None or is_fresh:
                    return None
                known = None
                continue
            now = lease_of(known, known["_ts"])
            changed = edit(now)
            if changed is None:
                if is_fresh:
                    return None
                known = None
                continue
            if changed is now and is_fresh:
                return now  # what is equal is still to be written: a renewal changes nothing else
            stored = self._documents.replace(verb, lease_document(touched(changed)), known["_etag"])
            if stored is not None:
                self._seen[key, id] = stored
                return lease_of(stored, stored["_ts"])
            known = None

    def _split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        key, id = key_of(parent.group), id_of(LEASE, parent.partition)
        while True:
            known = self._documents.read("split", key, id)
            if known is None:
                return False
            if known["replaced"]:
                return True
            now = lease_of(known, known["_ts"])
            if (now.owner, now.epoch) != (parent.owner, parent.epoch) or parent.owner is None:
                return False
            gone = lease_document(touched(replace(now, owner=None)), is_replaced=True)
            steps: list[tuple[Any, ...]] = [
                ("replace", (id, gone), {"if_match_etag": known["_etag"]})
            ]
            for child, start in children.items():
                steps += self._child(parent.group, child, start)
            if self._documents.together("split", key, steps):
                return True

    def _child(self, group: Group, child: str, start: Checkpoint) -> list[tuple[Any, ...]]:
        key, id = key_of(group), id_of(LEASE, child)
        made = touched(Lease(group=group, partition=child, checkpoint=start, version="0"))
        known = self._documents.read("split", key, id)
        if known is None:
            return [("create", (lease_document(made),))]
        if known["replaced"] or known["epoch"]:
            return []
        return [("replace", (id, lease_document(made)), {"if_match_etag": known["_etag"]})]

    async def _all(self, call: Callable[..., R], arguments: Iterable[tuple[Any, ...]]) -> list[R]:
        return list(await asyncio.gather(*(self._threads.run(call, *each) for each in arguments)))

    async def _each(
        self, call: Callable[[Lease], Lease | None], leases: Sequence[Lease]
    ) -> list[Lease | BaseException | None]:
        return await outcomes((self._threads.run(call, each) for each in leases), self._timeout_s)


def _held(wanted: Lease, change: Callable[[Lease], Lease]) -> Edit:
    def edit(now: Lease) -> Lease | None:
        if wanted.owner is None or (now.owner, now.epoch) != (wanted.owner, wanted.epoch):
            return None
        return change(now)

    return edit


def _on(now: Lease, wanted: Lease) -> Lease:
    """With the checkpoint further on, never back."""
    here, there = now.checkpoint.next_sequence, wanted.checkpoint.next_sequence
    if there < here:
        return now
    return replace(
        now,
        checkpoint=further(now.checkpoint, wanted.checkpoint),
        advanced=now.advanced or there > here,
        attempts=wanted.attempts,
    )


def _kept(leases: Iterable[Lease | None]) -> list[Lease]:
    return [lease for lease in leases if lease is not None]
