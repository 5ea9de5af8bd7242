"""Writes a DataFrame's rows as Parquet files of a Delta table, in the executors.

The driver gets only a line about each file, so rows never pass through it, and a file that no
commit names does not exist for any reader; vacuum removes it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyspark.sql import DataFrame

from leasehold.core.ranges import Range
from leasehold.errors import SinkUnavailable
from leasehold.ports import SinkBatch
from leasehold.spark.delta.marks import files_of
from leasehold.spark.delta.schema import END, FIRST, WRITER
from leasehold.spark.delta.values import parts, stats
from leasehold.spark.executor_errors import Marks

log = logging.getLogger("leasehold.spark")
ROW_GROUP_ROWS = 256_000
PLAIN = re.compile(r"[A-Za-z0-9_.=-]+", re.ASCII)


class StorageTrouble(Exception):
    """A file could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A file that was written."""

    path: str
    size_bytes: int
    values: Mapping[str, str | None]
    """Of the columns that make folders."""
    stats: str
    partitions: Sequence[str]
    """Of the feed, those that it has rows of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files go and what they look like: the same for all tasks of a job."""

    url: str
    options: Mapping[str, str]
    schema: pa.Schema
    """The table's, with the sink's own columns."""
    partition_by: tuple[str, ...] = ()
    ranges: Mapping[str, Range]
    """By feed partition: what the rows of this batch are made of."""
    writer: str
    """The feed and group that they are of."""
    key: str = "partition"
    marks: Marks = field(default_factory=lambda: Marks((StorageTrouble,)))

    def write(self, df: DataFrame, batch: SinkBatch) -> list[Added]:
        """Runs the job."""
        return batch.collect(df, self.marks.over(self._task))

    def only(self, written: Sequence[Added], held: Collection[str]) -> list[Added]:
        """The files with nothing but rows of these partitions. One file has several partitions, for
        few files are quicker to read; one with others among them is written again without those,
        here: that happens when a lease is lost, and seldom."""
        found = []
        for file in written:
            kept = [partition for partition in file.partitions if partition in held]
            if len(kept) == len(file.partitions):
                found.append(file)
            elif kept:
                found.append(self._without_others(file, kept))
        return found

    def _without_others(self, file: Added, kept: list[str]) -> Added:
        """If the partition makes folders, a file has but one, and this is never called."""
        try:
            table = pq.read_table(file.path, filesystem=files_of(self.url, self.options))
        except (OSError, pa.ArrowException) as error:
            raise SinkUnavailable(f"{file.path} cannot be read again: {error}") from error
        wanted = pc.is_in(table.column(self.key), pa.array(kept, table.schema.field(self.key).type))
        try:
            return self._file(self._storage(), file.values, table.filter(wanted), kept)
        except StorageTrouble as error:
            raise SinkUnavailable(str(error)) from error

    def remove(self, paths: list[str]) -> None:
        """Files that will never be committed. Those that stay behind are for vacuum."""
        for path in paths:
            try:
                self._storage().delete_file(path)
            except Exception as error:
                log.debug("%s stays behind: %s", path, error)

    def _storage(self) -> DeltaStorageHandler:
        try:
            return DeltaStorageHandler(self.url, dict(self.options))
        except Exception as error:  # a folder that is gone, for one
            raise StorageTrouble(f"{self.url} cannot be reached: {error}") from error

    def _task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Added]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        table = self._with_own_columns(pa.Table.from_batches(found))
        storage = self._storage()
        for values, part in parts(table, self.partition_by):
            yield self._file(storage, values, part, self._partitions_of(values, part))

    def _with_own_columns(self, table: pa.Table) -> pa.Table:
        """Rows say what they are made of, so that a rewind finds them again."""
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
        table = table.append_column(WRITER, pa.repeat(self.writer, table.num_rows))
        return table.select(self.schema.names).cast(self.schema)

    def _partitions_of(self, values: Mapping[str, str | None], table: pa.Table) -> list[str]:
        if self.key in values:
            return [str(values[self.key])]
        found: list[str] = pc.unique(table.column(self.key)).to_pylist()
        return found

    def _file(
        self,
        storage: DeltaStorageHandler,
        values: Mapping[str, str | None],
        table: pa.Table,
        partitions: list[str],
    ) -> Added:
        names = [f"{name}={value}" for name, value in values.items()]
        # The folders are for people; what they say is in the commit, too.
        folders = "".join(f"{name}/" for name in names) if all(map(PLAIN.fullmatch, names)) else ""
        path = f"{folders}part-{uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        data = buffer.getvalue().to_pybytes()
        try:
            # Not through the handler's own method: it hands out a file that takes no bytes.
            out: Any = storage._handler.open_output_stream(path, metadata=None)
            with closing(out):
                out.write(data)
        except Exception as error:  # the storage raises errors of many kinds
            raise StorageTrouble(f"{path} cannot be written: {error}") from error
        return Added(
            path=path,
            size_bytes=len(data),
            values=dict(values),
            # deltalake gets the escapes of characters beyond 16 bits wrong.
            stats=json.dumps(stats(table), ensure_ascii=False),
            partitions=partitions,
        )
