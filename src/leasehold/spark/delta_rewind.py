"""Sending a Delta table back together with its group (SPEC E16).

Three steps, so that a crash between any two is noticed and mended by doing it again: mark the
partitions in the table, which keeps every writer out; rewind the leases; remove the rows and lower
the committed sequences in one commit, which takes the mark away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from leasehold.core.model import Group
from leasehold.core.start import AtSequence
from leasehold.errors import BadInput, PositionGone, SinkUnavailable
from leasehold.ports import Feed, LeaseStore
from leasehold.processor.rewind import Move, Outcome, carry_out, owners
from leasehold.spark.delta import DeltaSink, Ids
from leasehold.spark.delta_files import END, FIRST

TRIES = 10


class DeltaRewind:
    def __init__(self, sink: DeltaSink, group: Group, identity: str) -> None:
        self._sink, self._group, self._identity = sink, group, identity
        try:
            sink.table()
        except TableNotFoundError as error:
            raise BadInput(f"there is no Delta table at {sink.url}") from error

    async def plan(
        self, feed: Feed, store: LeaseStore, moves: Sequence[Move]
    ) -> tuple[tuple[Move, ...], dict[str, int]]:
        """The moves as far as the table allows them, and by partition where its rows will end.

        Partitions that an earlier rewind left marked are among them, wherever they are now.
        """
        leases = {each.partition: each for each in (await store.snapshot(self._group)).leases}
        wanted = {move.partition: move.to.next_sequence for move in moves}
        table = self._sink.table()
        ends = {}
        for partition, lease in leases.items():
            ids = self._ids(partition)
            if table.transaction_version(ids.rewinding):
                ends[partition] = wanted.get(partition, lease.checkpoint.next_sequence)
            elif partition in wanted and table.transaction_version(ids.done) is not None:
                ends[partition] = wanted[partition]
        ends = self.begin_at(ends)
        return tuple([await _moved(feed, move, ends) for move in moves]), ends

    async def carry_out(
        self, store: LeaseStore, moves: Sequence[Move], ends: Mapping[str, int], *, fence: bool
    ) -> tuple[Outcome, int]:
        """What was planned: leases and table together. Also how many rows were removed."""
        if not fence and owners(moves):
            return await carry_out(store, moves), 0  # it refuses, before anything is marked
        self.begin(list(ends))
        outcome = await carry_out(store, moves, fence=fence)
        stay = [partition for partition in ends if partition in outcome.refused]
        removed = self.finish({p: at for p, at in ends.items() if p not in stay})
        self.cancel(stay)
        return outcome, removed

    def begin_at(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Where to go back to, at most that far on. A row that is made of events from before and
        after the wanted place cannot be cut: all of its events have to come again."""
        data = self._sink.rows()
        found = dict(wanted)
        for partition, sequence in wanted.items():
            cut = (
                (pc.field(self._sink.key) == partition)
                & (pc.field(FIRST) < sequence)
                & (pc.field(END) > sequence)
            )
            rows = data.to_table(columns=[FIRST], filter=cut)
            if rows.num_rows:
                found[partition] = pc.min(rows.column(0)).as_py()
        return found

    def rows_after(self, wanted: Mapping[str, int]) -> int:
        """How many rows a rewind removes."""
        data = self._sink.rows()
        return sum(data.count_rows(filter=self._after(p, at)) for p, at in wanted.items())

    def begin(self, partitions: Sequence[str]) -> None:
        """From here on nobody writes these partitions, until ``finish``."""
        if not partitions:
            return

        def marks(table: DeltaTable) -> list[Transaction]:
            found = []
            for partition in partitions:
                ids = self._ids(partition)
                found.append(Transaction(ids.rewinding, 1))
                # The same number again: a commit under way that was planned before this is refused.
                found.append(Transaction(ids.done, table.transaction_version(ids.done) or 0))
            return found

        self._commit(lambda table: _mark(table, marks(table)))

    def finish(self, positions: Mapping[str, int]) -> int:
        """Remove what lies behind these positions; how many rows that were."""
        if not positions:
            return 0

        def carry_out(table: DeltaTable) -> int:
            marks = []
            for partition, sequence in positions.items():
                ids = self._ids(partition)
                done = min(table.transaction_version(ids.done) or 0, sequence)
                marks += [
                    Transaction(ids.done, done),
                    Transaction(ids.first, done),
                    Transaction(ids.rewinding, 0),
                ]
            gone = " OR ".join(
                f"({self._sink.key} = {_quoted(partition)} AND {END} > {sequence})"
                for partition, sequence in positions.items()
            )
            properties = CommitProperties(app_transactions=marks)
            removed = int(table.delete(gone, commit_properties=properties)["num_deleted_rows"])
            if not removed:  # and so no commit
                _mark(table, marks)
            return removed

        return int(self._commit(carry_out))

    def cancel(self, partitions: Sequence[str]) -> None:
        """Take the mark away from partitions that stay where they are."""
        marks = [Transaction(self._ids(partition).rewinding, 0) for partition in partitions]
        if marks:
            self._commit(lambda table: _mark(table, marks))

    def _commit(self, change: Any) -> Any:
        error: Exception | None = None
        for _ in range(TRIES):
            try:
                return change(self._sink.table())
            except DeltaError as failed:  # writers of other partitions may come between
                error = failed
        raise SinkUnavailable(f"{self._sink.url} cannot be rewound: {error}") from error

    def _ids(self, partition: str) -> Ids:
        return Ids.of(self._group, self._identity, partition)

    def _after(self, partition: str, sequence: int) -> ds.Expression:
        return (pc.field(self._sink.key) == partition) & (pc.field(END) > sequence)


async def _moved(feed: Feed, move: Move, ends: Mapping[str, int]) -> Move:
    wanted = move.to.next_sequence
    at = ends.get(move.partition, wanted)
    if at == wanted:
        return move
    try:
        to = await feed.locate(move.partition, AtSequence(at))
    except PositionGone as gone:
        raise BadInput(
            f"{gone}\nRows of the table are made of events from {at} on, which are not kept any "
            "more, so they could not be made again. Nothing was changed."
        ) from gone
    return replace(move, to=to, again=move.again + wanted - at)


def _mark(table: DeltaTable, marks: Sequence[Transaction]) -> None:
    table.create_write_transaction(
        [],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(app_transactions=list(marks)),
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
