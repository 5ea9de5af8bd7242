"""JSON bodies to typed columns, and which bodies do not fit.

Bodies are parsed one by one and typed by the column. So what becomes of one never depends on the
others, and a bad one costs itself only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from leasehold.core.strict_json import UNREADABLE, Fields
from leasehold.spark.reading.typed import Bad, column

PIECE_ROWS = 4_000
"""Parsed at once: few enough that the values are still in the processor's caches when their columns
are made."""
NO_COLUMN = "\0"


class Decoder:
    """Decodes to the fields of a schema that ``columns.decoded`` accepted."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def decode(self, bodies: pa.Array) -> tuple[pl.DataFrame, Bad]:
        """The typed columns, with nulls in bad rows, and which rows are bad: no JSON object, or one
        whose fields have other types. Missing fields and ``null`` are null, and fine."""
        starts = range(0, max(1, len(bodies)), PIECE_ROWS)
        pieces = [self._piece(bodies.slice(start, PIECE_ROWS)) for start in starts]
        bad = np.concatenate([bad for _, bad in pieces])
        frame = pl.concat([frame for frame, _ in pieces], rechunk=True)
        if bad.any():
            frame = frame.with_columns(pl.when(pl.lit(~bad)).then(pl.all()))
        return frame, bad

    def _piece(self, bodies: pa.Array) -> tuple[pl.DataFrame, Bad]:
        fields = _fields(tuple(self.schema.names))
        rows, bad = _parsed(fields, bodies)
        found = []
        for field, get in zip(self.schema, fields.columns, strict=True):
            values, no_fit = column(list(map(get, rows)), field.type)
            found.append(values.alias(field.name))
            if no_fit is not None:
                bad |= no_fit
        # Without any column, a frame would have no rows.
        return pl.DataFrame(found or [pl.Series(NO_COLUMN, [None] * len(rows), pl.Boolean)]), bad


def _parsed(fields: Fields, bodies: pa.Array) -> tuple[list[Any], Bad]:
    """A row for each body; one without values for a bad body."""
    bad = np.zeros(len(bodies), dtype=np.bool_)
    rows: list[Any] = []
    row, texts = fields.row, _texts(bodies)
    for place, text in enumerate(texts):
        try:
            rows.append(row(text))
        except UNREADABLE:
            rows.append(fields.none)
            bad[place] = True
    return rows, bad


def _texts(bodies: pa.Array) -> list[bytes]:
    """What is null or no UTF-8 is empty, and so no JSON."""
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return [body if body.isascii() else _utf8(body) for body in _filled(bodies)]
    return _filled(bodies)


def _filled(bodies: pa.Array) -> list[bytes]:
    found: list[bytes] = bodies.fill_null(b"").to_pylist()
    return found


def _utf8(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        return b""
    return body


@lru_cache(maxsize=32)
def _fields(names: tuple[str, ...]) -> Fields:
    """Made where it is used: it cannot be pickled into an executor."""
    return Fields(names)
