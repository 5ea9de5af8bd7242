"""Values out of JSON to a column of one type, and which of them do not fit.

A column is built from all values at once. Only where one of them is not what it should be, each is
looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from itertools import chain
from math import isinf
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Bad = npt.NDArray[np.bool_]
Fit = Callable[[Any], Any]
"""Raises for a value that does not fit."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
FIRST_US = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_US = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
NO_FIT = (TypeError, ValueError, OverflowError)


def column(values: Sequence[Any], kind: Any) -> tuple[pl.Series, Bad | None]:
    """Null where a value is None or does not fit. No array: all fit."""
    if pa.types.is_list(kind):
        return _lists(values, kind)
    if pa.types.is_struct(kind):
        return _structs(values, kind)
    leaf = _leaf(kind)
    if leaf.refused_by_polars or leaf.direct.issuperset(map(type, values)):
        with suppress(*NO_FIT):  # another type, or a number out of range
            return pl.Series(values, dtype=leaf.dtype, strict=True), None
    others = [place for place, of in enumerate(map(type, values)) if of not in leaf.direct]
    try:
        found, bad = _fitted(values, leaf.fit, others)
        return pl.Series(found, dtype=leaf.dtype, strict=True), bad
    except NO_FIT:
        found, bad = _fitted(values, leaf.fit, range(len(values)))
        return pl.Series(found, dtype=leaf.dtype, strict=True), bad


def _fitted(values: Sequence[Any], fit: Fit, places: Sequence[int]) -> tuple[list[Any], Bad | None]:
    """All values, with those in these places made fit."""
    found, bad = list(values), []
    for place in places:
        value = found[place]
        try:
            found[place] = None if value is None else fit(value)
        except NO_FIT:
            found[place] = None
            bad.append(place)
    return found, _mask(len(found), bad)


def _lists(values: Sequence[Any], kind: Any) -> tuple[pl.Series, Bad | None]:
    values, bad = _of_type(values, list)
    sizes = np.fromiter((len(value or ()) for value in values), np.int64, len(values))
    inner, inner_bad = column(list(chain.from_iterable(filter(None, values))), kind.value_type)
    if inner_bad is not None:
        found = np.zeros(len(values), np.bool_)
        found[np.repeat(np.arange(len(values)), sizes)[inner_bad]] = True
        bad = _either(bad, found)
    ends = np.concatenate(([0], np.cumsum(sizes)))
    nulls = pa.array([value is None for value in values] + [False])
    places = pa.array(ends, pa.int64(), mask=nulls.to_numpy(zero_copy_only=False))
    return pl.Series(pa.LargeListArray.from_arrays(places, inner.to_arrow())), bad


def _structs(values: Sequence[Any], kind: Any) -> tuple[pl.Series, Bad | None]:
    values, bad = _of_type(values, dict)
    inner = []
    for place in range(kind.num_fields):
        field = kind.field(place)
        of_field = [None if value is None else value.get(field.name) for value in values]
        found, inner_bad = column(of_field, field.type)
        inner.append(found.alias(field.name))
        bad = _either(bad, inner_bad)
    valid = pl.Series([value is not None for value in values], dtype=pl.Boolean)
    struct = pl.DataFrame(inner).to_struct()
    return pl.select(pl.when(valid).then(struct)).to_series(), bad


def _of_type(values: Sequence[Any], wanted: type) -> tuple[Sequence[Any], Bad | None]:
    if {wanted, type(None)}.issuperset(map(type, values)):
        return values, None

    def fit(value: Any) -> Any:
        if type(value) is not wanted:
            raise TypeError
        return value

    return _fitted(values, fit, range(len(values)))


@dataclass(frozen=True, slots=True)
class _Leaf:
    dtype: pl.DataType
    direct: frozenset[type]
    """Values of these types, if they are in range, are taken as they are."""
    fit: Fit
    refused_by_polars: bool = False
    """Polars itself refuses values of all other types."""


NONE = type(None)
INTS = {8: pl.Int8(), 16: pl.Int16(), 32: pl.Int32(), 64: pl.Int64()}


@cache
def _leaf(kind: Any) -> _Leaf:
    if pa.types.is_boolean(kind):
        return _Leaf(pl.Boolean(), frozenset({bool, NONE}), _bool, refused_by_polars=True)
    if pa.types.is_integer(kind):
        fit = partial(_int, bits=kind.bit_width)
        return _Leaf(INTS[kind.bit_width], frozenset({int, NONE}), fit)
    if pa.types.is_float64(kind):
        return _Leaf(pl.Float64(), frozenset({int, float, NONE}), _float)
    if pa.types.is_float32(kind):
        return _Leaf(pl.Float32(), frozenset({NONE}), _float32)
    if pa.types.is_timestamp(kind):
        return _Leaf(pl.Datetime("us", "UTC"), frozenset({NONE}), _timestamp)
    if pa.types.is_date(kind):
        return _Leaf(pl.Date(), frozenset({NONE}), _date)
    return _Leaf(pl.String(), frozenset({str, NONE}), _text, refused_by_polars=True)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _int(value: Any, bits: int) -> int:
    if type(value) is not int or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _float32(value: Any) -> float:
    found = _float(value)
    with np.errstate(over="ignore"):
        if isinf(np.float32(found)):
            raise OverflowError
    return found


def _timestamp(value: Any) -> int:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    microseconds = (found - EPOCH) // MICROSECOND
    if not FIRST_US <= microseconds <= LAST_US:
        raise OverflowError
    return microseconds


def _date(value: Any) -> date:
    return date.fromisoformat(value)


def _text(value: Any) -> str:
    return value if type(value) is str else msgspec.json.encode(value).decode()


def _mask(size: int, places: list[int]) -> Bad | None:
    if not places:
        return None
    found = np.zeros(size, np.bool_)
    found[places] = True
    return found


def _either(one: Bad | None, other: Bad | None) -> Bad | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other
