"""AMQP 1.0's types as bytes, and back.

What a peer sent is bounded before anything is made of it: nesting, and arrays whose elements take
no bytes. Types that Python lacks are small subclasses, so that a value is sent as it was received.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

DEPTH_MAX = 16
EMPTY_ITEMS_MAX = 16
"""Of an array whose elements take no bytes. Nothing else bounds their number: a message may hold
100,000 such arrays."""


class DecodeError(ValueError):
    """These bytes are no AMQP value."""


class Symbol(str):
    __slots__ = ()


class UByte(int):
    pass


class UShort(int):
    pass


class UInt(int):
    pass


class ULong(int):
    pass


class Byte(int):
    pass


class Short(int):
    pass


class Int(int):
    """32 bits; a plain ``int`` is a long."""


class Timestamp(int):
    """Milliseconds since 1970."""


class Float32(float):
    pass


class Opaque(NamedTuple):
    """A value that is passed on as it is: a character, a decimal number."""

    code: int
    data: bytes


class Described(NamedTuple):
    descriptor: Any
    value: Any


class AmqpArray(list[Any]):
    """``raw`` is how it was received; without it, the items are all symbols or all text."""

    def __init__(self, items: list[Any], raw: bytes = b"") -> None:
        super().__init__(items)
        self.raw = raw


class Raw(bytes):
    """Encoded already."""


NULL = b"\x40"


def encode(value: Any) -> bytes:
    made = _ENCODERS.get(type(value))
    if made is None:
        raise TypeError(f"no AMQP type for {type(value).__name__}")
    return made(value)


def _variable(code: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return struct.pack(">BI", code + 0x10, len(data)) + data


def compound(code: int, count: int, data: bytes) -> bytes:
    """A list (0xC0) or a map (0xC1) of elements that are encoded already."""
    if len(data) < 255 and count < 256:
        return bytes((code, len(data) + 1, count)) + data
    return struct.pack(">BII", code + 0x10, len(data) + 4, count) + data


def _list(items: Any) -> bytes:
    return compound(0xC0, len(items), b"".join(map(encode, items))) if items else b"\x45"


def _map(items: dict[Any, Any]) -> bytes:
    pairs = b"".join(encode(key) + encode(value) for key, value in items.items())
    return compound(0xC1, 2 * len(items), pairs)


def _array(items: AmqpArray) -> bytes:
    if items.raw:
        return items.raw
    code = 0xB3 if items and isinstance(items[0], Symbol) else 0xB1
    texts = [str(item).encode() for item in items]
    data = b"".join(struct.pack(">I", len(text)) + text for text in texts)
    return struct.pack(">BIIB", 0xF0, len(data) + 5, len(texts), code) + data


def _small(zero: bytes, short: int, wide: str, code: int) -> Callable[[int], bytes]:
    def encoded(number: int) -> bytes:
        if number == 0:
            return zero
        if 0 < number < 256:
            return bytes((short, number))
        return struct.pack(wide, code, number)

    return encoded


def _signed(short: int, wide: str, code: int) -> Callable[[int], bytes]:
    def encoded(number: int) -> bytes:
        if -128 <= number < 128:
            return struct.pack(">Bb", short, number)
        return struct.pack(wide, code, number)

    return encoded


def _fixed(layout: str, code: int) -> Callable[[Any], bytes]:
    return lambda number: struct.pack(layout, code, number)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: NULL,
    bool: lambda value: b"\x41" if value else b"\x42",
    Raw: bytes,
    UByte: _fixed(">BB", 0x50),
    UShort: _fixed(">BH", 0x60),
    UInt: _small(b"\x43", 0x52, ">BI", 0x70),
    ULong: _small(b"\x44", 0x53, ">BQ", 0x80),
    Byte: _fixed(">Bb", 0x51),
    Short: _fixed(">Bh", 0x61),
    Int: _signed(0x54, ">Bi", 0x71),
    int: _signed(0x55, ">Bq", 0x81),
    Timestamp: _fixed(">Bq", 0x83),
    Float32: _fixed(">Bf", 0x72),
    float: _fixed(">Bd", 0x82),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _variable(0xA0, value),
    str: lambda value: _variable(0xA1, value.encode()),
    Symbol: lambda value: _variable(0xA3, value.encode()),
    list: _list,
    tuple: _list,
    dict: _map,
    AmqpArray: _array,
    Opaque: lambda value: bytes((value.code,)) + value.data,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value that begins there, and where the next one would."""
    try:
        return _decode(data, at, 0)
    except (IndexError, struct.error) as error:
        raise DecodeError("the value is cut off") from error
    except UnicodeDecodeError as error:
        raise DecodeError("a text is not UTF-8") from error


def skip(data: bytes, at: int, depth: int = 0) -> int:
    """Where the value that begins there ends. It is not looked into."""
    if depth > DEPTH_MAX:
        raise DecodeError("values are nested too deeply")
    try:
        code = data[at]
        if code == 0:
            return skip(data, skip(data, at + 1, depth + 1), depth + 1)
        kind = code >> 4
        if kind in _WIDTHS:
            end = at + 1 + _WIDTHS[kind]
        elif kind in (0xA, 0xC, 0xE):
            end = at + 2 + data[at + 1]
        elif kind in (0xB, 0xD, 0xF):
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        else:
            raise DecodeError(f"type 0x{code:02x} is unknown")
    except IndexError as error:
        raise DecodeError("the value is cut off") from error
    if end > len(data):
        raise DecodeError("the value is cut off")
    return end


