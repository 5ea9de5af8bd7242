"""``spark.read`` and ``spark.readStream`` with ``format("leasehold")``: hubs and change feeds.

There are no leases here: a query reads all partitions, and Spark keeps its positions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

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
from leasehold.ports import ColumnarFeed
from leasehold.spark.reading.frames import arrow_schema, cores_of, plan_reading, tasks_for
from leasehold.spark.reading.task import Address, Reading, columnar, keep_what_is_loaded
from leasehold.spark.source.options import MAX_EVENTS_PER_TRIGGER, Options
from leasehold.spark.source.positions import (
    Offset,
    advance,
    initial,
    located,
    newest,
    still_there,
)

T = TypeVar("T")


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
            return from_arrow_schema(feed.columns.schema)

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
        keep_what_is_loaded()


class BatchReader(_Tasks, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return _asked(self._options, self._plan)

    async def _plan(self, feed: ColumnarFeed) -> list[InputPartition]:
        options = self._options
        begins = await located(feed, options.start, options.on_position_gone)
        ends = await located(feed, {"*": Latest()} if options.end is None else options.end)
        for partition, end in ends.items():
            if begins[partition] > end:
                raise BadInput(
                    f"partition {partition}: startingPosition is sequence {begins[partition]}, "
                    f"and endingPosition is before it, {end}"
                )
        ranges = [Range(partition=p, first=begins[p], end=end) for p, end in ends.items()]
        return self._tasks(feed.identity, ranges)


class StreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _target: Offset | None = None
    """Only with ``availableNow``: what was there when the query began, in this process."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self._options
        return _asked(
            options, lambda feed: initial(feed, options.start, options.on_position_gone)
        ).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_events or MAX_EVENTS_PER_TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _asked(self._options, newest)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = Offset.parse(start)
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        target, on_position_gone = self._target, self._options.on_position_gone
        return _asked(
            self._options,
            lambda feed: advance(
                feed, begin, max_events=max_events, target=target, on_position_gone=on_position_gone
            ),
        ).json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return _asked(self._options, newest).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, to, on_position_gone = (
            Offset.parse(start),
            Offset.parse(end),
            self._options.on_position_gone,
        )
        ranges = _asked(self._options, lambda feed: still_there(feed, begin, to, on_position_gone))
        return self._tasks(to.feed, ranges)


def _asked(options: Options, ask: Callable[[ColumnarFeed], Awaitable[T]]) -> T:
    """What a feed answers. It is reopened each time: it may have been recreated since."""

    async def run() -> T:
        with closing(_opened(options)) as feed:
            return await ask(feed)

    return asyncio.run(run())


def _opened(options: Options) -> ColumnarFeed:
    return columnar(open_feed(options.path, options.mode))


def _reading(options: Options, schema: StructType) -> Reading:
    with closing(_opened(options)) as feed:
        return plan_reading(Address.of(feed), schema=arrow_schema(schema))
