"""The bodies of many readings at once, by the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from homes.domain.kinds import KIND, KINDS, MEASURED
from homes.domain.reading import body
from homes.simulator.days import Ints, Readings
from leasehold import BadInput

Bytes = npt.NDArray[np.uint8]
TS_DIGITS = 13
TS_MIN_MS, TS_MAX_MS = 10 ** (TS_DIGITS - 1), 10**TS_DIGITS - 1
PPM_MAX = 999.9
_ZERO = ord("0")


class Writer:
    """Bodies of all homes, written digit by digit into rows that are otherwise always the same.

    All bodies of a kind have the same length (a value of carbon monoxide has spaces before it), so
    the bodies of a home are one row of bytes, and writing a column of digits is one assignment.
    """

    def __init__(self, numbers: Ints, kinds: int) -> None:
        pieces, places, at = [], [], 0
        for kind in KINDS[:kinds]:
            value = "#####" if KIND[kind].unit else "#"
            text = body("H000000", kind, 0, 10, TS_MIN_MS).decode().replace(":0,", f":{value},")
            pieces.append(text.replace(value, " " * len(value)))
            places.append(_places(text, at, value))
            at += len(text)
        row = np.frombuffer("".join(pieces).encode(), dtype=np.uint8)
        self._rows: Bytes = np.tile(row, (len(numbers), 1))
        for place in places:
            for start in place["home_id"], place["sensor_id"]:
                _write_digits(self._rows, start, 6, numbers)
        self._places, self._kinds = places, kinds
        self._ends = np.cumsum([len(piece) for piece in pieces])
        first = places[0]["home_id"] - 1
        self._keys = np.ascontiguousarray(self._rows[:, first : first + 7])

    def columns(self, part: slice, readings: Readings) -> tuple[pa.StringArray, pa.BinaryArray]:
        """Keys and bodies of the homes in these places, without the silent sensors."""
        ts_ms = readings.ts_ms
        if len(ts_ms) and not (ts_ms.min() >= TS_MIN_MS and ts_ms.max() <= TS_MAX_MS):
            raise BadInput(f"readings have times from {TS_MIN_MS} to {TS_MAX_MS} ms since 1970")
        rows = self._rows[part].copy()
        for kind, place in enumerate(self._places):
            if kind in MEASURED:
                _write_ppm(rows, place["value"], readings.values[:, kind])
            else:
                rows[:, place["value"]] = readings.values[:, kind].astype(np.uint8) + _ZERO
            _write_digits(rows, place["battery"], 2, readings.battery[:, kind])
            _write_digits(rows, place["ts"], TS_DIGITS, ts_ms[:, kind])
        bodies = self._bodies(rows)
        keys = _fixed_width(np.repeat(self._keys[part], self._kinds, axis=0))
        if readings.silent.any():
            loud = pa.array(~readings.silent.reshape(-1))
            keys, bodies = keys.filter(loud), bodies.filter(loud)
        return keys, bodies

    def _bodies(self, rows: Bytes) -> pa.BinaryArray:
        homes, width = rows.shape
        ends = np.arange(homes)[:, None] * width + self._ends
        offsets = np.concatenate(([0], ends.reshape(-1))).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
        return pa.Array.from_buffers(pa.binary(), homes * self._kinds, buffers)


def _places(text: str, at: int, value: str) -> dict[str, int]:
    """Where the digits of each field begin."""
    return {
        "home_id": at + text.index('"H') + 2,
        "sensor_id": at + text.index('"sensor_id":"H') + 14,
        "value": at + text.index(value),
        "battery": at + text.index('"battery":') + 10,
        "ts": at + text.index('"ts":') + 5,
    }


def _write_digits(rows: Bytes, start: int, count: int, numbers: Any) -> None:
    rest = numbers
    for place in range(start + count - 1, start - 1, -1):
        rest, digit = np.divmod(rest, 10)
        rows[:, place] = digit + _ZERO


def _write_ppm(rows: Bytes, start: int, values: npt.NDArray[np.float64]) -> None:
    """Up to three digits with spaces in the place of leading zeros, a dot, one digit."""
    tenths = np.round(np.clip(values, 0, PPM_MAX) * 10).astype(np.int64)
    _write_digits(rows, start, 3, tenths // 10)
    rows[tenths < 1000, start] = ord(" ")
    rows[tenths < 100, start + 1] = ord(" ")
    rows[:, start + 3] = ord(".")
    rows[:, start + 4] = tenths % 10 + _ZERO


def _fixed_width(rows: Bytes) -> pa.StringArray:
    count, width = rows.shape
    offsets = (np.arange(count + 1) * width).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )
