"""Which partition a key belongs to. Part of the hub's format: changing it moves every key.

The hash is FNV-1a (64 bit) over the key's UTF-8 bytes, then MurmurHash3's 64-bit finaliser (FNV's
low bits alone spread badly), then the remainder by the number of partitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

FNV_BASIS = 0xCBF29CE484222325
FNV_PRIME = 0x100000001B3
MIX_1 = 0xFF51AFD7ED558CCD
MIX_2 = 0xC4CEB9FE1A85EC53
MASK = (1 << 64) - 1

_PRIME, _SHIFT = np.uint64(FNV_PRIME), np.uint64(33)
_MIX = np.uint64(MIX_1), np.uint64(MIX_2)


def partition_of(key: str, partitions: int) -> int:
    """One key's partition; the plain statement of what ``partitions_of`` does."""
    return _mix(fnv1a(key.encode())) % partitions


def fnv1a(data: bytes) -> int:
    state = FNV_BASIS
    for byte in data:
        state = (state ^ byte) * FNV_PRIME & MASK
    return state


def _mix(state: int) -> int:
    state = (state ^ state >> 33) * MIX_1 & MASK
    state = (state ^ state >> 33) * MIX_2 & MASK
    return state ^ state >> 33


def partitions_of(keys: pa.StringArray, partitions: int) -> npt.NDArray[np.intp]:
    """Every key's partition, byte by byte over all keys at once."""
    starts, lengths, data = _layout(keys)
    # Longest first, so that the keys that still have a byte at some place are always a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, ascending = starts[order], np.sort(lengths)
    state = np.full(len(lengths), FNV_BASIS, dtype=np.uint64)
    for place in range(int(ascending[-1]) if len(ascending) else 0):
        reach = len(ascending) - int(ascending.searchsorted(place, side="right"))
        part = state[:reach]
        part ^= data[starts[:reach] + place]
        part *= _PRIME
    for factor in _MIX:
        state ^= state >> _SHIFT
        state *= factor
    state ^= state >> _SHIFT
    chosen = np.empty(len(state), dtype=np.intp)
    chosen[order] = state % np.uint64(partitions)
    return chosen


def _layout(keys: pa.StringArray) -> tuple[Any, Any, Any]:
    """Where each key's bytes start, how many they are, and the bytes of all keys."""
    _, offsets_buffer, data_buffer = keys.buffers()
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[
        keys.offset : keys.offset + len(keys) + 1
    ].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    return offsets[:-1], np.diff(offsets), data
