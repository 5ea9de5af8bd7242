"""Sending a Delta table back: the part of a rewind that is the table's own.

A mark in the table keeps every writer out until the group's rows are removed and the committed
sequences lowered, in one commit, which takes the mark away. The mark is a number of this rewind
alone, so that nothing is removed twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from leasehold.core.model import Group
from leasehold.errors import BadInput, SinkUnavailable
from leasehold.ports import SinkMark
from leasehold.sinks import UNKNOWN, under_way, writer_of
from leasehold.spark.delta.marks import Ids, mark, partitions_of, writers_of
from leasehold.spark.delta.schema import END, FIRST, WRITER, require_lasting_marks

if TYPE_CHECKING:
    from leasehold.spark.delta import DeltaSink

TRIES = 10


class DeltaRewind:
    def __init__(self, sink: DeltaSink, group: Group, identity: str) -> None:
        self._sink, self._group, self._identity = sink, group, identity
        self._writer = writer_of(group, identity)
        self._number = secrets.randbits(62) + 1
        """Tells this rewind from others of the same partitions."""
        try:
            sink.table()
        except TableNotFoundError as error:
            raise BadInput(f"there is no Delta table at {sink.url}") from error

    def marks(self) -> dict[str, SinkMark]:
        table = self._sink.table()
        require_lasting_marks(table, self._sink.url)
        marks = self._sink.marks(table)
        return {each: self._ids(each).mark(marks) for each in partitions_of(marks, self._writer)}

    def begin_at(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Where to go back to, at most that far on. A row computed from events from before and
        after the wanted place cannot be cut: all of its events have to come again."""
        found, table = dict(wanted), self._sink.table()
        for partition, sequence in wanted.items():
            if firsts := self._firsts_after(table, partition, sequence):
                found[partition] = min(sequence, *firsts)
        return found

    def rows_after(self, wanted: Mapping[str, int]) -> int:
        """How many rows a rewind removes."""
        table = self._sink.table()
        return sum(len(self._firsts_after(table, p, at)) for p, at in wanted.items())

    def begin(self, partitions: Sequence[str]) -> None:
        """From here on nobody writes these partitions, until ``finish``."""
        if not partitions:
            return

        def marks(table: DeltaTable) -> list[Transaction]:
            known, found = self._sink.marks(table), []
            for partition in partitions:
                ids = self._ids(partition)
                found.append(mark(ids.rewinding, self._number))
                # The same number again: a commit under way that was planned before this is refused.
                found.append(mark(ids.done, known.get(ids.done, 0)))
            return found

        self._commit(lambda table: _mark(table, marks(table)))

    def finish(self, positions: Mapping[str, int], histories: Mapping[str, int]) -> int:
        """Remove what lies behind these positions; how many rows that were. ``histories``: which
        one of the feed they are of."""
        if not positions:
            return 0
        removed = self.rows_after(positions)

        def carry_out(table: DeltaTable) -> None:
            if not self._under_way(self._sink.marks(table), positions):
                return  # a commit was made whose answer was lost: what came since is not ours
            marks = []
            for partition, sequence in positions.items():
                ids = self._ids(partition)
                marks.append(mark(ids.done, sequence))
                marks.append(mark(ids.history, histories.get(partition, UNKNOWN)))
                marks.append(mark(ids.rewinding, -self._number))
            if not removed or not self._delete(table, positions, marks):
                _mark(table, marks)

        self._commit(carry_out)
        return removed

    def cancel(self, partitions: Sequence[str]) -> None:
        """Take the mark away from partitions that stay where they are."""
        marks = [mark(self._ids(each).rewinding, -self._number) for each in partitions]

        def carry_out(table: DeltaTable) -> None:
            if self._under_way(self._sink.marks(table), partitions):
                _mark(table, marks)

        if marks:
            self._commit(carry_out)

    def _under_way(self, marks: Mapping[str, int], partitions: Iterable[str]) -> bool:
        known = {partition: self._ids(partition).mark(marks) for partition in partitions}
        what = f"{self._group} in {self._sink.url}"
        return under_way(self._number, known, partitions, what)

    def _delete(
        self, table: DeltaTable, positions: Mapping[str, int], marks: Sequence[Transaction]
    ) -> bool:
        """Whether there was anything to delete, and so a commit."""
        gone = " OR ".join(f"({self._after(p, at)})" for p, at in positions.items())
        gone = f"({gone}) AND {self._ours(table)}"
        properties = CommitProperties(app_transactions=list(marks))
        return bool(table.delete(gone, commit_properties=properties)["num_deleted_rows"])

    def _commit(self, change: Callable[[DeltaTable], None]) -> None:
        error: Exception | None = None
        for _ in range(TRIES):
            try:
                return change(self._sink.table())
            except DeltaError as failed:  # writers of other partitions may come between
                error = failed
        raise SinkUnavailable(f"{self._sink.url} cannot be rewound: {error}") from error

    def _ids(self, partition: str) -> Ids:
        return Ids.of(self._group, self._identity, partition)

    def _firsts_after(self, table: DeltaTable, partition: str, sequence: int) -> list[int]:
        """Where this group's rows begin that were computed from events from the sequence on.

        Asked in the words that they are deleted with, and of the same engine: filters of Arrow do
        not fit all files that it writes."""
        named = _says_whose(table)
        query = (
            f"SELECT {FIRST}, {WRITER if named else 'NULL'} AS writer FROM rows "
            f"WHERE {self._after(partition, sequence)}"
        )
        found = pa.table(QueryBuilder().register("rows", table).execute(query).read_all())
        rows = found.to_pylist()
        others = writers_of(self._sink.marks(table), partition) - {self._writer}
        if others and any(row["writer"] is None for row in rows):
            raise BadInput(
                f"rows of partition {partition} in {self._sink.url} were written by a version that "
                f"did not note whose they are, and {', '.join(sorted(map(unquote, others)))} wrote "
                f"there, too, beside {unquote(self._writer)}: which are to go cannot be told. "
                "Nothing was changed. Let the group write to a new table, then rewind it without "
                "--sink"
            )
        return [row[FIRST] for row in rows if row["writer"] in {None, self._writer}]

    def _after(self, partition: str, sequence: int) -> str:
        return f"{_name(self._sink.key)} = {_text(partition)} AND {END} > {sequence}"

    def _ours(self, table: DeltaTable) -> str:
        if not _says_whose(table):
            return "TRUE"
        return f"({WRITER} = {_text(self._writer)} OR {WRITER} IS NULL)"


def _says_whose(table: DeltaTable) -> bool:
    """Whether rows can say whose they are."""
    return any(field.name == WRITER for field in table.schema().fields)


def _mark(table: DeltaTable, marks: Sequence[Transaction]) -> None:
    table.create_write_transaction(
        [],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(app_transactions=list(marks)),
    )


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
