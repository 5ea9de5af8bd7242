"""What Delta's log says about a file: the values of its folder, and bounds of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite, isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STATS_CHARS_MAX = 64
HIGHEST = "\U0010ffff"
WITHOUT_BOUNDS = (
    pa.types.is_nested,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)


def parts(
    table: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each folder, in their order, and the values that it stands for."""
    if not columns:
        yield {}, table
        return
    folders, values = _folders([table.column(name) for name in columns], table.num_rows)
    rest = table.drop_columns(list(columns))
    if len(values) > 1:
        few = len(values) <= 1 << 16  # for which numpy has a quicker way
        order = np.argsort(folders.astype(np.uint16) if few else folders, kind="stable")
        rest = rest.take(pa.array(order))
    ends = np.cumsum(np.bincount(folders, minlength=len(values)))
    for first, end, texts in zip([0, *ends[:-1].tolist()], ends.tolist(), values, strict=True):
        named = dict(zip(columns, texts, strict=True))
        for name, text in named.items():
            if text is None and not table.schema.field(name).nullable:
                raise ValueError(
                    f"column {name} is null or empty, and the table, which has a folder for each "
                    "of its values, takes neither"
                )
        yield named, rest.slice(first, end - first)


def _folders(
    columns: Sequence[pa.ChunkedArray], rows: int
) -> tuple[np.ndarray[Any, Any], list[tuple[str | None, ...]]]:
    """By row the number of its folder, and by folder its values. Values with the same text are in
    one folder, whatever their type thinks of their being equal, as of NaN."""
    numbers = np.zeros(rows, np.int64)
    values: list[tuple[str | None, ...]] = [()]
    for column in columns:
        distinct = column.combine_chunks().dictionary_encode()
        if isinstance(distinct, pa.ChunkedArray):
            distinct = distinct.combine_chunks()
        texts = [*map(text_of, distinct.dictionary.to_pylist()), None]
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        known, place = list(places), np.array([places[text] for text in texts], np.int64)
        codes = distinct.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
        found, numbers = _numbered(numbers * len(known) + place[codes], len(values) * len(known))
        values = [(*values[at // len(known)], known[at % len(known)]) for at in found.tolist()]
    return numbers, values


def _numbered(
    codes: np.ndarray[Any, Any], end: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The codes that there are, all below ``end``, and by row the place of its own among them."""
    if end > 4 * len(codes):
        return np.unique(codes, return_inverse=True)
    there = np.bincount(codes, minlength=end) > 0
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def text_of(value: Any) -> str | None:
    """A value of a folder as Delta writes it. An empty text is null there."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return _float_text(value)
        case datetime() if value.tzinfo is not None:
            return _zoned(value)
        case datetime():
            return value.isoformat(sep=" ", timespec="microseconds")
        case _:
            return str(value)


def _float_text(value: float) -> str:
    if isnan(value):
        return "NaN"
    if not isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _zoned(value: datetime) -> str:
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def stats(table: pa.Table) -> dict[str, Any]:
    """What lets readers pass over a file: bounds of its columns.

    All of them or none: where one file has no bounds of a column and others have, ``deltalake``
    takes nothing in it to be within any, and filters find none of its rows."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    try:
        for name in table.column_names:
            _add(name, table.column(name).combine_chunks(), (least, most, nulls))
    except (_Unbounded, OverflowError, ValueError):
        return {"numRecords": table.num_rows}
    return {
        "numRecords": table.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


class _Unbounded(Exception):
    """A value that Delta's statistics cannot say."""


def _add(name: str, values: Any, to: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        inner: tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {})
        for field, child in zip(kind, values.flatten(), strict=True):
            _add(field.name, child, inner)
        for side, found in zip(to, inner, strict=True):
            side[name] = found
        return
    if any(is_one(kind) for is_one in WITHOUT_BOUNDS):
        return
    to[2][name] = values.null_count
    if values.null_count == len(values):
        return
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(values)).as_py():
        raise _Unbounded  # to some readers NaN is above all others, to some it is not
    bounds = pc.min_max(values)
    to[0][name], to[1][name] = lower(bounds["min"].as_py()), upper(bounds["max"].as_py())


def lower(value: Any) -> Any:
    if isinstance(value, str):
        return value[:STATS_CHARS_MAX]
    return -0.0 if _is_zero(value) else _plain(value)


def upper(value: Any) -> Any:
    if isinstance(value, str) and len(value) > STATS_CHARS_MAX:
        if value[STATS_CHARS_MAX] == HIGHEST:
            raise _Unbounded
        return value[:STATS_CHARS_MAX] + HIGHEST
    return 0.0 if _is_zero(value) else _plain(value)


def _is_zero(value: Any) -> bool:
    """To some readers -0.0 is below 0.0."""
    return isinstance(value, float) and value == 0


def _plain(value: Any) -> Any:
    match value:
        case bool() | int() | float() | str():
            return value
        case datetime() if value.tzinfo is not None:
            return _zoned(value)
        case datetime():
            return value.isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case _:
            raise _Unbounded
