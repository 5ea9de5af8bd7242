"""``DeltaSink``: each event's effect in a Delta table exactly once.

A commit adds a batch's files and, for each partition of the feed, says up to which sequence the
table has it. It is made with the table as it was looked at before: if anybody has committed the
same partition since, Delta refuses it. So neither a crash between commit and checkpoint nor a
zombie can make anything count twice, whatever the lease store knows.

Application ids, each with a number (``ids``):

- ``…/partition``: the next sequence; everything before it is in the table;
- ``…/partition/first``: where the last batch began. A group that begins there again has crashed
  before its checkpoint; one that begins earlier was sent back without the table;
- ``…/partition/rewinding``: 1 while a rewind is under way. Nobody writes meanwhile.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, SinkUnavailable
from leasehold.spark.delta_files import RANGE_COLUMNS, Files, now_ms
from leasehold.spark.jobs import NotAsPlanned
from leasehold.spark.processor import SparkBatch

log = logging.getLogger("leasehold.spark")
COMMIT_TRIES = 20


@dataclass(frozen=True, slots=True)
class Ids:
    """The application ids of one partition of a group."""

    done: str
    first: str
    rewinding: str

    @classmethod
    def of(cls, group: Group, identity: str, partition: str) -> Ids:
        names = (group.namespace, group.feed, group.name, identity, partition)
        id = "leasehold/" + "/".join(quote(name, safe="") for name in names)
        return cls(id, f"{id}/first", f"{id}/rewinding")


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
        text = str(url)
        self.url = text if "://" in text else str(Path(text).resolve())
        self.options = dict(storage_options or {})
        self.partition_by = tuple(partition_by)
        self.key = key
        self._table: DeltaTable | None = None

    def write(self, df: DataFrame, batch: SparkBatch) -> None:
        """Commit the rows, or raise having committed nothing. ``df`` must have kept the column that
        says which partition of the feed a row is of."""
        schema = self._schema(df)
        table = self._opened(schema)
        self._require_fit(table, schema)
        self._require_undone(table, batch)
        files = Files(
            url=self.url,
            options=self.options,
            schema=schema,
            partition_by=self.partition_by,
            ranges={each.partition: each for each in batch.ranges},
            key=self.key,
        )
        began = time.perf_counter()
        added = self._asked(files.write, df)
        batch.took("job", time.perf_counter() - began)
        began = time.perf_counter()
        if batch.lost():
            files.remove([row.path for row in added])
        # From here on files stay, whatever fails: a commit whose answer was lost has named them.
        self._commit(table, batch, added)
        batch.took("commit", time.perf_counter() - began)

    def table(self) -> DeltaTable:
        """The table as it is now."""
        try:
            if self._table is None:
                self._table = DeltaTable(self.url, storage_options=self.options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            raise
        except (DeltaError, OSError) as error:
            raise self._unavailable("cannot be read", error) from error
        return self._table

    def rows(self) -> ds.Dataset:
        """What is in the table now, to be read with Arrow.

        From a local folder with Arrow's own file system: a file of ``deltalake``'s, which is
        Python's, that Arrow lets go while the process ends takes it down with an abort."""
        table = self.table()
        local = None if "://" in self.url else SubTreeFileSystem(self.url, LocalFileSystem())
        return table.to_pyarrow_dataset(filesystem=local)

    def _schema(self, df: DataFrame) -> pa.Schema:
        schema = to_arrow_schema(df.schema, timezone="UTC")
        if self.key not in schema.names:
            raise BadInput(
                f"the rows have no column {self.key!r}, which says what partition of the feed they "
                "are of: keep it, and group by it, too"
            )
        for field in RANGE_COLUMNS:
            if field.name in schema.names:
                raise BadInput(f"column {field.name} is the sink's own: give yours another name")
            schema = schema.append(field)
        unknown = set(self.partition_by) - set(schema.names)
        if unknown:
            raise BadInput(f"partition_by names columns that are not there: {sorted(unknown)}")
        return schema

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

    def _require_fit(self, table: DeltaTable, schema: pa.Schema) -> None:
        there, here = _types(table.schema()), _types(Schema.from_arrow(schema))
        if there != here:
            raise SinkUnavailable(
                f"the table {self.url} has other columns than these rows: "
                f"{_differences(there, here)}. Write to another table, or change one of them"
            )
        if tuple(table.metadata().partition_columns) != self.partition_by:
            raise SinkUnavailable(
                f"the table {self.url} is partitioned by {table.metadata().partition_columns}, "
                f"and not by {list(self.partition_by)}: give partition_by= as the table has it"
            )

    def _require_undone(self, table: DeltaTable, batch: SparkBatch) -> None:
        """Refuse what the table has already, before any work is done."""
        done: dict[str, int | None] = {}
        for each in batch.ranges:
            ids = Ids.of(batch.group, batch.identity, each.partition)
            if table.transaction_version(ids.rewinding):
                raise SinkUnavailable(
                    f"a rewind of partition {each.partition} of {batch.group} in {self.url} is not "
                    "finished: run it again"
                )
            there = table.transaction_version(ids.done)
            if there is None or there <= each.first:
                continue
            self._require_replay(table.transaction_version(ids.first), each, there, batch)
            done[each.partition] = there
        if done:
            log.info("%s: in the table already up to %s", batch.instance, done)
            raise NotAsPlanned(f"{self.url} has some of it already", done)

    def _require_replay(
        self, first: int | None, wanted: Range, there: int, batch: SparkBatch
    ) -> None:
        if first is not None and wanted.first < first:
            raise SinkUnavailable(
                f"partition {wanted.partition} of {batch.group} was sent back to sequence "
                f"{wanted.first}, but the table {self.url} has its rows up to {there}; nothing is "
                "skipped and nothing counted twice: rewind the table, too, with "
                "leasehold rewind --sink"
            )

    def _commit(self, table: DeltaTable, batch: SparkBatch, rows: Sequence[Any]) -> None:
        actions: list[Any] = [
            AddAction(
                path=row.path,
                size=row.size,
                partition_values=json.loads(row.values),
                modification_time=now_ms(),
                data_change=True,
                stats=row.stats,
            )
            for row in rows
        ]
        marks = []
        for each in batch.ranges:
            ids = Ids.of(batch.group, batch.identity, each.partition)
            marks += [Transaction(ids.done, each.end), Transaction(ids.first, each.first)]
        for _ in range(COMMIT_TRIES):
            if lost := batch.lost():
                raise NotAsPlanned(
                    f"the leases of {sorted(lost)} are lost", dict.fromkeys(lost, None)
                )
            try:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(self.partition_by),
                    commit_properties=CommitProperties(app_transactions=marks),
                )
                return
            except CommitFailedError as error:
                # Somebody else was first, with these partitions or with something that does not
                # matter here, such as a compaction: the table tells.
                log.info("%s: %s; looking again", batch.instance, error)
                table = self.table()
                self._require_undone(table, batch)
            except (DeltaError, OSError) as error:
                raise self._unavailable("does not take a commit", error) from error
        raise SinkUnavailable(f"{self.url}: {COMMIT_TRIES} commits in a row came too late")

    def _asked(self, write: Any, df: DataFrame) -> list[Any]:
        """The job may fail because of an event or because of the storage: only the first counts."""
        try:
            return list(write(df))
        except Exception as error:
            if (trouble := _of_storage(str(error))) is not None:
                raise self._unavailable("does not take files", trouble) from error
            raise

    def _unavailable(self, what: str, error: BaseException | str) -> SinkUnavailable:
        return SinkUnavailable(f"the table {self.url} {what}: {error}")


def _of_storage(text: str) -> str | None:
    """What the storage said, in one line of a failed job's many; None: it was not the storage."""
    _, found, rest = text.partition("leasehold.spark.delta_files.StorageTrouble: ")
    return rest.partition("\n")[0] if found else None


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: str(getattr(field.type, "type", field.type)) for field in schema.fields}


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    names = sorted(set(there) | set(here))
    return ", ".join(
        f"{name} ({there.get(name, 'not in the table')} / {here.get(name, 'not in the rows')})"
        for name in names
        if there.get(name) != here.get(name)
    )
