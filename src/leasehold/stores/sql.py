"""What the SQL stores share: named queries, and the verbs as one statement each."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from typing import Any, ClassVar

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput, NewerVersion

SCHEMA_VERSION = 1
TIMEOUT_S = 4.0
"""By default a store says what is wrong before a caller who waits 5 s gives up on it."""
FORGET_AFTER_S = 3600.0
LONG_AGO_S = 1e9
"""The age of a stamp that the store's clock has not reached: from before the clock was set back."""

Columns = Mapping[str, Sequence[Any]]
Rows = Sequence[Sequence[Any]]
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


def load_queries(file: str) -> dict[str, str]:
    """The queries of a ``.sql`` file beside this one, by the name in their ``-- name:`` line."""
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return split_queries(text)


def split_queries(text: str) -> dict[str, str]:
    _, *parts = re.split(r"^-- name: *(\S+) *\n", text, flags=re.MULTILINE)
    names, bodies = parts[::2], parts[1::2]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"queries named twice: {', '.join(twice)}")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}


def check_version(found: int, place: str, known: int = SCHEMA_VERSION) -> None:
    if found > known:
        raise NewerVersion(
            f"{place} was written by a newer Leasehold: its schema is version {found}, this one "
            f"knows version {known}. Upgrade with: pip install --upgrade leasehold"
        )


def check_timeout(timeout_s: float | str) -> float:
    """A timeout as given to a constructor or written in a URL."""
    try:
        seconds = float(timeout_s)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadInput(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    return seconds


class SqlStore(ABC):
    """The verbs over ``_run``; a store adds its connection, its queries and its errors."""

    _slack_s: ClassVar[float]
    """How far a stamp may lie in the future and still count as new."""

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
            await self._run("create", _names(group), _starts(starts))

    async def snapshot(self, group: Group) -> Snapshot:
        ((leases, members, replaced, wall),) = await self._run("snapshot", _names(group))
        return Snapshot(
            leases=tuple(self._lease(group, row) for row in json.loads(leases)),
            members=tuple(self._member(row) for row in json.loads(members)),
            taken_at=wall,
            replaced=frozenset(json.loads(replaced)),
        )

    async def join(self, group: Group, member: Member) -> None:
        await self._run("join", {**_names(group), **_values(member)})
        cleaning = {"after_s": FORGET_AFTER_S, "slack_s": self._slack_s}
        await self._run("forget", {**_names(group), **cleaning}, verb="join")

    async def heartbeat(self, group: Group, member: Member) -> bool:
        return bool(await self._run("heartbeat", {**_names(group), **_values(member)}))

    async def leave(self, group: Group, member: Member) -> None:
        await self._run("leave", {**_names(group), **_values(member)})

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        values = {"owner": owner, "ttl_s": _finite("ttl_s", ttl_s)}
        return await self._change("acquire", leases, ("version",), values)

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._change("renew", leases, ("owner", "epoch", "weight", "ttl_s"))

    async def release(self, leases: Sequence[Lease]) -> None:
        await self._change("release", leases, ("owner", "epoch", "offered_to"))

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        fields = ("owner", "epoch", "next_sequence", "token", "attempts")
        return await self._change("checkpoint", leases, fields)

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._change("rewind", leases, ("version", "next_sequence", "token"))

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        held = {"parent": parent.partition, "owner": parent.owner, "epoch": parent.epoch}
        values = {**_names(parent.group), **held}
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
    ) -> Sequence[Lease]:
        """Change the leases in one statement; the answer has those that changed, in their order."""
        changed = []
        for distinct in _rounds(leases):
            columns = {
                field: [_FIELDS[field](lease) for lease in distinct.values()]
                for field in (*_KEY, *fields)
            }
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
        instance, incarnation, ttl_s, leaving, age_s = row
        return Member(
            instance=instance,
            incarnation=incarnation,
            ttl_s=float(ttl_s),
            leaving=bool(leaving),
            age_s=self._age(age_s),
        )

    def _age(self, age_s: float) -> float:
        # The living renew within seconds of the clock being set back; only the dead keep a stamp
        # that lies ahead, and they must not be waited for until the clock gets there.
        return LONG_AGO_S if age_s < -self._slack_s else max(0.0, float(age_s))


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
