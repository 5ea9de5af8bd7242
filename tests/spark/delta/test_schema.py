"""Rows that do not go with a table's are refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from support.sink_world import DeltaWorld, Frame

from leasehold.core.ranges import Range
from leasehold.errors import BadInput, LeaseholdError, SinkUnavailable
from leasehold.spark import DeltaSink, SparkBatch


def write(folder: Path, values: Any, kind: pa.DataType, **settings: Any) -> DeltaSink:
    """One row an event, with one column of this type."""
    world, sink = DeltaWorld(folder), DeltaSink(folder / "table", **settings)
    reader = world.reader("one")
    first = DeltaTable(sink.url).count() if DeltaTable.is_deltatable(sink.url) else 0
    rows = pa.table(
        {"partition": pa.array(["0"] * len(values)), "value": pa.array(values, kind)},
    )
    batch = SparkBatch(
        group=reader.group,
        instance="i",
        identity=reader.feed.identity,
        ranges=(Range(partition="0", first=first, end=first + len(values)),),
        _held=lambda _: True,
    )
    sink.write(Frame(rows), batch)  # type: ignore[arg-type]
    return sink


PLACE = pa.struct([("a", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            pa.struct([("a", pa.string()), ("b", pa.float64())]),
            {"a": "x", "b": 1.0},
            r"value\.a \(integer / string\), value\.b \(not in the table / double\)",
        ),
        (pa.struct([("b", PLACE)]), {"b": {"a": 1}}, r"value\.b .*struct<a:integer>\)"),
        (pa.list_(PLACE), [{"a": 1}], r"value \(struct<a:integer> / array<struct<a:integer>>\)"),
        (pa.string(), "x", r"value \(struct<a:integer> / string\)"),
    ],
)
def test_fields_within_fields_that_differ_are_named(
    tmp_path: Path, kind: pa.DataType, value: Any, message: str
) -> None:
    write(tmp_path, [{"a": 1}], PLACE)
    with pytest.raises(SinkUnavailable, match=message):
        write(tmp_path, [value], kind)
    write(tmp_path, [{"a": 2}], PLACE)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (pa.list_(pa.int32()), pa.list_(pa.int64()), r"value\.element \(integer / long\)"),
        (
            pa.map_(pa.string(), pa.int32()),
            pa.map_(pa.string(), pa.string()),
            r"value\.value \(integer / string\)",
        ),
    ],
)
def test_elements_that_differ_are_named(
    tmp_path: Path, there: pa.DataType, here: pa.DataType, message: str
) -> None:
    write(tmp_path, [None], there)
    with pytest.raises(SinkUnavailable, match=message):
        write(tmp_path, [None], here)


def strict_table(folder: Path, kind: pa.DataType, **settings: Any) -> None:
    """As another writer may have made it: its values are never null."""
    write(folder / "like", [None], kind, **settings)
    fields = pa.schema(DeltaTable(str(folder / "like" / "table")).schema().to_arrow())
    strict = pa.schema([pa.field(f.name, f.type, nullable=f.name != "value") for f in fields])
    DeltaTable.create(str(folder / "table"), Schema.from_arrow(strict), **settings)


def test_null_is_refused_where_the_table_takes_none(tmp_path: Path) -> None:
    strict_table(tmp_path, pa.int64())
    with pytest.raises(ValueError, match="'value' with null values"):
        write(tmp_path, [None], pa.int64())
    assert write(tmp_path, [2], pa.int64()).rows().count_rows() == 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.decimal128(9, 2), PLACE, pa.list_(pa.int64())])
def test_a_column_that_cannot_make_folders_is_refused_by_name(
    tmp_path: Path, kind: pa.DataType
) -> None:
    with pytest.raises(BadInput, match="partition_by: column value is of type"):
        write(tmp_path, [None], kind, partition_by=["value"])


@pytest.mark.parametrize("value", ["", None])
def test_a_folder_s_value_that_a_foreign_table_does_not_take_breaks_nothing(
    tmp_path: Path, value: str | None
) -> None:
    strict_table(tmp_path, pa.string(), partition_by=["value"])
    with pytest.raises(ValueError, match=r"value is null or empty|'value' with null"):
        write(tmp_path, [value], pa.string(), partition_by=["value"])
    assert write(tmp_path, ["b"], pa.string(), partition_by=["value"]).rows().count_rows() == 1


def test_a_column_added_by_another_writer_is_named(tmp_path: Path) -> None:
    sink = write(tmp_path, [1], pa.int64())
    more = pa.table({"partition": ["0"], "value": pa.array([1]), "extra": ["x"]})
    write_deltalake(sink.url, more, mode="append", schema_mode="merge")
    with pytest.raises(LeaseholdError, match=r"extra \(string / not in the rows\)"):
        write(tmp_path, [2], pa.int64())
