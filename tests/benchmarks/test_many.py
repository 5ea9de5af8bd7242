from pathlib import Path

from benchmarks.many import run


def test_idle_and_busy_partitions_are_measured_beside_what_they_cost_before(tmp_path: Path) -> None:
    rows = list(run(partitions=20, events=30, idle_s=0.5, settle_s=0.5, folder=tmp_path))
    found = {(row.what, row.unit): row for row in rows}
    assert len(found) == len(rows) == 4
    assert found["20 partitions, idle", "% of a core"].former == 62
    assert found["20 partitions, idle", "% of a core"].target == 5
    assert found["20 partitions, idle", "threads"].former == 1005
    assert found["20 partitions, busy", "events/s"].value > 0
    assert list(tmp_path.iterdir()) == []
