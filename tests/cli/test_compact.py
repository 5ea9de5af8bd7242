from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.command_line import leasehold

from leasehold.errors import BadInput
from leasehold.spark.delta.compact import compact


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    for _ in range(3):
        rows = pa.table({"a": [1, 2], "day": ["x", "x"]})
        write_deltalake(path, rows, mode="append", partition_by=["day"])
    return path


def test_small_files_become_one(table: Path) -> None:
    told = leasehold("compact", table, "--target-mb", 1, "--keep-hours", 1, "--sort-by", "a")
    assert told.stdout == "3 files before, 1 now; 0 old ones removed\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--target-mb", "0"), "--target-mb"),
        (("--target-mb", "-1"), "--target-mb"),
        (("--target-mb", "nan"), "--target-mb"),
        (("--target-mb", "1" * 30), "--target-mb"),
        (("--keep-hours", "0"), "keep_hours is 0; give 1 or more"),
        (("--keep-hours", "-1"), "keep_hours is -1; give 1 or more"),
        (("--keep-hours", "nan"), "keep_hours is nan; give 1 or more"),
        (("--keep-hours", "inf"), "keep_hours is inf; give 1 or more"),
        (("--keep-hours", "1e300"), "keep_hours is 1e+300; give 1 or more"),
        (("--sort-by", "b"), "sort_by: the table has no column 'b' to sort by; it has a"),
        (("--sort-by", "day"), "sort_by: the table has no column 'day' to sort by; it has a"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    table: Path, words: tuple[str, ...], says: str
) -> None:
    done = leasehold("compact", table, *words, ok=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert DeltaTable(table).version() == 2


def test_a_table_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("none", "file", "file/x", "f" * 300):
        assert name in leasehold("compact", tmp_path / name, ok=False).stderr


def test_a_damaged_table_gets_one_line(table: Path) -> None:
    for log in (table / "_delta_log").glob("*.json"):
        log.write_text("nonsense")
    said = leasehold("compact", table, ok=False).stderr
    assert said.startswith(f"error: {table} cannot be read now: ")
    assert said.count("\n") == 1


def test_a_table_that_takes_no_commit_is_named(table: Path) -> None:
    (table / "_delta_log" / "00000000000000000003.json").mkdir()
    said = leasehold("compact", table, ok=False).stderr
    assert said.startswith(f"error: {table} cannot be compacted now: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("target", [0, -1, 1 << 63])
def test_a_size_that_no_file_can_have_is_refused(table: Path, target: int) -> None:
    with pytest.raises(BadInput, match="target_bytes is"):
        compact(str(table), target_bytes=target)


def test_part_of_an_hour_to_keep_is_not_cut_off(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def vacuum(_: DeltaTable, retention_hours: int, **__: object) -> list[str]:
        kept.append(retention_hours)
        return []

    monkeypatch.setattr(DeltaTable, "vacuum", vacuum)
    compact(str(table), keep_hours=1.5)
    assert kept == [2]
