from pathlib import Path

from benchmarks.container import BATCH, run


def test_writes_reads_and_splits_are_measured(tmp_path: Path) -> None:
    rows = {row.what: row for row in run(singles=20, many=1_000, large=2_000, folder=tmp_path)}
    for versions in ("newest only", "all versions kept"):
        for what in (
            "in, one by one",
            f"in, {BATCH} at once",
            f"changed, {BATCH} at once",
            "out, latest",
        ):
            assert rows[f"{what}, {versions}"].value > 0
    assert rows["out, all"].unit == "changes/s"
    split = rows["a split, 2,000 documents"]
    assert (split.unit, split.value > 0) == ("ms", True)
    assert split.ratio is not None
    assert rows["counting what remains, 2,000 documents"].value > 0
    assert list(tmp_path.iterdir()) == []
