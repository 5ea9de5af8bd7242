from pathlib import Path

import pytest

from benchmarks.cosmos import JAVA, OURS, run

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(15)]


def test_both_processors_are_measured_on_one_endpoint(tmp_path: Path) -> None:
    rows = {row.what: row for row in run(changes=1_000, balancing=False, folder=tmp_path)}
    assert list(rows) == [
        f"{what}, {kind}"
        for kind in (JAVA, OURS)
        for what in ("one host drains", "cost, start included")
    ]
    assert all(row.value > 0 for row in rows.values())
    assert list(tmp_path.iterdir()) == []
