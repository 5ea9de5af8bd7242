"""JSON to columns. Python's own JSON says what is right."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.core.strict_json import Fields
from leasehold.spark.reading import decode as decode_module
from leasehold.spark.reading.decode import PIECE_ROWS, Decoder

FIELDS: dict[str, Any] = {
    "text": pa.string(),
    "small": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "flag": pa.bool_(),
    "list": pa.list_(pa.int32()),
    "inner": pa.struct([("a", pa.int64()), ("b", pa.string())]),
}
BAD = "bad"
BITS = {pa.int8(): 8, pa.int32(): 32, pa.int64(): 64}


def decode(bodies: list[bytes | None], **fields: Any) -> tuple[pl.DataFrame, list[bool]]:
    frame, bad = Decoder(pa.schema(fields or FIELDS)).decode(pa.array(bodies, pa.binary()))
    assert frame.height == len(bad) == len(bodies)
    return frame, bad.tolist()


def decode_one(body: bytes, kind: Any) -> Any:
    frame, bad = decode([body], v=kind)
    return BAD if bad[0] else frame["v"].to_list()[0]


def expected(body: bytes) -> dict[str, Any] | str:
    try:
        found = json.loads(body.decode(), parse_constant=refuse, parse_float=finite)
        json.dumps(found, ensure_ascii=False).encode()
        if not isinstance(found, dict):
            return BAD
        return {name: cast(found.get(name), kind) for name, kind in FIELDS.items()}
    except (ValueError, OverflowError):
        return BAD


def refuse(constant: str) -> None:
    raise ValueError(constant)


def finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def cast(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    good = type(value)
    if kind == pa.string():
        return value if good is str else ...  # any other JSON, as text
    if kind in BITS:
        most = 2 ** (BITS[kind] - 1)
        if good is int and -most <= value < most:
            return value
    elif kind == pa.float64():
        if good in (int, float):
            return float(value)
    elif kind == pa.bool_():
        if good is bool:
            return value
    elif pa.types.is_list(kind):
        if good is list:
            return [cast(each, kind.value_type) for each in value]
    elif good is dict:
        return {each.name: cast(value.get(each.name), each.type) for each in kind}
    raise ValueError(value)


def same(found: Any, wanted: Any) -> bool:
    if wanted is ...:
        return isinstance(found, str)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[n], wanted[n]) for n in wanted)
    return bool(found == wanted)


TEXTS = st.text(max_size=6)
NUMBERS = st.one_of(
    st.integers(-130, 130),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), 2**64]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(["a", "b"])), inner, max_size=3),
    ),
    max_leaves=5,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "small": st.integers(-128, 127),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "list": st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "inner": st.fixed_dictionaries({}, optional={"a": st.integers(-9, 9), "b": TEXTS}),
        "other": VALUES,
    },
)
ANY = st.dictionaries(st.one_of(st.sampled_from([*FIELDS]), TEXTS), VALUES, max_size=4)


def written(value: Any, ascii: bool, indent: int | None) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    return text.encode("utf-8", "surrogatepass")


def object_of(pairs: list[tuple[str, Any]], escaped: bool, inner: bool) -> bytes:
    """With the same name more than once, written in one way or another, at the top or below."""
    names = ["".join(f"\\u{ord(c):04x}" for c in n) if escaped else n for n, _ in pairs[::2]]
    names += [n for n, _ in pairs[1::2]]
    values = [v for _, v in pairs[::2]] + [v for _, v in pairs[1::2]]
    fields = (f'"{n}": {json.dumps(v)}' for n, v in zip(names, values, strict=True))
    text = "{" + ", ".join(fields) + "}"
    return f'{{"inner": {text}, "int": 1}}'.encode() if inner else text.encode()


REPEATED = st.builds(
    object_of,
    st.lists(st.tuples(st.sampled_from([*FIELDS, "a", "b"]), VALUES), max_size=6),
    st.booleans(),
    st.booleans(),
)
GOOD_BODIES = st.builds(written, FITTING, st.booleans(), st.sampled_from([None, None, 1]))
BODIES = st.one_of(
    GOOD_BODIES,
    st.builds(written, ANY | VALUES, st.booleans(), st.sampled_from([None, 1])),
    st.binary(max_size=12),
    REPEATED,
    st.builds(lambda body, at: body[: at % (len(body) + 1)], GOOD_BODIES, st.integers(0, 99)),
    st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b'{"int": 1}{"int": 2}',
            b'{"int": 1}\n{"int": 2}',
            b'{"int": 01}',
            b'{"double": NaN}',
            b'{"double": 1e999}',
            b'{"text": "\\ud83d\\ude00"}',
            b'{"text": "\\ud83d"}',
            b'{"text": "\xff"}',
            b'\xef\xbb\xbf{"int": 1}',
            b'\n{"int": 1}\n',
            b'{"int": 1, "other": "\xff"}',
            b'{"int": 1, "other": "\\ude00"}',
            b'{"int": 1, "other": "\n"}',
            b'{"int": 1,}',
            b'{"int": 1.0}',
            b'{"int": 1e3}',
            b'{"int": 1}\x00',
            b'{"text": "' + b"x" * 5000 + b'"}',
            b'{"other": ' + b"[" * 90 + b"]" * 90 + b"}",
        ]
    ),
)


@given(bodies=st.lists(BODIES, max_size=30))
@example(bodies=[b'{"int": 1}', b"\xff", b'{"int": 3}'] * 20)
@example(bodies=[b'{\n"int": 1}', b'{"text": "\\\\ud83d"}'] * 10)
def test_good_rows_have_the_values_that_json_has_and_the_others_are_bad(
    bodies: list[bytes],
) -> None:
    wanted = [expected(body) for body in bodies]
    frame, bad = decode(list(bodies))
    assert bad == [each == BAD for each in wanted]
    for row, values in zip(frame.iter_rows(named=True), wanted, strict=True):
        if values == BAD:
            assert set(row.values()) == {None}
        else:
            assert same(row, values)


@given(bodies=st.lists(BODIES, min_size=2, max_size=20))
def test_a_row_decodes_alike_alone_and_among_others(bodies: list[bytes]) -> None:
    frame, bad = decode(list(bodies))
    for row, body in enumerate(bodies):
        alone, alone_bad = decode([body])
        assert alone_bad == [bad[row]]
        assert alone.row(0) == frame.row(row)


def test_columns_have_the_types_that_were_asked_for() -> None:
    frame, _ = decode([b"{}", b"no"])
    kinds = {name: frame.schema[name] for name in ("small", "int", "double", "list")}
    assert kinds == {
        "small": pl.Int8,
        "int": pl.Int32,
        "double": pl.Float64,
        "list": pl.List(pl.Int32),
    }
    assert decode([])[0].schema == frame.schema


ROWS = 2 * PIECE_ROWS + 1


@pytest.mark.parametrize("position", [0, 1, PIECE_ROWS - 1, PIECE_ROWS, ROWS - 1])
def test_one_bad_row_among_many_is_found_at_any_place(position: int) -> None:
    bodies: list[bytes | None] = [b'{"int": %d}' % n for n in range(ROWS)]
    bodies[position] = b"{"
    frame, bad = decode(bodies)
    assert [row for row, is_bad in enumerate(bad) if is_bad] == [position]
    values = list[int | None](range(ROWS))
    values[position] = None
    assert frame["int"].to_list() == values


def test_a_null_body_is_bad_like_an_empty_one() -> None:
    assert decode([b'{"int": 1}', None, b""])[1] == [False, True, True]


def test_a_body_of_a_megabyte_is_one_row() -> None:
    long = "x" * (1 << 20)
    frame, bad = decode([json.dumps({"text": long}).encode(), b'{"int": 2}'])
    assert frame["text"][0] == long
    assert frame["int"].to_list() == [None, 2]
    assert bad == [False, False]


def test_json_that_is_nested_too_deeply_is_bad_and_harms_nobody() -> None:
    deep = b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert decode([b"{}", deep, b"{}"])[1] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (b'"2026-01-31T12:00:00.5+02:00"', datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)),
        (b'"2026-01-31 12:00:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (b'"2026-01-31"', datetime(2026, 1, 31, tzinfo=UTC)),
        (b"null", None),
        (b'"yesterday"', BAD),
        (b'"31/01/2026 12:00:00"', BAD),
        (b'"2026-02-30T12:00:00Z"', BAD),
        (b'"0001-01-01T00:00:00+14:00"', BAD),
        (b'"9999-12-31T23:59:59-14:00"', BAD),
        (b"1769860800", BAD),
    ],
)
def test_timestamps_are_iso_texts(text: bytes, value: Any) -> None:
    assert decode_one(b'{"v": ' + text + b"}", pa.timestamp("us", tz="UTC")) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"2026-01-31"', date(2026, 1, 31)),
        (b'"2026-02-31"', BAD),
        (b'"31.01.2026"', BAD),
        (b"5", BAD),
    ],
)
def test_dates_are_iso_texts(text: bytes, value: Any) -> None:
    assert decode_one(b'{"v": ' + text + b"}", pa.date32()) == value


def test_a_float_that_is_out_of_range_is_bad_and_not_infinite() -> None:
    assert decode_one(b'{"v": 1e39}', pa.float32()) == BAD
    assert decode_one(b'{"v": -1e309}', pa.float64()) == BAD
    assert math.isclose(decode_one(b'{"v": 3e38}', pa.float32()), 3e38, rel_tol=1e-6)


def test_a_string_takes_any_other_json_as_text() -> None:
    assert decode_one(b'{"v": true}', pa.string()) == "true"
    assert json.loads(decode_one(b'{"v": {"a": [1]}}', pa.string())) == {"a": [1]}


def test_bodies_may_be_a_slice_of_a_longer_column() -> None:
    column = pa.array([b"{", b'{"int": 1}', b'{"int": 2}', b"{"], pa.binary())
    frame, bad = Decoder(pa.schema(FIELDS)).decode(column.slice(1, 2))
    assert frame["int"].to_list() == [1, 2]
    assert not bad.any()


NESTED = pa.list_(pa.struct([("a", pa.list_(pa.int32())), ("b", pa.struct([("c", pa.string())]))]))
NESTED_VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-(2**32), 2**32), st.just("x")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({}, optional={"a": inner, "b": inner, "c": inner})
    ),
    max_leaves=8,
)


@given(values=st.lists(NESTED_VALUES | st.lists(NESTED_VALUES, max_size=3), max_size=8))
def test_lists_and_structs_within_each_other_fit_or_are_bad(values: list[Any]) -> None:
    frame, bad = decode([json.dumps({"v": value}).encode() for value in values], v=NESTED)
    for value, found, is_bad in zip(values, frame["v"].to_list(), bad, strict=True):
        try:
            wanted = cast(value, NESTED)
        except ValueError:
            assert (is_bad, found) == (True, None)
        else:
            assert not is_bad
            assert same_deep(found, wanted)


def same_deep(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same_deep, found, wanted))
    if isinstance(wanted, dict):
        return all(same_deep(found[name], wanted[name]) for name in wanted)
    return same(found, wanted)


def test_whether_a_body_fits_costs_no_more_than_reading_it_whatever_the_others_are() -> None:
    """A body that does not fit is looked at once, not again and again among ever fewer others."""
    rows = 1_000
    bodies = pa.array([b'{"int": 1}', b"{"] * (rows // 2), pa.binary())
    decoder, read = Decoder(pa.schema(FIELDS)), Counted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_module, "_fields", lambda names: read.of(Fields(names)))
        decoder.decode(bodies)
    assert read.count == rows


class Counted:
    count = 0

    def of(self, fields: Fields) -> Fields:
        row = fields.row

        def counted(body: bytes) -> Any:
            self.count += 1
            return row(body)

        fields.row = counted
        return fields
