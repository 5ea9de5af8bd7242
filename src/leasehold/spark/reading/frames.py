"""Ranges as a DataFrame, and jobs that read them. Of Spark Connect the DataFrame API will do."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import inf
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark import RDD, SparkContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from leasehold.core.ranges import Range, pack
from leasehold.errors import BadInput
from leasehold.spark.executor_errors import Marks
from leasehold.spark.reading.columns import CORRUPT, decoded
from leasehold.spark.reading.decode import Decoder
from leasehold.spark.reading.planned_later import PlannedLater
from leasehold.spark.reading.read_to_end import Reports, Rows, TaskWork, Work
from leasehold.spark.reading.task import (
    Address,
    AtSource,
    Letters,
    Reading,
    keep_what_is_loaded,
    schema_after,
)

CORES_KEPT_S = 5.0
MIN_SPLIT = 20_000
"""Fewer events than this are not worth a task of their own."""


def arrow_schema(schema: Any) -> pa.Schema:
    """A user's schema, as a ``StructType`` or as DDL text."""
    try:
        struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise BadInput(f"schema {schema!r} cannot be understood: {error}") from error
    if not isinstance(struct, StructType):
        raise BadInput(
            f'schema must be text like "home_id string, value double" or a StructType, '
            f"not {schema!r}"
        )
    if len(set(struct.names)) < len(struct.names):
        raise BadInput(f"schema names a column twice: {', '.join(struct.names)}")
    return to_arrow_schema(struct, timezone="UTC")


def plan_reading(
    address: Address,
    *,
    schema: pa.Schema | None = None,
    at_source: AtSource | None = None,
    letters: Letters | None = None,
) -> Reading:
    """How to read columns: exactly those of the schema; with none, those of the feed."""
    own = address.columns.schema
    wanted = own if schema is None else schema
    typed = decoded(wanted, own)
    decoder = Decoder(typed) if len(typed) or CORRUPT in wanted.names else None
    result = wanted if at_source is None else schema_after(at_source, wanted)
    return Reading(
        address=address,
        schema=wanted,
        decoder=decoder,
        letters=letters,
        at_source=at_source,
        result=result,
    )


def tasks_for(ranges: Sequence[Range], cores: int) -> tuple[tuple[Range, ...], ...]:
    events = sum(len(each) for each in ranges)
    return pack(ranges, max(1, min(cores, events // MIN_SPLIT)), min_split=MIN_SPLIT)


class Source:
    """What a batch's DataFrame is made of: one task per element of ``tasks``. Reading begins when
    it is used, in the executors."""

    def __init__(
        self,
        spark: SparkSession,
        reading: Reading,
        tasks: Sequence[Sequence[Range]],
        marks: Marks | None = None,
    ) -> None:
        self._spark, self.reading, self.tasks = spark, reading, tasks
        self.marks = marks or Marks()
        has_letters = reading.letters is not None and reading.decoder is not None
        self._reports = Reports(spark) if has_letters else None
        self.planned_s = 0.0
        """How long it took to plan the DataFrame, if that was needed."""

    @cached_property
    def df(self) -> DataFrame:
        if _numbered(self._spark, len(self.tasks)) is None:
            return self._planned()
        return PlannedLater(self._planned, self._schema, self._spark)

    @property
    def _schema(self) -> StructType:
        return from_arrow_schema(self.reading.result)

    def _planned(self) -> DataFrame:
        began = monotonic()
        work = _all_rows if self._reports is None else self._reports.beside_rows()
        df = self._numbers().mapInArrow(_by_batch(self._read(work)), self._schema)
        self.planned_s = monotonic() - began
        return df

    def collect(self, work: Work) -> list[Any]:
        """Whatever ``work`` makes of each task's rows. Where there is a context, without Spark SQL:
        to plan a query, and all that goes with it, is half of what an empty job costs."""
        if self._reports is None:
            return self._collected(lambda task, rows: work(rows))
        return self._reports.taken_from(self._collected(self._reports.among_results(work)))

    @property
    def unread(self) -> list[int]:
        """Tasks that may have letters which nobody has put."""
        return [] if self._reports is None else self._reports.missing(len(self.tasks))

    def put_letters(self) -> None:
        """Those of rows that nobody has read: their events count as handled all the same. Where
        Spark does not tell what was read, they are put again, as after any failure."""
        left = [self.tasks[task] for task in self.unread if self.tasks[task]]
        if left:
            reading = replace(self.reading, at_source=None, result=self.reading.schema)
            Source(self._spark, reading, left, self.marks).collect(_no_rows)
        if self._reports is not None:
            self._reports.found(range(len(self.tasks)))

    def _collected(self, work: TaskWork) -> list[Any]:
        read, numbers = self._read(work), _numbered(self._spark, len(self.tasks))
        if numbers is None:
            return collected(self._numbers(), _by_batch(read))
        return list(numbers.mapPartitions(read).collect())

    def _numbers(self) -> DataFrame:
        return self._spark.range(0, len(self.tasks), 1, max(1, len(self.tasks)))

    def _read(self, work: TaskWork) -> Callable[[Iterable[int]], Iterator[Any]]:
        reading, tasks = self.reading, self.tasks  # this object does not leave the driver

        def read(numbers: Iterable[int]) -> Iterator[Any]:
            for number in numbers:
                yield from work(number, reading.read(tasks[number]))
            keep_what_is_loaded()

        return self.marks.over(read)


def _all_rows(task: int, rows: Rows) -> Rows:
    return rows


def _no_rows(rows: Rows) -> Rows:
    for _ in rows:
        pass
    return iter(())


def _numbered(spark: SparkSession, tasks: int) -> RDD[int] | None:
    """Tasks by number, made once: it takes a file. None: these are not to be had here."""
    try:
        return _parallel(spark.sparkContext, tasks)
    except Exception:  # Spark Connect has none, and there are places that forbid them
        return None


@lru_cache(maxsize=64)
def _parallel(context: SparkContext, tasks: int) -> RDD[int]:
    # So its workers serve DataFrames, too: Spark keeps them apart by their environment.
    context.environment.setdefault("SPARK_SIMPLIFIED_TRACEBACK", "1")
    return context.parallelize(range(tasks), max(1, tasks))


def _by_batch(
    read: Callable[[Iterable[int]], Iterator[Any]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        return read(number for batch in batches for number in batch.column(0).to_pylist())

    return run


def collected(df: DataFrame, work: Work) -> list[Any]:
    """Whatever ``work`` makes of the rows of each task of a DataFrame."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dumps: Any = cloudpickle.dumps  # as in a job without a DataFrame
        found = pa.array([dumps(each) for each in work(batches)], pa.binary())
        yield pa.RecordBatch.from_arrays([found], ["found"])

    return [pickle.loads(row.found) for row in df.mapInArrow(run, "found binary").collect()]


class Cores:
    """How many tasks run at once, as far as the session tells: Spark Connect does not. Executors
    come and go, so it is asked again and again, but not for every job of many."""

    def __init__(self, spark: SparkSession, now: Callable[[], float] = monotonic) -> None:
        self._spark, self._now = spark, now
        self._known, self._asked_at = 0, -inf

    def __call__(self) -> int:
        if self._now() - self._asked_at >= CORES_KEPT_S:
            self._known, self._asked_at = cores_of(self._spark), self._now()
        return self._known


def cores_of(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        return int(spark.conf.get("spark.default.parallelism", "0") or 0) or 2
