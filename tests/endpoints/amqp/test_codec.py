"""Values survive being encoded, and no bytes of a peer do harm."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.endpoints.amqp.codec import (
    DEPTH_MAX,
    AmqpArray,
    Byte,
    DecodeError,
    Described,
    Float32,
    Int,
    Opaque,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
    skip,
)


def whole(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(kind)


TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    whole(UByte, 8, False),
    whole(UShort, 16, False),
    whole(UInt, 32, False),
    whole(ULong, 64, False),
    whole(Byte, 8, True),
    whole(Short, 16, True),
    whole(Int, 32, True),
    whole(int, 64, True),
    whole(Timestamp, 64, True),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float32),
    st.uuids().map(lambda each: uuid.UUID(bytes=each.bytes)),
    st.binary(max_size=300),
    TEXT,
    TEXT.map(Symbol),
    st.binary(min_size=16, max_size=16).map(lambda data: Opaque(0x94, data)),
    st.lists(TEXT, max_size=5).map(AmqpArray),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(TEXT, inner, max_size=5),
        st.tuples(st.one_of(whole(ULong, 64, False), TEXT.map(Symbol)), inner).map(
            lambda pair: Described(*pair)
        ),
    ),
    max_leaves=20,
)


@given(VALUES)
def test_a_value_is_read_as_it_was_written_and_with_its_type(value: Any) -> None:
    data = encode(value)
    read, end = decode(data + b"more")
    assert (read, end) == (value, len(data))
    assert type(read) is type(value)
    assert skip(data + b"more", 0) == len(data)
    assert decode(encode(read))[0] == value


@given(VALUES, st.data())
def test_a_value_that_is_cut_off_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DecodeError):
        decode(encoded[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    for read in (decode, lambda data: skip(data, 0)):
        try:
            read(data)
        except DecodeError:
            continue


@given(VALUES, st.data())
def test_a_value_with_a_wrong_byte_is_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        read, _ = decode(bytes(encoded))
        encode(read)
    except DecodeError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00" * 5000, id="descriptors without end"),
        pytest.param(b"\xc0\x02\x01" * 5000, id="lists without end"),
        pytest.param(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", id="4 billion nulls in 10 bytes"),
        pytest.param(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff", id="a list of 4 billion"),
        pytest.param(b"\xb0\xff\xff\xff\xffx", id="4 GB of binary"),
        pytest.param(b"\xc1\x03\x02\x45\x40", id="a map with a list as key"),
        pytest.param(b"\xc1\x02\x01\x40", id="a map with a key only"),
        pytest.param(b"\xa1\x01\xff", id="text that is no UTF-8"),
        pytest.param(b"\xc0\x03\x01\x40\x40", id="a list that is longer than its elements"),
    ],
)
def test_what_would_take_memory_or_depth_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_as_many_levels_as_a_client_needs_are_read() -> None:
    value: Any = "inside"
    for _ in range(DEPTH_MAX):
        value = [value]
    assert decode(encode(value))[0] == value
    with pytest.raises(DecodeError, match="too deeply"):
        decode(encode([value]))


def test_arrays_of_any_type_are_passed_on_as_they_came() -> None:
    numbers = b"\xe0\x06\x02\x71\x00\x00\x00\x05"  # cut short below
    with pytest.raises(DecodeError):
        decode(numbers)
    numbers = b"\xe0\x0a\x02\x71\x00\x00\x00\x05\x00\x00\x00\x06"
    read, end = decode(numbers)
    assert (list(read), end) == ([5, 6], len(numbers))
    assert decode(encode(read))[0] == [5, 6]
