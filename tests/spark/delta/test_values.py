"""Whatever a column holds, as a folder's value or not: the rows come out as they went in, and
filters find them."""

from __future__ import annotations

import math
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sink_world import DeltaWorld, Frame

from leasehold.core.ranges import Range
from leasehold.spark import DeltaSink, SparkBatch
from leasehold.spark.delta.values import STATS_CHARS_MAX, parts, stats, text_of


def whole(bits: int) -> st.SearchStrategy[int]:
    top = 2 ** (bits - 1)
    return st.sampled_from([-top, -1, 0, top - 1]) | st.integers(-top, top - 1)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
long_texts = st.sampled_from(["x", "\U00020000", "\U0010ffff"]).map(
    lambda c: c * (STATS_CHARS_MAX + 5)
)
floats = st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324]) | st.floats()
naive = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts | long_texts,
    pa.bool_(): st.booleans(),
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): st.floats(width=32) | st.sampled_from([math.inf, math.nan, -0.0]),
    pa.float64(): floats,
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us", tz="UTC"): naive.map(lambda at: at.replace(tzinfo=UTC)),
    pa.timestamp("us"): naive,
}
PLAIN_ONLY: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.binary(): st.binary(max_size=3),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4, allow_nan=False),
    pa.list_(pa.int32()): st.lists(whole(32), max_size=2),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | whole(32), "b": st.none() | texts | long_texts}
    ),
}


def written(folder: Path, batches: list[pa.Array], *, folders: bool) -> DeltaSink:
    """A commit, and so a file or more, for each."""
    reader = DeltaWorld(folder).reader("one")
    sink = DeltaSink(folder / "table", partition_by=["value"] if folders else [])
    first = 0
    for values in batches:
        rows = pa.table({"partition": pa.array(["0"] * len(values)), "value": values})
        batch = SparkBatch(
            group=reader.group,
            instance="i",
            identity=reader.feed.identity,
            ranges=(Range(partition="0", first=first, end=first + len(values)),),
            _held=lambda _: True,
        )
        sink.write(Frame(rows), batch)  # type: ignore[arg-type]
        first += len(values)
    return sink


def told(value: Any) -> str:
    """NaN and either zero are themselves."""
    return repr(value)


@pytest.mark.parametrize("folders", [True, False], ids=["folders", "columns"])
@pytest.mark.parametrize("kind", [*KINDS, *PLAIN_ONLY], ids=str)
def test_rows_come_out_as_they_went_in_and_filters_find_them(
    kind: pa.DataType, folders: bool
) -> None:
    if folders and kind in PLAIN_ONLY:
        return  # refused, as test_delta_schema says
    values = st.none() | (KINDS | PLAIN_ONLY)[kind]

    @settings(max_examples=6)
    @given(st.lists(st.lists(values, min_size=1, max_size=5), min_size=1, max_size=3))
    def check(batches: list[list[Any]]) -> None:
        arrays = [pa.array(batch, kind) for batch in batches]
        wanted = [value for array in arrays for value in array.to_pylist()]
        if folders:
            wanted = [None if value == "" else value for value in wanted]
        with tempfile.TemporaryDirectory() as folder:
            sink = written(Path(folder), arrays, folders=folders)
            found = sink.rows().to_table(columns=["value"]).column(0).to_pylist()
            assert sorted(map(told, found)) == sorted(map(told, wanted))
            everything = QueryBuilder().register("t", sink.table()).execute("SELECT value FROM t")
            by_sql = pa.table(everything.read_all()).column(0).to_pylist()
            assert sorted(map(told, by_sql)) == sorted(map(told, wanted))
            _require_found(sink, kind, wanted)

    check()


def _require_found(sink: DeltaSink, kind: pa.DataType, wanted: list[Any]) -> None:
    field, rows = pc.field("value"), sink.rows()
    assert rows.count_rows(filter=field.is_null()) == wanted.count(None)
    if pa.types.is_nested(kind):
        return
    for value in wanted:
        if value is not None and value == value:  # noqa: PLR0124  # no filter finds NaN
            found = rows.count_rows(filter=field == pa.scalar(value, kind))
            # Arrow takes a NaN in a row group for equal to the others, if they are all equal.
            extra = sum(other != other for other in wanted)  # noqa: PLR0124
            assert 0 <= found - wanted.count(value) <= extra, value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00.000000Z"),
        (datetime(2026, 1, 2, 3), "2026-01-02 03:00:00.000000"),
        ("", None),
    ],
)
def test_a_folder_s_value_is_written_as_other_writers_of_delta_do(value: Any, text: Any) -> None:
    assert text_of(value) == text


def test_bounds_of_times_without_a_zone_are_not_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    at = datetime(2026, 1, 2, 3)
    found = stats(pa.table({"at": pa.array([at], pa.timestamp("us"))}))
    assert found["minValues"] == {"at": "2026-01-02T03:00:00.000000"}


def test_many_folders_get_their_own_rows() -> None:
    table = pa.table({"hour": pa.array([n % 500 for n in range(5000)]), "n": range(5000)})
    found = {
        values["hour"]: part.column("n").to_pylist() for values, part in parts(table, ["hour"])
    }
    assert found == {str(hour): list(range(hour, 5000, 500)) for hour in range(500)}


def test_folders_of_several_columns_keep_their_rows_in_order() -> None:
    table = pa.table({"a": [1, 2, 1, None], "b": ["x", "", "x", None], "n": [0, 1, 2, 3]})
    found = [(values, part.column("n").to_pylist()) for values, part in parts(table, ["a", "b"])]
    assert sorted(found, key=lambda each: each[1]) == [
        ({"a": "1", "b": "x"}, [0, 2]),
        ({"a": "2", "b": None}, [1]),
        ({"a": None, "b": None}, [3]),
    ]
