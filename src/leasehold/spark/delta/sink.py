"""``DeltaSink``: each event's effect in a Delta table exactly once.

A commit adds a batch's files and, for each partition of the feed, says up to which sequence the
table has it (``marks``). It is made with the table as it was looked at before: if anybody has
committed the same partition since, Delta refuses it. So neither a crash between commit and
checkpoint nor a zombie can make anything count twice, whatever the lease store knows. A group may
begin anywhere before what is committed, after any number of crashes: what the table has is skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import SinkUnavailable, StaleBatch
from leasehold.ports import SinkBatch, SinkMark
from leasehold.sinks import Fence, still_held, writer_of
from leasehold.spark.delta.files import Added, Files
from leasehold.spark.delta.marks import Ids, MarkReader, TableReplaced, files_of, mark
from leasehold.spark.delta.rewind import DeltaRewind
from leasehold.spark.delta.schema import (
    FIRST,
    WRITER,
    as_in_table,
    require_fit,
    with_own_columns,
)

log = logging.getLogger("leasehold.spark")
COMMIT_TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one write is to commit, as far as it is still held then."""

    batch: SinkBatch
    schema: pa.Schema
    marks: Mapping[str, SinkMark]
    files: Files
    reader: MarkReader


class DeltaSink:
    """A table at a URL: a local folder, or ``az://container/folder`` and what else the
    ``deltalake`` package knows, with ``storage_options`` as it knows them. Secrets are best left to
    the environment, where it looks for them, too."""

    def __init__(
        self,
        url: str | Path,
        *,
        storage_options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        key: str = "partition",
    ) -> None:
        """
        Args:
            storage_options: of the storage, as the `deltalake` package knows them
            partition_by: columns of the table that make its folders; none that are binary, decimal
                or nested
            key: the column that says which partition of the feed a row is of
        """
        text = str(url)
        self.url = text if "://" in text else str(Path(text).resolve())
        self.options = dict(storage_options or {})
        self.partition_by = tuple(partition_by)
        self.key = key
        self._marks = MarkReader(self.url, self.options)
        self._fence = Fence(self.url, "" if key == "partition" else f" --sink-key {key}")

    def write(self, df: DataFrame, batch: SinkBatch) -> None:
        """Commit the rows, or raise having committed nothing; if the table has all of them already,
        do nothing. ``df`` must have kept the column that says which partition of the feed a row is
        of."""
        arrow = to_arrow_schema(df.schema, timezone="UTC")
        schema = with_own_columns(arrow, self.key, self.partition_by)
        with self._private(schema) as (table, reader, marks):
            require_fit(table, schema, self.url, self.partition_by)
            wanted = self._fence.check(batch, _marks_of(marks, batch))
            if not wanted:
                return
            files = Files(
                url=self.url,
                options=self.options,
                schema=as_in_table(schema, table),
                partition_by=self.partition_by,
                ranges={each.partition: each for each in batch.ranges},
                writer=writer_of(batch.group, batch.identity),
                key=self.key,
            )
            began = time.perf_counter()
            added = self._asked(files, df, batch)
            batch.took("job", time.perf_counter() - began)
            began = time.perf_counter()
            kept: list[Added] = []
            try:
                held = still_held(batch)
                self._require_same(reader)
                kept = files.only(added, {each.partition for each in held})
            finally:
                files.remove([file.path for file in added if file not in kept])
            # From here on files stay, whatever fails: a commit whose answer is lost names them.
            work = _Work(batch=batch, schema=schema, marks=wanted, files=files, reader=reader)
            self._commit(table, work, held, kept)
            batch.took("commit", time.perf_counter() - began)

    def rewinding(self, group: Group, identity: str) -> DeltaRewind:
        """A rewind of what this group of this feed has here."""
        return DeltaRewind(self, group, identity)

    def table(self) -> DeltaTable:
        """The table as it is now."""
        try:
            return DeltaTable(self.url, storage_options=self.options)
        except TableNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            raise self._unavailable("cannot be read", error) from error

    def rows(self) -> ds.Dataset:
        """What is in the table now, to be read with Arrow.

        In filters, cast texts (``field("name").cast("string") == …``): files that a rewind has
        rewritten hold them as views, which Arrow cannot compare otherwise."""
        local = None if "://" in self.url else files_of(self.url, self.options)
        return self.table().to_pyarrow_dataset(filesystem=local)

    def marks(self, table: DeltaTable) -> Mapping[str, int]:
        """All application transactions, by id, as of this table's version. It must be opened just
        before, so that it is the table that is there."""
        return self._known_of(table)[1]

    def _known_of(self, table: DeltaTable) -> tuple[MarkReader, Mapping[str, int]]:
        reader = self._marks
        try:
            try:
                return reader, reader.read(table)
            except TableReplaced:
                reader = self._begin_anew(reader)
                return reader, reader.read(table)
        except (OSError, ValueError) as error:
            raise self._unavailable("has a log that cannot be read", error) from error

    def _begin_anew(self, known: MarkReader) -> MarkReader:
        """Nothing that was known, and no table that was opened, is good any more. Writes under way
        in other threads keep what they began with, and find out for themselves."""
        if self._marks is known:
            self._marks = MarkReader(self.url, self.options)
        return self._marks

    @contextmanager
    def _private(
        self, schema: pa.Schema
    ) -> Iterator[tuple[DeltaTable, MarkReader, Mapping[str, int]]]:
        """The table as it is now, for one write alone: if anybody else brought it up to date in the
        middle, the commit would not collide with what came between. And its marks, with the reader
        that has to know of the commit."""
        found = self._updated()
        if found is None:
            table = self._opened(schema)
            if WRITER not in _names(table) and FIRST in _names(table):
                table = self._with_writer(table)
            found = table, *self._known_of(table)
        yield found
        found[1].idle.append(found[0])

    def _updated(self) -> tuple[DeltaTable, MarkReader, Mapping[str, int]] | None:
        reader = self._marks
        try:
            table = reader.idle.pop()
            table.update_incremental()
            return table, reader, reader.read(table)
        except TableReplaced as error:
            log.info("%s", error)
            self._begin_anew(reader)
        except (IndexError, DeltaError, OSError, ValueError):
            pass  # the log may have been tidied up since
        return None

    def _require_same(self, reader: MarkReader) -> None:
        """A job takes its time, too."""
        try:
            reader.require_same()
        except TableReplaced as error:
            self._begin_anew(reader)
            raise self._unavailable("was replaced or tidied up meanwhile", error) from error
        except OSError as error:
            raise self._unavailable("has a log that cannot be read", error) from error

    def _opened(self, schema: pa.Schema) -> DeltaTable:
        try:
            return self.table()
        except TableNotFoundError:
            pass
        try:
            DeltaTable.create(
                self.url,
                schema=Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(self.partition_by),
                storage_options=self.options,
            )
        except (DeltaError, OSError) as error:  # maybe because another instance was first
            log.debug("making the table: %s", error)
        try:
            return self.table()
        except TableNotFoundError as error:
            raise self._unavailable("cannot be made", error) from error

    def _with_writer(self, table: DeltaTable) -> DeltaTable:
        """A table from before rows said whose they are gets the column for it."""
        try:
            table.alter.add_columns(Field(WRITER, PrimitiveType("string"), nullable=True))
        except (DeltaError, OSError) as error:  # maybe because another instance was first
            log.debug("adding column %s: %s", WRITER, error)
        return self.table()

    def _commit(
        self,
        table: DeltaTable,
        work: _Work,
        held: Sequence[Range],
        added: Sequence[Added],
    ) -> None:
        for _ in range(COMMIT_TRIES):
            marks = []
            for each in held:
                ids = Ids.of(work.batch.group, work.batch.identity, each.partition)
                marks.append(mark(ids.done, work.marks[each.partition].next_sequence))
                marks.append(mark(ids.history, work.marks[each.partition].history))
            try:
                table.create_write_transaction(
                    _actions(added),
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(self.partition_by),
                    commit_properties=work.reader.properties_of_commit(marks),
                )
                return
            except CommitFailedError as error:
                # Somebody else was first, with these partitions or with something that does not
                # matter here, such as a compaction: the table tells.
                log.info("%s: %s; looking again", work.batch.instance, error)
                held = self._look_again(table, work, held)
                if not held:
                    return
                added = work.files.only(added, {each.partition for each in held})
            except (DeltaError, OSError) as error:
                raise self._unavailable("does not take a commit", error) from error
        raise SinkUnavailable(f"{self.url}: {COMMIT_TRIES} commits in a row came too late")

    def _look_again(
        self, table: DeltaTable, work: _Work, held: Sequence[Range]
    ) -> tuple[Range, ...]:
        """What is still to be committed, with the table as it is now; nothing if all of it is there
        by now. What somebody else has committed meanwhile is left out like what is lost."""
        try:
            table.update_incremental()
            marks = work.reader.read(table)
        except TableReplaced as error:
            self._begin_anew(work.reader)
            raise self._unavailable("was replaced or tidied up meanwhile", error) from error
        except (DeltaError, OSError, ValueError) as error:
            raise self._unavailable("cannot be read", error) from error
        batch = work.batch
        require_fit(table, work.schema, self.url, self.partition_by)
        try:
            if not self._fence.check(batch, _marks_of(marks, batch), held):
                return ()
        except StaleBatch as stale:
            if stale.begin_at.keys() >= {each.partition for each in held}:
                lost = dict.fromkeys(batch.lost(), None)
                raise StaleBatch(str(stale), lost | stale.begin_at) from stale
            batch.leave_out({p: self._overtaken(p, at) for p, at in stale.begin_at.items()})
        return still_held(batch)

    def _overtaken(self, partition: str, at: object) -> SinkUnavailable | None:
        if not isinstance(at, int):
            return at if isinstance(at, SinkUnavailable) else None
        return SinkUnavailable(f"{self.url} has partition {partition} up to {at} by now")

    def _asked(self, files: Files, df: DataFrame, batch: SinkBatch) -> list[Added]:
        """The job may fail because of an event or because of the storage: only the first counts."""
        try:
            return files.write(df, batch)
        except Exception as error:
            if (met := files.marks.found(error)) is not None:
                raise self._unavailable("does not take files", met.message) from error
            raise

    def _unavailable(self, what: str, error: BaseException | str) -> SinkUnavailable:
        return SinkUnavailable(f"the table {self.url} {what}: {error}")


def _actions(added: Sequence[Added]) -> list[Any]:
    now_ms = time.time_ns() // 1_000_000
    return [
        AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=dict(file.values),
            modification_time=now_ms,
            data_change=True,
            stats=file.stats,
        )
        for file in added
    ]


def _marks_of(marks: Mapping[str, int], batch: SinkBatch) -> dict[str, SinkMark]:
    return {
        each.partition: Ids.of(batch.group, batch.identity, each.partition).mark(marks)
        for each in batch.ranges
    }


def _names(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}
