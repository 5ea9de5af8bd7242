"""The measurement measures. What it finds is for people to judge, not for a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import failover


def test_every_partition_of_a_killed_instance_is_waited_for(tmp_path: Path) -> None:
    # Long enough that a busy machine keeps its leases until one instance is killed.
    settings = {"lease_ttl_s": 6.0, "balance_interval_s": 0.5}
    case = replace(failover.CASES[1], kills=1, settings=settings)
    longest, median, documented = failover.run([f"sqlite:///{tmp_path}/leases.db"], [case])
    # A third of sixteen.
    assert longest.what.endswith(("longest of 5 partitions", "longest of 6 partitions"))
    assert longest.value >= median.value > 0.0
    assert longest.target == 3.0
    assert "not measured" in documented.what
