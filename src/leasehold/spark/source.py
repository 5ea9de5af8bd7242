"""``spark.read`` and ``spark.readStream`` with ``format("leasehold")``: hubs and change feeds.

There are no leases here: a query reads all partitions, and Spark keeps its positions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from leasehold.core.ranges import Range
from leasehold.core.start import Latest
from leasehold.errors import BadInput
from leasehold.feeds import open_feed
from leasehold.spark.frames import arrow_schema, cores_of, plan_reading, tasks_for
from leasehold.spark.positions import (
    AnyFeed,
    Offset,
    advance,
    identity,
    initial,
    located,
    newest,
    still_there,
)
from leasehold.spark.reading import Address, Reading
from leasehold.spark.source_options import MAX_EVENTS_PER_TRIGGER, Options


def register(spark: SparkSession) -> None:
    """Make ``format("leasehold")`` known to a session. To do so again changes nothing."""
    # The process that plans has no session to ask how many tasks run at once.
    spark.dataSource.register(type("Source", (LeaseholdSource,), {"cores": cores_of(spark)}))


class LeaseholdSource(DataSource):
    cores = os.cpu_count() or 1

    @classmethod
    def name(cls) -> str:
        return "leasehold"

    def schema(self) -> StructType:
        with closing(_opened(Options.parse(self.options))) as feed:
            return from_arrow_schema(Address.of(feed).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        options.require_unset("spark.read", maxEventsPerTrigger=options.max_events)
        return BatchReader(options, _reading(options, schema), options.tasks or self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = Options.parse(self.options)
        options.require_unset("spark.readStream", endingPosition=options.end)
        return StreamReader(options, _reading(options, schema), options.tasks or self.cores)


class _Tasks:
    """What both readers do: cut ranges into tasks, and read them in the executors."""

    def __init__(self, options: Options, reading: Reading, cores: int) -> None:
        self._options, self._reading, self._cores = options, reading, cores

    def _tasks(self, feed: str, ranges: list[Range]) -> list[InputPartition]:
        return [InputPartition((feed, task)) for task in tasks_for(ranges, self._cores)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's own idea of a read without tasks
            return
        feed, ranges = partition.value
        address = replace(self._reading.address, identity=feed)
        yield from replace(self._reading, address=address).read(ranges)


class BatchReader(_Tasks, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(_opened(options)) as feed:
            begins = located(feed, options.start, options.gone)
            ends = located(feed, {"*": Latest()} if options.end is None else options.end)
            for partition, end in ends.items():
                if begins[partition] > end:
                    raise BadInput(
                        f"partition {partition}: startingPosition is sequence {begins[partition]}, "
                        f"and endingPosition is before it, {end}"
                    )
            ranges = [Range(partition=p, first=begins[p], end=end) for p, end in ends.items()]
            return self._tasks(identity(feed), ranges)


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _target: Offset | None = None
    """Only with ``availableNow``: what was there when the query began, in this process."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with closing(_opened(self._options)) as feed:
            return initial(feed, self._options.start, self._options.gone).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_events or MAX_EVENTS_PER_TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with closing(_opened(self._options)) as feed:
            self._target = newest(feed)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with closing(_opened(self._options)) as feed:
            return advance(
                feed,
                Offset.parse(start),
                max_events=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                target=self._target,
                gone=self._options.gone,
            ).json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        with closing(_opened(self._options)) as feed:
            return newest(feed).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, to = Offset.parse(start), Offset.parse(end)
        with closing(_opened(self._options)) as feed:
            return self._tasks(to.feed, still_there(feed, begin, to, self._options.gone))


def _opened(options: Options) -> AnyFeed:
    """Each time anew: the file may have been made anew since."""
    return open_feed(options.path, options.mode)  # type: ignore[arg-type]


def _reading(options: Options, schema: StructType) -> Reading:
    with closing(_opened(options)) as feed:
        return plan_reading(Address.of(feed), schema=arrow_schema(schema))
