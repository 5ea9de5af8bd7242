"""Which tasks of a batch were read to their end.

Spark reads no more than a query needs: a ``limit``, or a join with a table that is empty just now,
leaves rows unread. Those that do not decode are among them, and are dead letters all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

KEPT_MAX = 10_000
"""A task that ran twice may report when nobody asks any more. To forget reports is safe: what
nobody is known to have read is read again."""
Rows = Iterator[pa.RecordBatch]
Work = Callable[[Rows], Iterable[Any]]
TaskWork = Callable[[int, Rows], Iterable[Any]]
Told = set[tuple[int, int]]
"""Numbers of batches and of their tasks."""
_numbers = count()
_making = Lock()


@dataclass(frozen=True, slots=True)
class ReadToEnd:
    """A report among the results of a task."""

    task: int


class _Union(AccumulatorParam[Told]):
    def zero(self, value: Told) -> Told:
        return set()

    def addInPlace(  # noqa: N802
        self, value1: Told, value2: Told
    ) -> Told:
        if len(value1) > KEPT_MAX:
            value1.clear()
        value1 |= value2
        return value1


class Reports:
    """Of the tasks of one batch."""

    def __init__(self, spark: SparkSession) -> None:
        self._batch = next(_numbers)
        self._ended: set[int] = set()
        try:
            self._shared: Accumulator[Told] | None = _shared(spark.sparkContext)
        except Exception:  # Spark Connect has none
            self._shared = None

    def among_results(self, work: Work) -> TaskWork:
        """What ``work`` makes of a task's rows, and the report if it has had all of them."""

        def run(task: int, rows: Rows) -> Iterator[Any]:
            had_all = []

            def to_end() -> Rows:
                yield from rows
                had_all.append(True)

            yield from work(to_end())
            if had_all:
                yield ReadToEnd(task)

        return run

    def taken_from(self, results: Iterable[Any]) -> list[Any]:
        """All others of them."""
        found = list(results)
        self.found(each.task for each in found if isinstance(each, ReadToEnd))
        return [each for each in found if not isinstance(each, ReadToEnd)]

    def found(self, tasks: Iterable[int]) -> None:
        self._ended.update(tasks)

    def beside_rows(self) -> TaskWork:
        """A task's rows, and the report beside them, where there is a context to take it."""
        batch, shared = self._batch, self._shared

        def run(task: int, rows: Rows) -> Rows:
            yield from rows
            if shared is not None:
                shared.add({(batch, task)})

        return run

    def missing(self, tasks: int) -> list[int]:
        """Of so many tasks, those that are not known to have been read to their end."""
        if self._shared is not None:
            told = {(self._batch, task) for task in range(tasks)} & self._shared.value
            self._shared.value.difference_update(told)
            self.found(task for _, task in told)
        return [task for task in range(tasks) if task not in self._ended]


def _shared(context: SparkContext) -> Accumulator[Told]:
    with _making:  # PySpark numbers accumulators without a lock
        return _made(context)


@lru_cache(maxsize=4)
def _made(context: SparkContext) -> Accumulator[Told]:
    return context.accumulator(Told(), _Union())