_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    code = data[at]
    if code == 0:
        if depth >= DEPTH_MAX:
            raise DecodeError("values are nested too deeply")
        descriptor, at = _decode(data, at + 1, depth + 1)
        value, at = _decode(data, at, depth + 1)
        return Described(descriptor, value), at
    return _decode_as(code, data, at + 1, depth)


def _decode_as(code: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """The value behind a constructor, which stands elsewhere for the elements of an array."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        layout, made = fixed
        return made(layout.unpack_from(data, at)[0]), at + layout.size
    if code in _CONSTANTS:
        value = _CONSTANTS[code]
        return (list(value) if value == [] else value), at
    kind = code >> 4
    if kind in (0xA, 0xB):
        return _variable_at(code, data, at)
    if kind in (0xC, 0xD, 0xE, 0xF):
        if depth >= DEPTH_MAX:
            raise DecodeError("values are nested too deeply")
        return _compound_at(code, data, at, depth + 1)
    if code in _OPAQUE:
        end = at + _OPAQUE[code]
        if end > len(data):
            raise DecodeError("the value is cut off")
        return Opaque(code, data[at:end]), end
    raise DecodeError(f"type 0x{code:02x} is unknown")


def _variable_at(code: int, data: bytes, at: int) -> tuple[Any, int]:
    if code < 0xB0:
        size, at = data[at], at + 1
    else:
        size, at = _U32.unpack_from(data, at)[0], at + 4
    end = at + size
    if end > len(data):
        raise DecodeError("the value is cut off")
    kind = code & 15
    if kind == 0:
        return data[at:end], end
    if kind == 1:
        return data[at:end].decode(), end
    if kind == 3:
        return Symbol(data[at:end].decode()), end
    raise DecodeError(f"type 0x{code:02x} is unknown")


def _compound_at(code: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if (code >> 4) & 1 == 0:
        size, count = data[at], data[at + 1]
        end, at = at + 1 + size, at + 2
    else:
        size, count = _TWO_U32.unpack_from(data, at)
        end, at = at + 4 + size, at + 8
    if end > len(data) or at > end:
        raise DecodeError("the value is cut off")
    if code >= 0xE0:
        if code not in (0xE0, 0xF0):
            raise DecodeError(f"type 0x{code:02x} is unknown")
        items = _array_items(data, at, end, count, depth)
        wide = struct.pack(">BII", 0xF0, end - at + 4, count) + data[at:end]
        return AmqpArray(items, wide), end
    if count > end - at:  # each takes a byte at least
        raise DecodeError("there are fewer elements than said")
    items = []
    for _ in range(count):
        value, at = _decode(data, at, depth)
        items.append(value)
    if at != end:
        raise DecodeError("the size of a list or map is wrong")
    if code & 15 == 0:
        return items, end
    if code & 15 != 1 or count % 2:
        raise DecodeError("a map has a key without a value" if count % 2 else "unknown type")
    try:
        return dict(zip(items[::2], items[1::2], strict=True)), end
    except TypeError as error:
        raise DecodeError("the key of a map is a list or a map") from error


def _array_items(data: bytes, at: int, end: int, count: int, depth: int) -> list[Any]:
    descriptor = None
    if data[at] == 0:
        descriptor, at = _decode(data, at + 1, depth)
    if at >= end:
        raise DecodeError("the array says no type")
    code, at = data[at], at + 1
    if code == 0:
        raise DecodeError("an array of values that are described twice")
    if count > (EMPTY_ITEMS_MAX if code >> 4 == 4 else end - at):
        raise DecodeError("the array has fewer elements than it says, or too many")
    items = []
    for _ in range(count):
        value, at = _decode_as(code, data, at, depth)
        items.append(value if descriptor is None else Described(descriptor, value))
    if at != end:
        raise DecodeError("the size of an array is wrong")
    return items


_U32, _TWO_U32 = struct.Struct(">I"), struct.Struct(">II")
_CONSTANTS: dict[int, Any] = {
    0x40: None,
    0x41: True,
    0x42: False,
    0x43: UInt(0),
    0x44: ULong(0),
    0x45: [],
}
_OPAQUE = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16}
_LAYOUTS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", UByte),
    0x51: (">b", Byte),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", Int),
    0x55: (">b", int),
    0x56: (">B", bool),
    0x60: (">H", UShort),
    0x61: (">h", Short),
    0x70: (">I", UInt),
    0x71: (">i", Int),
    0x72: (">f", Float32),
    0x80: (">Q", ULong),
    0x81: (">q", int),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
    0x98: (">16s", lambda raw: uuid.UUID(bytes=raw)),
}
_FIXED = {code: (struct.Struct(layout), made) for code, (layout, made) in _LAYOUTS.items()}
