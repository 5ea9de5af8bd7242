"""Cosmos DB's effective partition keys, version 2: where a key is in the key space.

A key's type and bytes are hashed with MurmurHash3 (128 bit, x64); the two highest bits are cleared.
Written as 32 hexadecimal digits in upper case, effective keys lie between ``""`` and ``"40"``, and
ranges of them have bounds between ``""`` and ``"FF"``.
"""

from __future__ import annotations

import re
import struct
from enum import Enum
from typing import Final

from leasehold.errors import BadInput

MASK = (1 << 64) - 1
C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
MIX_1, MIX_2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
BITS = 126
_PART = re.compile(r"""/(?:"([^"]*)"|'([^']*)'|([^/]*))""")
LOWEST, HIGHEST = "", "FF"
"""The bounds of the whole key space, as Cosmos DB writes them."""


class Missing(Enum):
    """Stands for a value that a document does not have, which is not the same as null."""

    UNDEFINED = "undefined"


UNDEFINED: Final = Missing.UNDEFINED
Scalar = str | int | float | bool | None | Missing
KeyValue = Scalar | tuple[Scalar, ...]


def path_parts(path: str) -> list[str]:
    """The names in a partition key's path; one in quotes may have slashes."""
    return ["".join(part) for part in _PART.findall(path)]


"""A hierarchical key has several values."""


def effective_number(value: KeyValue) -> int:
    """A key's place as a number below 2**126; of a hierarchical one, that of its first value."""
    low, high = murmur3_128(_to_hash(value[0] if isinstance(value, tuple) else value))
    return (high << 64 | low) & (1 << BITS) - 1


def effective_key(value: KeyValue) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return "".join(f"{effective_number(each):032X}" for each in values)


def bound_of(number: int) -> str:
    """The place as a range's bound."""
    return LOWEST if number <= 0 else HIGHEST if number >= 1 << BITS else f"{number:032X}"


def number_of(bound: str) -> int:
    """The place that a range's bound means, to 32 digits. Raises ``ValueError`` if it is none."""
    if not bound.isascii() or not all(digit in "0123456789abcdefABCDEF" for digit in bound):
        raise ValueError(f"{bound!r:.80} is not written in hexadecimal digits")
    return min(int(bound[:32].ljust(32, "0"), 16), 1 << BITS)


def as_double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise BadInput("a partition key is too large a number") from None


def _to_hash(value: Scalar) -> bytes:
    if value is UNDEFINED:
        return b"\x00"
    if value is None:
        return b"\x01"
    if isinstance(value, bool):
        return b"\x03" if value else b"\x02"
    if isinstance(value, int | float):
        return b"\x05" + struct.pack("<d", as_double(value))
    assert isinstance(value, str)
    return b"\x08" + value.encode() + b"\xff"


def murmur3_128(data: bytes) -> tuple[int, int]:
    """The low and the high half."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = (_rotated(h1 ^ _first(k1), 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 = (_rotated(h2 ^ _second(k2), 31) + h1) * 5 + 0x38495AB5 & MASK
    k1, k2 = struct.unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h1, h2 = h1 ^ _first(k1) ^ len(data), h2 ^ _second(k2) ^ len(data)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    h1, h2 = _mixed(h1), _mixed(h2)
    h1 = h1 + h2 & MASK
    return h1, h2 + h1 & MASK


def _first(block: int) -> int:
    return _rotated(block * C1 & MASK, 31) * C2 & MASK


def _second(block: int) -> int:
    return _rotated(block * C2 & MASK, 33) * C1 & MASK


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & MASK


def _mixed(state: int) -> int:
    state = (state ^ state >> 33) * MIX_1 & MASK
    state = (state ^ state >> 33) * MIX_2 & MASK
    return state ^ state >> 33
