"""JSON bodies to typed columns, column-wise, and which bodies do not fit.

All rows go through the parser at once. Only if one of them fails is the batch cut in two, and so on
until the bad ones stand alone; a bad row costs some twenty small parses and the others nothing.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

ALONE_BELOW = 8
NO_COLUMN = "\0"


class Decoder:
    """Decodes to the fields of a schema that ``columns.decoded`` accepted."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        empty = pl.from_arrow(schema.empty_table())
        assert isinstance(empty, pl.DataFrame)
        # Without any column, the parser would not look at the bodies.
        self._wanted = dict(empty.schema) or {NO_COLUMN: pl.Boolean()}
        self._parsed = {n: pl.Int32() if _small(dt) else dt for n, dt in self._wanted.items()}

    def decode(self, bodies: pa.Array) -> tuple[pl.DataFrame, npt.NDArray[np.bool_]]:
        """The typed columns, with nulls in bad rows, and which rows are bad: no JSON object, or one
        whose fields have other types. Missing fields and ``null`` are null, and fine."""
        bad = np.zeros(len(bodies), dtype=np.bool_)
        text = _lines(bodies)
        if text is None or b"\\" in text:
            _find_no_text(bodies, bad)
        frame = self._parse(text, len(bodies)) if text and _begin_objects(bodies) else None
        if frame is None:
            frame = self._all(text, len(bodies))
        if frame is None:
            frame = pl.concat(self._pieces(bodies, bad, 0), rechunk=True)
        for name, dtype in self._wanted.items():
            bad |= _out_of_range(frame[name], dtype)
        if bad.any():
            frame = frame.with_columns(pl.when(pl.lit(~bad)).then(pl.all()))
        return frame.cast(dict(self._wanted.items())), bad

    def _all(self, text: bytes | None, rows: int) -> pl.DataFrame | None:
        """None: some row is not one JSON object on one line."""
        if not rows:
            return pl.DataFrame(schema=self._parsed)
        if text is None or text.count(b"\n") != rows - 1:
            return None
        return self._parse(text, rows)

    def _parse(self, text: bytes, rows: int) -> pl.DataFrame | None:
        try:
            frame = pl.read_ndjson(text, schema=self._parsed)
        except (pl.exceptions.PolarsError, UnicodeError):
            return None
        # No line gives two rows, so as many rows as lines means one of each.
        return frame if frame.height == rows else None

    def _pieces(
        self, bodies: pa.Array, bad: npt.NDArray[np.bool_], first: int
    ) -> list[pl.DataFrame]:
        if len(bodies) <= ALONE_BELOW:
            return [self._alone(bodies[i].as_py(), bad, first + i) for i in range(len(bodies))]
        half = len(bodies) // 2
        found: list[pl.DataFrame] = []
        for start, piece in ((0, bodies.slice(0, half)), (half, bodies.slice(half))):
            frame = self._all(_lines(piece), len(piece))
            found += self._pieces(piece, bad, first + start) if frame is None else [frame]
        return found

    def _alone(self, body: bytes | None, bad: npt.NDArray[np.bool_], row: int) -> pl.DataFrame:
        frame = self._one(body or b"")
        if frame is None:
            bad[row] = True
            return pl.DataFrame({n: [None] for n in self._parsed}, schema=self._parsed)
        return frame

    def _one(self, body: bytes) -> pl.DataFrame | None:
        if b"\n" in body:  # it may be one object on several lines
            try:
                body = json.dumps(json.loads(body.decode()), allow_nan=False).encode()
            except (ValueError, RecursionError):
                return None
        return self._parse(body, 1)


def _lines(bodies: pa.Array) -> bytes | None:
    """None: a body is null."""
    lines = pa.LargeListArray.from_arrays([0, len(bodies)], bodies.cast(pa.large_binary()))
    text: bytes | None = pc.binary_join(lines, pa.scalar(b"\n", pa.large_binary()))[0].as_py()
    return text


def _begin_objects(bodies: pa.Array) -> bool:
    """Whether each begins with a brace, and so gives a row at least: then as many rows as bodies
    means one of each, and nobody has to look for line breaks."""
    _, ends, data = bodies.buffers()
    if data is None or bodies.null_count:
        return False
    places = np.frombuffer(ends, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    if not (places[1:] > places[:-1]).all():
        return False
    return bool((np.frombuffer(data, np.uint8)[places[:-1]] == ord("{")).all())


def _find_no_text(bodies: pa.Array, bad: npt.NDArray[np.bool_]) -> None:
    """Half of a surrogate pair stands for no character; the parser would put another for it."""
    found = pc.match_substring_regex(bodies, rb"\\u[dD][89a-fA-F]").fill_null(False)
    for row in np.flatnonzero(found.to_numpy(zero_copy_only=False)):
        try:
            json.dumps(json.loads(bodies[row].as_py().decode()), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            bad[row] = True


def _small(dtype: pl.DataType) -> bool:
    return dtype in (pl.Int8, pl.Int16)


def _out_of_range(values: pl.Series, wanted: pl.DataType) -> npt.NDArray[np.bool_] | bool:
    """The parser checks whole numbers of 32 and 64 bits itself. It knows no smaller ones, and a
    float that is too large becomes infinite, which JSON cannot say."""
    if _small(wanted):
        bits = 8 if wanted == pl.Int8 else 16
        fits = values.is_between(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return (~fits).fill_null(False).to_numpy()
    if wanted in (pl.Float32, pl.Float64):
        return values.is_infinite().fill_null(False).to_numpy()
    return False
