"""Writes a DataFrame's rows as Parquet files of a Delta table, in the executors.

The driver gets only a line about each file, so rows never pass through it, and a file that no
commit names does not exist for any reader; vacuum removes it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from leasehold.core.ranges import Range
from leasehold.spark.frames import source_of

log = logging.getLogger("leasehold.spark")
FIRST, END = "first_sequence", "end_sequence"
RANGE_COLUMNS = (pa.field(FIRST, pa.int64()), pa.field(END, pa.int64()))
ADDED = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("values", pa.string()),
        ("stats", pa.string()),
    ]
)
STATS_CHARS_MAX = 64
ROW_GROUP_ROWS = 256_000
PLAIN = re.compile(r"[A-Za-z0-9_.=-]+", re.ASCII)


class StorageTrouble(Exception):
    """A file could not be written. Its name, in the text of a failed job, is all that the driver
    gets to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files go and what they look like: the same for all tasks of a job."""

    url: str
    options: Mapping[str, str]
    schema: pa.Schema
    """The table's, with the columns that say which range a row is made of."""
    partition_by: tuple[str, ...] = ()
    ranges: Mapping[str, Range]
    """By feed partition: what the rows of this batch are made of."""
    key: str = "partition"

    def write(self, df: DataFrame) -> list[Any]:
        """Runs the job; a row for each file."""
        source = source_of(df)
        if source is not None:
            return source.map(self._task, ADDED).collect()
        return df.mapInArrow(self._task, from_arrow_schema(ADDED)).collect()

    def remove(self, paths: list[str]) -> None:
        """Files that will never be committed. Those that stay behind are for vacuum."""
        files = self._storage()
        for path in paths:
            try:
                files.delete_file(path)
            except Exception as error:
                log.debug("%s stays behind: %s", path, error)

    def _storage(self) -> DeltaStorageHandler:
        return DeltaStorageHandler(self.url, dict(self.options))

    def _task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        table = self._with_ranges(pa.Table.from_batches(found))
        written = [self._file(values, part) for values, part in self._parts(table)]
        yield pa.RecordBatch.from_pylist(written, schema=ADDED)

    def _with_ranges(self, table: pa.Table) -> pa.Table:
        """Rows carry the range they are made of, so that a rewind finds them again."""
        names = table.column(self.key).combine_chunks().dictionary_encode()
        if isinstance(names, pa.ChunkedArray):
            names = names.combine_chunks()
        known = [self.ranges.get(name) for name in names.dictionary.to_pylist()]
        if names.null_count or None in known:
            raise ValueError(
                f"column {self.key} holds partitions that are not in this batch: keep the column "
                "as it came, and group by it, too"
            )
        place = names.indices.to_numpy(zero_copy_only=False)
        for name, values in (
            (FIRST, [each.first for each in known if each is not None]),
            (END, [each.end for each in known if each is not None]),
        ):
            table = table.append_column(name, pa.array(np.array(values, np.int64)[place]))
        return table.select(self.schema.names).cast(self.schema)

    def _parts(self, table: pa.Table) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
        if not self.partition_by:
            yield {}, table
            return
        columns = list(self.partition_by)
        for row in table.select(columns).group_by(columns).aggregate([]).to_pylist():
            match = pa.scalar(True)
            for name, value in row.items():
                column = table.column(name)
                same = pc.is_null(column) if value is None else pc.equal(column, value)
                match = pc.and_(match, pc.fill_null(same, False))
            values = {name: None if v is None else str(v) for name, v in row.items()}
            yield values, table.filter(match).drop_columns(columns)

    def _file(self, values: Mapping[str, str | None], table: pa.Table) -> dict[str, Any]:
        names = [f"{name}={value}" for name, value in values.items()]
        # The folders are for people; what they say is in the commit, too.
        folders = "".join(f"{name}/" for name in names) if all(map(PLAIN.fullmatch, names)) else ""
        path = f"{folders}part-{uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        data = buffer.getvalue().to_pybytes()
        try:
            # Not through the handler's own method: it hands out a file that takes no bytes.
            out: Any = self._storage()._handler.open_output_stream(path, metadata=None)
            with closing(out):
                out.write(data)
        except Exception as error:  # the storage raises errors of many kinds
            raise StorageTrouble(f"{path} cannot be written: {error}") from error
        return {
            "path": path,
            "size": len(data),
            "rows": table.num_rows,
            "values": json.dumps(dict(values)),
            "stats": json.dumps(_stats(table)),
        }


def _stats(table: pa.Table) -> dict[str, Any]:
    """What lets readers pass over a file: bounds of each column whose bounds can be told."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names:
        column = table.column(name)
        nulls[name] = column.null_count
        kind = column.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind):
            continue
        bounds = pc.min_max(column)
        low, high = (_plain(bounds[side].as_py()) for side in ("min", "max"))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return {
        "numRecords": table.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= STATS_CHARS_MAX else None
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, int) else None


def now_ms() -> int:
    return int(time.time() * 1000)
