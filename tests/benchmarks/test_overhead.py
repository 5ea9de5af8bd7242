from pathlib import Path

import pytest

from benchmarks import overhead
from benchmarks.overhead import HANDLERS, SPLIT_AT, run


def test_every_way_is_measured_beside_the_bare_loop(tmp_path: Path) -> None:
    rows = list(
        run(
            events=1_600,
            batch_events=100,
            partitions=(1, SPLIT_AT),
            sizes=(50,),
            rounds=1,
            folder=tmp_path,
        )
    )
    rates = {row.what: row for row in rows if row.unit == "events/s"}
    for partitions in ("1 partition", f"{SPLIT_AT} partitions"):
        assert rates[f"{partitions}, bare loop of read_arrow"].ratio is None
        assert all(rates[f"{partitions}, {name}"].ratio for name in HANDLERS)
    assert rates[f"{SPLIT_AT} partitions, on_batch, max_events=50"].ratio
    assert len(rates) == 2 * (1 + len(HANDLERS)) + 1
    assert all(row.value > 0 for row in rates.values())
    assert len([row for row in rows if "CPU" in row.unit]) == 9
    assert list(tmp_path.iterdir()) == []


def test_a_lost_event_fails_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = overhead._filled

    def short(path: Path, events: int, batch_events: int, partitions: int) -> object:
        return filled(path, events - batch_events, batch_events, partitions)

    monkeypatch.setattr(overhead, "_filled", short)
    with pytest.raises(AssertionError, match="300 events were handled of 400 sent"):
        list(run(events=400, batch_events=100, partitions=(1,), rounds=1, folder=tmp_path))
