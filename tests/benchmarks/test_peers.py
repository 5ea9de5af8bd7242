"""The comparison works, and both find the same. Its figures are for people to judge."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from support.kafka import Kafka

from benchmarks.peers import bench
from benchmarks.peers.contenders import PLAIN_TUNED, leasehold

pytestmark = pytest.mark.takes_s(35)

SIZES = bench.Sizes(
    partitions=4,
    commit_s=1.0,
    members=(1, 2, 1),
    still_s=4.0,
    calm_s=2.0,
    killed_of=2,
    kills=1,
    events=3000,
    tries=1,
)


def test_leasehold_and_a_consumer_group_side_by_side(kafka: Kafka, tmp_path: Path) -> None:
    ours = leasehold(f"sqlite:///{tmp_path}/leases.db", "SQLite", "Leasehold")
    quick = {**ours.settings, "lease_ttl_s": 5.0, "balance_interval_s": 0.5}
    plain = {**PLAIN_TUNED.settings, "session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
    compared = [replace(ours, settings=quick), replace(PLAIN_TUNED, settings=plain)]
    topics = [kafka.topic(partitions=SIZES.partitions) for _ in range(2)]

    found = bench.measure(kafka.brokers, topics, tmp_path, compared, sizes=SIZES)

    for each in compared:
        planned, killed = found.planned[each.name], found.killed[each.name]
        assert planned.never == killed.never == 0, f"{each.name} lost events"
        join, leave = planned.changes
        assert (join.spread, leave.spread) == (0, 0)
        assert join.moves >= join.fewest == 2
        assert leave.moves >= leave.fewest == 2
        assert len(killed.waits_s) == len(killed.twice) == 1
        assert 0.0 < killed.waits_s[0] < inf, f"{each.name} left partitions behind"
        assert found.events_per_cpu_s[each.name] > 0
        assert found.columns_per_cpu_s[each.name] > 0
    assert len(list(bench.rows(compared, found))) == 2 * (2 + 2 * 4 + 1 + 2)
