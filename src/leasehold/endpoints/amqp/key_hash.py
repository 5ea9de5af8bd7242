"""Which partition a key belongs to for official clients: Bob Jenkins' lookup3, folded to 16 bits.

The hub's own ``partition_of`` is another function, which existing files depend on.
"""

from __future__ import annotations

import struct

MASK = 0xFFFFFFFF
BASIS = 0xDEADBEEF
BLOCK = 12


def official_partition_of(key: str, partitions: int) -> int:
    """As .NET, Java and JavaScript compute it: the remainder has the sign of the hash, and then
    loses it."""
    return abs(_hash16(key.encode())) % partitions


def _hash16(data: bytes) -> int:
    if not data:
        return 0
    primary, secondary = _lookup3(data)
    folded = (primary ^ secondary) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


def _lookup3(data: bytes) -> tuple[int, int]:
    a = b = c = (BASIS + len(data)) & MASK
    last = (len(data) - 1) // BLOCK * BLOCK
    for at in range(0, last, BLOCK):
        x, y, z = struct.unpack_from("<III", data, at)
        a, b, c = _mix((a + x) & MASK, (b + y) & MASK, (c + z) & MASK)
    x, y, z = struct.unpack("<III", data[last:].ljust(BLOCK, b"\0"))
    return _finish((a + x) & MASK, (b + y) & MASK, (c + z) & MASK)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in ((4, 6, 8), (16, 19, 4)):
        a = (a - c & MASK) ^ _rotated(c, first)
        c = c + b & MASK
        b = (b - a & MASK) ^ _rotated(a, second)
        a = a + c & MASK
        c = (c - b & MASK) ^ _rotated(b, third)
        b = b + a & MASK
    return a, b, c


def _finish(a: int, b: int, c: int) -> tuple[int, int]:
    c = (c ^ b) - _rotated(b, 14) & MASK
    a = (a ^ c) - _rotated(c, 11) & MASK
    b = (b ^ a) - _rotated(a, 25) & MASK
    c = (c ^ b) - _rotated(b, 16) & MASK
    a = (a ^ c) - _rotated(c, 4) & MASK
    b = (b ^ a) - _rotated(a, 14) & MASK
    c = (c ^ b) - _rotated(b, 24) & MASK
    return c, b
