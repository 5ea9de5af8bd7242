"""What the SQL stores share: the verbs as one statement each."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from leasehold.core import strict_json
from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput
from leasehold.local.sql import Rows
from leasehold.ports import Renewed
from leasehold.settings import TIMING

SCHEMA_VERSION = 1
FORGET_AFTER_S = 3600.0

Columns = Mapping[str, Sequence[Any]]
_Key = tuple[str, str, str, str]

_FIELDS: dict[str, Callable[[Lease], Any]] = {
    "namespace": attrgetter("group.namespace"),
    "feed": attrgetter("group.feed"),
    "group_name": attrgetter("group.name"),
    "partition": attrgetter("partition"),
    "version": attrgetter("version"),
    "owner": attrgetter("owner"),
    "epoch": attrgetter("epoch"),
    "next_sequence": attrgetter("checkpoint.next_sequence"),
    "token": attrgetter("checkpoint.token"),
    "attempts": attrgetter("attempts"),
    "offered_to": attrgetter("offered_to"),
    "weight": lambda lease: _finite("weight", lease.weight),
    "ttl_s": lambda lease: _finite("ttl_s", lease.ttl_s),
}
_KEY = ("namespace", "feed", "group_name", "partition")
_UNTAKEN = {"ttl_s": TIMING.lease_ttl_s}
"""Of a lease that nobody has had yet. A default of the table would stay as it was when the table
was made."""


class SqlStore(ABC):
    """The verbs over ``_run``; a store adds its connection, its queries and its errors."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    @abstractmethod
    async def _run(
        self, query: str, values: Mapping[str, Any], rows: Columns | None = None, verb: str = ""
    ) -> Rows:
        """Send one query, counted under ``verb`` (by default its own name)."""

    @abstractmethod
    async def close(self) -> None: ...

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        if starts:
            await self._run("create", {**_names(group), **_UNTAKEN}, _starts(starts))

    async def snapshot(self, group: Group) -> Snapshot:
        ((leases, members, replaced, wall),) = await self._run("snapshot", _names(group))
        return Snapshot(
            leases=tuple(self._lease(group, row) for row in _rows(leases)),
            members=tuple(self._member(row) for row in _rows(members)),
            taken_at=wall,
            replaced=frozenset(strict_json.loads(replaced)),
        )

    async def join(self, group: Group, member: Member) -> None:
        await self._run("join", {**_names(group), **_values(member)})
        await self._run("forget", {**_names(group), "after_s": FORGET_AFTER_S}, verb="join")

    async def heartbeat(self, group: Group, member: Member) -> bool:
        return bool(await self._run("heartbeat", {**_names(group), **_values(member)}))

    async def leave(self, group: Group, member: Member) -> None:
        await self._run("leave", {**_names(group), **_values(member)})

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        values = {"owner": owner, "ttl_s": _finite("ttl_s", ttl_s)}
        return await self._change("acquire", leases, ("version",), values)

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        fields = ("owner", "epoch", "weight", "ttl_s")
        return Renewed(kept=await self._change("renew", leases, fields))

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._change("release", leases, ("owner", "epoch", "offered_to"))

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        fields = ("owner", "epoch", "next_sequence", "token", "attempts")
        return await self._change("checkpoint", leases, fields)

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._change("rewind", leases, ("version", "next_sequence", "token"))

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        held = {"parent": parent.partition, "owner": parent.owner, "epoch": parent.epoch}
        values = {**_names(parent.group), **held, **_UNTAKEN}
        return bool(await self._run("split", values, _starts(children)))

    async def groups(self) -> Sequence[Group]:
        rows = await self._run("groups", {})
        return tuple(sorted(Group(namespace=row[0], feed=row[1], name=row[2]) for row in rows))

    async def _change(
        self,
        verb: str,
        leases: Sequence[Lease],
        fields: Sequence[str],
        values: Mapping[str, Any] | None = None,
    ) -> tuple[Lease, ...]:
        """Change the leases in one statement; the answer has those that changed, in their order."""
        changed = []
        for distinct in _rounds(leases):
            columns = columns_of(list(distinct.values()), fields)
            found = {tuple(row[:4]): row for row in await self._run(verb, values or {}, columns)}
            changed += [
                self._lease(lease.group, found[key][3:])
                for key, lease in distinct.items()
                if key in found
            ]
        return tuple(changed)

    def _lease(self, group: Group, row: Sequence[Any]) -> Lease:
        partition, next_sequence, token, owner, epoch, version, *rest = row
        advanced, attempts, offered_to, weight, ttl_s, age_s = rest
        return Lease(
            group=group,
            partition=partition,
            checkpoint=Checkpoint(next_sequence=next_sequence, token=token),
            owner=owner,
            epoch=epoch,
            version=str(version),
            advanced=bool(advanced),
            attempts=attempts,
            offered_to=offered_to,
            weight=float(weight),
            ttl_s=float(ttl_s),
            age_s=self._age(age_s),
        )

    def _member(self, row: Sequence[Any]) -> Member:
        instance, incarnation, ttl_s, leaving, seen_at, age_s = row
        return Member(
            instance=instance,
            incarnation=incarnation,
            ttl_s=float(ttl_s),
            leaving=bool(leaving),
            age_s=self._age(age_s),
            version=str(seen_at),
        )

    def _age(self, age_s: float) -> float:
        """Below 0 for a stamp that the store's clock has not reached yet."""
        return float(age_s)


def _rows(columns: str) -> Iterator[tuple[Any, ...]]:
    """Of a list per column, as JSON; a column of no rows may be null."""
    return zip(*(column or () for column in strict_json.loads(columns)), strict=True)


def columns_of(leases: Sequence[Lease], fields: Sequence[str]) -> Columns:
    return {field: [_FIELDS[field](lease) for lease in leases] for field in (*_KEY, *fields)}


def _rounds(leases: Sequence[Lease]) -> list[dict[_Key, Lease]]:
    """One statement takes each lease once; a lease given twice goes into a second one."""
    rounds: list[dict[_Key, Lease]] = []
    for lease in leases:
        group = lease.group
        key = (group.namespace, group.feed, group.name, lease.partition)
        for distinct in rounds:
            if key not in distinct:
                distinct[key] = lease
                break
        else:
            rounds.append({key: lease})
    return rounds


def _names(group: Group) -> dict[str, Any]:
    return {"namespace": group.namespace, "feed": group.feed, "group_name": group.name}


def _values(member: Member) -> dict[str, Any]:
    return {
        "instance": member.instance,
        "incarnation": member.incarnation,
        "ttl_s": _finite("ttl_s", member.ttl_s),
        "leaving": member.leaving,
    }


def _starts(starts: Mapping[str, Checkpoint]) -> Columns:
    return {
        "partition": list(starts),
        "next_sequence": [start.next_sequence for start in starts.values()],
        "token": [start.token for start in starts.values()],
    }


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise BadInput(f"{name} must be a finite number, not {value}")
    return float(value)
