"""Who should own what, and what one instance does about it now.

An ``Assign`` strategy turns the current owners into a target, the same on every instance that sees
the same snapshot. ``plan`` compares the target with the leases and says what *this* instance takes
and sheds. Live owners are not robbed: they see the same target and let go by themselves.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from leasehold.core.model import Lease, Partition, Snapshot
from leasehold.settings import Timing

Assign = Callable[
    [Collection[str], Mapping[str, str], Collection[str], Mapping[str, float]], dict[str, str]
]
"""(partitions, current owners, members, weights) to owners; ``current`` may be partial."""

Waiting = Mapping[tuple[str, int, bool], float]
"""(partition, epoch, live) that others should let go, if live, or should take: since when that was
seen. An owner that comes back has all the time to let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    take: tuple[Lease, ...] = ()
    shed: Mapping[str, str | None] = field(default_factory=dict)
    """Held partitions to let go, each with the member it is meant for."""
    waiting: Waiting = field(default_factory=dict)
    settled: bool = True
    """False while any lease is on its way from one member to another."""
    members: frozenset[str] = frozenset()
    """Those among whom it shares out."""
    look_again: bool = False
    """Some have just come and more may be about to; what to shed is clear a moment later."""


def by_count(
    partitions: Collection[str],
    current: Mapping[str, str],
    members: Collection[str],
    weights: Mapping[str, float],
) -> dict[str, str]:
    """Even numbers: spread of at most one, with the fewest possible moves.

    A target that is carried out in part still gives the same target. So members that look one after
    another, while leases are on their way, agree where each of them goes.
    """
    if not members:
        return {}
    owned: dict[str, list[str]] = {member: [] for member in sorted(members)}
    pool: list[str] = []
    for partition in sorted(partitions):
        owned.get(current.get(partition, ""), pool).append(partition)
    low, extra = divmod(len(partitions), len(owned))
    # Those who own more than the smaller quota get the larger one: anything else would move more.
    # Among the rest not what they own decides, which changes on the way, but the name.
    slots: list[str] = []
    for rank, member in enumerate(sorted(owned, key=lambda name: (len(owned[name]) <= low, name))):
        quota = low + (rank < extra)
        pool += owned[member][quota:]
        owned[member] = owned[member][:quota]
        slots += [member] * (quota - len(owned[member]))
    target = {partition: member for member, mine in owned.items() for partition in mine}
    return target | dict(zip(sorted(pool), sorted(slots), strict=True))


def by_weight(threshold: float = 0.2) -> Assign:
    """Even sums of weights; 0 is one not known. Nothing moves while the heaviest and the lightest
    member differ by less than ``threshold`` of the mean load, nor where no single move would bring
    them closer. Weights that are all the same are evened out by count."""
    if not 0 <= threshold < math.inf:
        raise ValueError(f"threshold must be 0 or more, not {threshold!r}: 0.2 allows 20 %")

    def assign(
        partitions: Collection[str],
        current: Mapping[str, str],
        members: Collection[str],
        weights: Mapping[str, float],
    ) -> dict[str, str]:
        if not members:
            return {}
        exact = _exact({partition: weights.get(partition, 0.0) for partition in partitions})
        if len(set(exact.values())) <= 1:
            return by_count(partitions, current, members, weights)
        owned: dict[str, list[tuple[int, str]]] = {member: [] for member in sorted(members)}
        pool: list[tuple[int, str]] = []
        for partition in sorted(partitions):
            owned.get(current.get(partition, ""), pool).append((exact[partition], partition))
        load = {member: sum(weight for weight, _ in mine) for member, mine in owned.items()}
        light = [(load[member], len(mine), member) for member, mine in owned.items()]
        heapq.heapify(light)
        for weight, partition in sorted(pool, key=lambda entry: (-entry[0], entry[1])):
            _, count, member = light[0]
            owned[member].append((weight, partition))
            load[member] += weight
            heapq.heapreplace(light, (load[member], count + 1, member))
        _even_out(owned, load, threshold)
        return {partition: member for member, mine in owned.items() for _, partition in mine}

    return assign


