"""One parser for what others wrote. Python's own JSON says what is right, where it is strict."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.strict_json import UNREADABLE, Fields, is_field, loads

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(value=VALUES, ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_python_writes_is_read_as_it_was(value: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert loads(text) == value
    assert loads(text.encode()) == value


@given(text=st.binary(max_size=20) | st.text(max_size=20).map(str.encode))
def test_what_is_no_json_to_python_is_none_here(text: bytes) -> None:
    try:
        wanted = json.loads(text.decode(), parse_constant=refuse, parse_float=finite)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011
            loads(text)
    else:
        assert loads(text) == wanted


def refuse(constant: str) -> None:
    raise ValueError(constant)


def finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


@pytest.mark.parametrize("text", [b"NaN", b"[1e999]", b'"\\ud83d"', b"\xff", b"[" * 100_000])
def test_what_no_value_can_stand_for_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        loads(text)


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abc"), SCALARS), max_size=8),
    names=st.sets(st.sampled_from("abcd")),
)
def test_fields_are_those_of_the_whole_object_and_the_last_of_a_name_counts(
    pairs: list[tuple[str, Any]], names: set[str]
) -> None:
    text = "{" + ",".join(f"{json.dumps(n)}:{json.dumps(v)}" for n, v in pairs) + "}"
    whole = dict(pairs)
    assert loads(text) == whole
    found = Fields(sorted(names)).read(text.encode())
    assert found == {name: whole.get(name) for name in names}


@pytest.mark.parametrize("text", [b"[]", b"null", b"1", b"", b'{"a": 1} {}', b'{"b": "\xff"}'])
def test_fields_are_read_from_objects_only(text: bytes) -> None:
    with pytest.raises(UNREADABLE):
        Fields(["a"]).read(text)


@given(name=st.text(max_size=5))
def test_a_field_has_any_name_without_quotes_backslashes_and_control_characters(name: str) -> None:
    if is_field(name):
        assert Fields([name]).read(json.dumps({name: 5}).encode()) == {name: 5}
    else:
        assert any(each in '"\\' or each < " " for each in name)
