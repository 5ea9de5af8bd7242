"""Sending a group back to an older position, or ahead: an operator's command (requirement E16).

``plan`` only looks, so that the operator can see what would happen; ``carry_out`` does it.
Checkpoints never go back otherwise, so an owner must be gone, or is fenced off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Group, Lease
from leasehold.errors import BadInput, PositionGone
from leasehold.ports import CountsRemaining, Feed, LeaseStore

TRIES = 8
"""An owner that is to be fenced off may renew between our look and our write, but not each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    lease: Lease
    to: Checkpoint
    again: int
    """Events before the old position that will be delivered (again)."""
    skipped: int
    """Events that will not be delivered, although they were not processed."""

    @property
    def partition(self) -> str:
        return self.lease.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindOutcome:
    done: tuple[str, ...]
    """Partitions that are now where they should be."""
    refused: Mapping[str, str]
    """By partition, why it was left as it is."""


async def plan(
    feed: Feed,
    store: LeaseStore,
    group: Group,
    to: Any,
    partitions: Iterable[str] | None = None,
    *,
    all_chosen: bool = False,
    step: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Move, ...]:
    """What a rewind would do, for these partitions or all; what is there already is left out,
    unless ``all_chosen``. ``step`` is told how many partitions were looked at, and of how many.

    Refuses as a whole if the start does not exist in one of them.
    """
    leases = {lease.partition: lease for lease in (await store.snapshot(group)).leases}
    extents = {extent.partition: extent for extent in await feed.extents()}
    end = max((extent.end for extent in extents.values()), default=0)
    extents |= await _of_split(feed, leases.keys() - extents.keys(), extents)
    places: dict[str, Checkpoint] = {}
    gone = []
    chosen = list(await _chosen(store, group, leases, extents, partitions))
    for done, partition in enumerate(chosen):
        step(done, len(chosen))
        try:
            position = await feed.locate(partition, to)
        except PositionGone as error:
            if not _quiet(feed, error, end):
                gone.append(str(error))
                continue
            position = error.latest
        if all_chosen or position != leases[partition].checkpoint:
            places[partition] = position
    if gone:
        raise BadInput(
            "\n".join(gone) + "\nNothing was changed. Choose a start that all of them have, such "
            "as earliest or a time, or name partitions."
        )
    effects = await _effects(feed, leases, extents, places)
    return tuple(
        Move(lease=leases[p], to=to, again=max(0, effects[p]), skipped=max(0, -effects[p]))
        for p, to in places.items()
    )


def owners(moves: Iterable[Move]) -> dict[str, list[str]]:
    """The live owners that stand in the way, with their partitions."""
    found: dict[str, list[str]] = {}
    for move in moves:
        if move.lease.owner is not None and move.lease.live:
            found.setdefault(move.lease.owner, []).append(move.partition)
    return found


async def carry_out(
    store: LeaseStore, moves: Sequence[Move], *, fence: bool = False
) -> RewindOutcome:
    """Do what was planned. Without ``fence``, refuses as a whole while an owner is alive."""
    if not moves:
        return RewindOutcome(done=(), refused={})
    if not fence and (alive := owners(moves)):
        raise BadInput(f"{alive_text(alive)}. Stop them first, or rewind with fence=True")
    pending = {move.partition: move for move in moves}
    refused: dict[str, str] = {}
    done: list[str] = []
    for _ in range(TRIES):
        snapshot = await store.snapshot(moves[0].lease.group)
        seen = {lease.partition: lease for lease in snapshot.leases if lease.partition in pending}
        for partition in tuple(pending):
            lease = seen.get(partition)
            if lease is None:
                refused[partition] = "its lease is gone: it was split meanwhile"
            elif lease.live and not fence:
                refused[partition] = f"{lease.owner} took it meanwhile"
                del seen[partition]
            if partition in refused:
                del pending[partition]
        wanted = [replace(lease, checkpoint=pending[p].to) for p, lease in seen.items()]
        for lease in await store.rewind(wanted) if wanted else ():
            done.append(lease.partition)
            del pending[lease.partition]
        if not pending:
            break
    refused |= dict.fromkeys(pending, f"it changed under each of {TRIES} tries: try again")
    return RewindOutcome(done=tuple(done), refused=refused)


def _quiet(feed: Feed, error: PositionGone, end: int) -> bool:
    """Where partitions share one sequence, a place that the feed has reached may lie behind the end
    of a partition that has been quiet since."""
    shared = isinstance(feed, CountsRemaining)
    return shared and error.reason == "beyond end" and error.position.next_sequence <= end


async def _effects(
    feed: Feed,
    leases: Mapping[str, Lease],
    extents: Mapping[str, Extent],
    places: Mapping[str, Checkpoint],
) -> dict[str, int]:
    """By partition: how many events come again; below 0: how many are skipped."""
    old = {partition: leases[partition].checkpoint for partition in places}
    if isinstance(feed, CountsRemaining) and places:
        before, after = await feed.remaining(old), await feed.remaining(places)
        return {partition: after[partition] - before[partition] for partition in places}
    effects = {}
    for partition, to in places.items():
        first, end = extents[partition].first, extents[partition].end
        # What lies outside the feed was removed, or is of another one: it is neither.
        effects[partition] = min(max(old[partition].next_sequence, first), end) - to.next_sequence
    return effects


async def _of_split(
    feed: Feed, partitions: Collection[str], extents: Mapping[str, Extent]
) -> dict[str, Extent]:
    """Of partitions that were split since, if the feed has only their children's."""
    found = {}
    known = await feed.partitions() if partitions else ()
    for partition in partitions:
        children = [
            extents[each.id] for each in known if partition in each.ancestors and each.id in extents
        ]
        if children:
            first, end = min(each.first for each in children), max(each.end for each in children)
            found[partition] = Extent(partition=partition, first=first, end=end)
    return found


async def _chosen(
    store: LeaseStore,
    group: Group,
    leases: Mapping[str, Lease],
    extents: Mapping[str, Extent],
    partitions: Iterable[str] | None,
) -> list[str]:
    if not leases:
        raise BadInput(await nobody(store, group))
    if partitions is None:
        return [partition for partition in extents if partition in leases]
    chosen = list(dict.fromkeys(partitions))
    for partition in chosen:
        if partition not in extents:
            raise BadInput(f"partition {partition!r} is unknown: there are {', '.join(extents)}")
        if partition not in leases:
            raise BadInput(
                f"partition {partition} has no lease yet: its first owner will begin at its own "
                "start setting"
            )
    return chosen


async def nobody(store: LeaseStore, group: Group) -> str:
    """A group without leases is most often a slip of the pen, so say which there are."""
    others = [str(other) for other in await store.groups()]
    known = f"has these groups: {', '.join(others)}" if others else "has no groups"
    return f"{group} has no leases in this store, so it never ran; the store {known}"


def alive_text(alive: Mapping[str, Sequence[str]]) -> str:
    who = "; ".join(
        f"{owner} (partition{'s' * (len(held) > 1)} {', '.join(held)})"
        for owner, held in sorted(alive.items())
    )
    return f"owners are alive: {who}"
