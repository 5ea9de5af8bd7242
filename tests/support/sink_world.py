"""A Delta table as the suite for sinks tests it: without Spark, the executors' work done here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

from leasehold.spark import DeltaSink
from leasehold.testing.number_line import EVENTS, PARTITIONS
from leasehold.testing.sink_world import CRASHES, Commit, Crash, Job, RewindJob, World

__all__ = [
    "EVENTS",
    "FAULTS",
    "LOST",
    "PARTITIONS",
    "Crash",
    "DeltaUnderTest",
    "DeltaWorld",
    "Frame",
    "Job",
    "RewindJob",
]

LOST = {
    "answer lost": DeltaError("no answer"),
    "answer lost, said to be a conflict": CommitFailedError("no answer"),
}
FAULTS = ("", *CRASHES, *LOST)
COMMIT, DELETE = DeltaTable.create_write_transaction, DeltaTable.delete


class Frame:
    """A Spark DataFrame as far as a Delta sink needs one."""

    def __init__(self, table: pa.Table) -> None:
        self.schema, self._table = from_arrow_schema(table.schema), table

    def mapInArrow(self, work: Callable[..., Any], schema: Any) -> Frame:  # noqa: N802
        self._work = work
        return self

    def collect(self) -> list[Row]:
        batches = self._work(iter(self._table.to_batches()))
        return [Row(**row) for batch in batches for row in batch.to_pylist()]


class DeltaUnderTest:
    lost_answers = LOST

    def __init__(self, folder: Path, partition_by: Sequence[str] = ()) -> None:
        self.url = str(folder / "table")
        self.partition_by = tuple(partition_by)
        self.foreign = 0

    def open(self) -> DeltaSink:
        return DeltaSink(self.url, partition_by=self.partition_by)

    def frame(self, rows: pa.Table) -> Frame:
        """With a column to make folders of."""
        tens = pc.divide(rows.column("sequence"), pa.scalar(10, pa.int64()))
        return Frame(rows.append_column("ten", tens))

    def rows(self) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.url):
            return []
        columns = ["who", "partition", "sequence", "life"]
        rows = DeltaTable(self.url).to_pyarrow_table(columns=columns).to_pylist()
        assert sum(row["who"] == "foreign" for row in rows) == self.foreign
        return [row for row in rows if row["who"] != "foreign"]

    @contextmanager
    def commits(self, around: Callable[[Commit], None]) -> Iterator[None]:
        with _patched(create_write_transaction=_made(COMMIT, around), delete=_made(DELETE, around)):
            yield


def _made(real: Callable[..., Any], around: Callable[[Commit], None]) -> Callable[..., Any]:
    def commit(*arguments: Any, **named: Any) -> Any:
        answers: list[Any] = []

        def make() -> bool:
            answers.append(real(*arguments, **named))
            deleted = answers[0]
            return deleted is None or deleted["num_deleted_rows"] > 0

        around(make)
        return answers[0]

    return commit


class DeltaWorld(World):
    """With what only Delta tables have: other writers."""

    under_test: DeltaUnderTest

    def __init__(self, folder: Path, partition_by: Sequence[str] = ()) -> None:
        super().__init__(DeltaUnderTest(folder, partition_by))

    @property
    def url(self) -> str:
        return self.under_test.url

    @url.setter
    def url(self, url: str) -> None:
        self.under_test.url = url

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.url)

    @property
    def foreign(self) -> int:
        return self.under_test.foreign

    def append_foreign(self, rows: int = 3) -> None:
        """By somebody who knows nothing of us."""
        write_deltalake(
            self.url,
            pa.table(
                {
                    "partition": pa.array(["0"] * rows),
                    "who": pa.array(["foreign"] * rows),
                    "sequence": pa.array(range(rows), pa.int64()),
                    "ten": pa.array([0] * rows, pa.int64()),
                    "life": pa.array([0] * rows, pa.int64()),
                }
            ),
            mode="append",
            schema_mode="merge",
        )
        self.under_test.foreign += rows


@contextmanager
def _patched(**methods: Any) -> Iterator[None]:
    """What happens in the middle has patches of its own."""
    before = {name: getattr(DeltaTable, name) for name in methods}
    for name, method in methods.items():
        setattr(DeltaTable, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(DeltaTable, name, method)
