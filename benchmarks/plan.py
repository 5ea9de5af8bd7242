"""How long an instance thinks about who should own what, and how that grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.row import Row
from leasehold.core.balance import Assign, by_count, by_weight, plan
from leasehold.core.model import Checkpoint, Group, Lease, Member, Partition, Snapshot
from leasehold.settings import Timing

SIZES = ((100, 5), (1_000, 50), (10_000, 50), (10_000, 500))
TARGET_MS = 100.0


def run() -> Iterator[Row]:
    for partitions, members in SIZES:
        for name, assign in (("by count", by_count), ("by weight", by_weight())):
            largest = partitions == SIZES[-1][0] and members == SIZES[-1][1]
            yield Row(
                what=f"{name}, {partitions:,} partitions, {members} members",
                value=_median_ms(partitions, members, assign),
                unit="ms",
                target=TARGET_MS if largest else None,
            )


def _median_ms(partitions: int, members: int, assign: Assign) -> float:
    group = Group(namespace="n", feed="f", name="g")
    look = Snapshot(
        leases=tuple(
            Lease(
                group=group,
                partition=f"{n:05d}",
                checkpoint=Checkpoint(next_sequence=0),
                owner=f"i{n % (members - 1)}",
                epoch=1,
                weight=1.0 + n % 97,
            )
            for n in range(partitions)
        ),
        members=tuple(Member(instance=f"i{n}", incarnation="1") for n in range(members)),
    )
    known = [Partition(id=lease.partition) for lease in look.leases]
    held = [lease.partition for lease in look.leases if lease.owner == "i0"]
    times = []
    for _ in range(7):
        began = time.perf_counter()
        plan(look, known, me="i0", held=held, waiting={}, now=0.0, timing=Timing(), assign=assign)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