def _exact(weights: Mapping[str, float]) -> dict[str, int]:
    """The weights as whole numbers of one small unit: sums of floats depend on their order, and a
    rounded sum can make a swap back and forth look like progress each time. One that is not known
    counts as much as the others do on average, or the first that was measured would look heavy."""
    ratios = {
        partition: weight.as_integer_ratio()
        for partition, weight in weights.items()
        if 0 < weight < math.inf
    }
    unit = max((below for _, below in ratios.values()), default=1)  # all are powers of two
    known = {partition: above * (unit // below) for partition, (above, below) in ratios.items()}
    usual = sum(known.values()) // len(known) if known else 1
    return {partition: known.get(partition, usual) for partition in weights}


def _even_out(
    owned: dict[str, list[tuple[int, str]]], load: dict[str, int], threshold: float
) -> None:
    """Move single partitions from the heaviest to the lightest member while it helps: each move
    leaves both below what the heaviest had, so it ends."""
    allowed = math.floor(Fraction(threshold) * sum(load.values()) / len(load))
    for mine in owned.values():
        mine.sort()
    order = sorted((weight, member) for member, weight in load.items())
    while order[-1][0] - order[0][0] > allowed:
        (most, heavy), (least, light) = order[-1], order[0]
        gap = most - least
        # The best single move is the one closest to half the gap; one of the whole gap only swaps.
        at = bisect_left(owned[heavy], (-(-gap // 2), ""))
        near = [entry for entry in owned[heavy][max(at - 1, 0) : at + 1] if 0 < entry[0] < gap]
        if not near:
            return
        entry = min(near, key=lambda entry: (abs(2 * entry[0] - gap), entry[1]))
        owned[heavy].remove(entry)
        insort(owned[light], entry)
        order = order[1:-1]
        insort(order, (most - entry[0], heavy))
        insort(order, (least + entry[0], light))


def live_members(snapshot: Snapshot) -> set[str]:
    """Members with a heartbeat, and owners that have none but keep renewing (other processors)."""
    known = {member.instance for member in snapshot.members}
    return {
        member.instance for member in snapshot.members if not member.expired and not member.leaving
    } | {
        lease.owner
        for lease in snapshot.leases
        if lease.owner and lease.live and lease.owner not in known
    }


def leasable(snapshot: Snapshot, known: Collection[Partition]) -> tuple[Lease, ...]:
    """Leases that there is something to read for: of partitions that exist, and of split ones whose
    children wait for them. Leases of partitions that are gone stay where they are, untouched; so
    does a child's while its parent's is not read to the end, which can be there already if it was
    made by somebody who did not see the parent's."""
    above: dict[str, tuple[str, ...]] = {}
    merged = _merged(known)
    for partition in known:
        line = (partition.id, *partition.ancestors)
        for n, name in enumerate(line):
            apart = merged if name in merged else frozenset()
            above[name] = tuple(each for each in line[n + 1 :] if each not in apart)
    here = {lease.partition for lease in snapshot.leases}
    return tuple(
        lease
        for lease in snapshot.leases
        if lease.partition in above and here.isdisjoint(above[lease.partition])
    )


def _merged(known: Collection[Partition]) -> frozenset[str]:
    """Partitions that were merged into another: what was split lives on in two at least. They have
    no order among themselves: each is read on, by its own keys."""
    times = Counter(name for partition in known for name in partition.ancestors)
    return frozenset(name for name, number in times.items() if number == 1)


def read_by_others(snapshot: Snapshot, known: Collection[Partition]) -> frozenset[str]:
    """Partitions that get no lease, as those that were merged into them have theirs still."""
    leased = {lease.partition for lease in snapshot.leases} & _merged(known)
    return frozenset(each.id for each in known if not leased.isdisjoint(each.ancestors))


def missing(snapshot: Snapshot, known: Collection[Partition]) -> tuple[str, ...]:
    """Partitions that need a lease made. One that was split is never made again, and a child waits
    until its parent's lease hands its progress on."""
    have = {lease.partition for lease in snapshot.leases} | snapshot.replaced
    open_leases = have - snapshot.replaced
    return tuple(
        partition.id
        for partition in known
        if partition.id not in have and open_leases.isdisjoint(partition.ancestors)
    )


def plan(
    snapshot: Snapshot,
    known: Collection[Partition],
    *,
    me: str,
    held: Collection[str],
    waiting: Waiting,
    now: float,
    timing: Timing,
    met: Collection[str] | None = None,
    leaving: bool = False,
    given_up: Collection[str] = (),
    missed: Collection[tuple[str, int]] = (),
    assign: Assign = by_count,
) -> Plan:
    """What this instance does now. ``held`` are the partitions it works on or is letting go;
    ``waiting`` and ``met`` are the last plan's, and its members (None: it knows them all); ``now``
    is its own monotonic clock; ``given_up`` is what others should take first; ``missed`` are
    (partition, epoch) that followed an offer to it which it did not come for, so that their owners
    may keep them for a while."""
    doubted, held = snapshot.doubted - {me}, frozenset(held)
    # Who may be dead gets nothing, and as it may be alive keeps what it has. Nothing is shed before
    # that is known, or it would move again.
    leases = [x for x in leasable(snapshot, known) if _holder(x, timing) not in doubted]
    members = (live_members(snapshot) - doubted) | {me}
    others = live_members(snapshot) - {me}  # who may be dead may also be alive, and take things
    if leaving:
        members.discard(me)
    heartbeats = {member.instance for member in snapshot.members}
    target = assign(
        [lease.partition for lease in leases],
        {lease.partition: holder for lease in leases if (holder := _holder(lease, timing))},
        members,
        {lease.partition: lease.weight for lease in leases},
    )
    take, still_waiting, settled = [], {}, not doubted
    for lease in leases:
        meant_for = target.get(lease.partition)
        if not lease.live or lease.owner != meant_for:
            settled = False
        if leaving or lease.partition in held:
            continue
        if lease.partition in given_up and lease.owner != me and others:
            if _unowned_s(lease) < 2 * timing.patience_s:
                continue  # as long as a live owner has it, too
            meant_for = me  # nobody else takes it either
        if lease.owner == me or (not lease.live and meant_for == me):
            take.append(lease)
        elif not lease.live or meant_for == me:
            key = (lease.partition, lease.epoch, lease.live)
            since = now if lease.live and key[:2] in missed else waiting.get(key, now)
            still_waiting[key] = since
            if _overdue(lease, now - since, timing, cooperative=lease.owner in heartbeats):
                take.append(lease)
    shed = {p: target.get(p) for p in sorted(held) if target.get(p) != me}
    look_again = bool(shed) and not leaving and met is not None and not members <= set(met)
    return Plan(
        take=tuple(take),
        shed={} if look_again or (doubted and not leaving) else shed,
        waiting=still_waiting,
        settled=settled,
        members=frozenset(members),
        look_again=look_again,
    )


def next_look_s(unsettled_for_s: float | None, timing: Timing) -> float:
    """The pause before the next look: short while leases change hands, unless that drags on."""
    if unsettled_for_s is None or unsettled_for_s > 2 * timing.lease_ttl_s:
        return timing.balance_interval_s
    return timing.hurry_s


def expires_in_s(snapshot: Snapshot, me: str) -> float:
    """Until the first lease of another expires, unless it is renewed; so that nobody has to wait
    for the next look who waits for a dead owner's leases. Never, if there is none."""
    others = (lease for lease in snapshot.leases if lease.live and lease.owner != me)
    return min((lease.ttl_s - lease.age_s for lease in others), default=math.inf)


def _holder(lease: Lease, timing: Timing) -> str | None:
    """Whose it is, or who may still come for it: the one it was offered to, or an owner that is
    late but alive."""
    if lease.live or _unowned_s(lease) < timing.patience_s:
        return lease.owner or lease.offered_to
    return None


def _unowned_s(lease: Lease) -> float:
    return lease.age_s if lease.owner is None else lease.age_s - lease.ttl_s


def _overdue(lease: Lease, seen_for_s: float, timing: Timing, *, cooperative: bool) -> bool:
    """Whether waiting for another member to act has to end.

    An owner without heartbeat belongs to another kind of processor, which steals and expects to be
    stolen from. An unowned lease must have been seen before: after a long night without instances
    the first one up leaves the others their share.
    """
    if lease.live:
        return not cooperative or seen_for_s >= timing.shed_timeout_s
    return _unowned_s(lease) >= timing.patience_s and seen_for_s >= timing.hurry_s / 2


def spread(snapshot: Snapshot, known: Sequence[Partition]) -> int:
    """The difference between the most and the fewest partitions a live member owns."""
    counts = dict.fromkeys(live_members(snapshot), 0)
    for lease in leasable(snapshot, known):
        if lease.live and lease.owner in counts:
            counts[lease.owner] += 1
    return max(counts.values()) - min(counts.values()) if counts else 0
