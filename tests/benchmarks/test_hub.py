import json
from pathlib import Path

from benchmarks.hub import BODY_BYTES, PLAIN, SPREAD, make_load, run


def test_every_way_is_measured_in_out_and_on_disk(tmp_path: Path) -> None:
    rows = run(events=2_000, batch_events=100, partitions=4, rounds=1, folder=tmp_path)
    ways = {row.what.split(", ", 1)[1] for row in rows}
    assert ways == {
        PLAIN,
        "EventData, a batch to a partition",
        "columns, a batch to a partition",
        "columns by key, 4 batches at once",
        SPREAD,
    }
    assert {row.what for row in rows} == {
        f"{what}, {way}" for what in ("in", "out", "on disk") for way in ways
    }
    assert all(row.value > 0 for row in rows)
    assert {row.what for row in rows if row.ratio is None} == {
        f"{what}, {PLAIN}" for what in ("in", "out", "on disk")
    }
    assert len([row for row in rows if row.target]) == 6
    assert list(tmp_path.iterdir()) == []


def test_the_load_is_json_of_the_stated_size() -> None:
    load = make_load(500, 100, 4)
    assert load.count == 500
    for batch in load.events:
        for event in batch:
            assert len(event.body) == BODY_BYTES
            assert json.loads(event.body)["home"].startswith("H")
