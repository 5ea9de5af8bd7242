"""``format("leasehold")`` on a real Spark session."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.blocking import result_of

import leasehold as lh
from leasehold.spark import register
from leasehold.spark.reading.frames import MIN_SPLIT

pytestmark = pytest.mark.takes_s(50)

PLACE = "partition string, sequence bigint"
STARTS, NOT_IN_TIME = 3, "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which a busy machine exceeds; a query whose
planner did not start is started again, as its user would."""


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    register(spark)  # as often as anybody likes
    return spark


def make_hub(folder: Path, events: int = 0, partitions: int = 4) -> lh.Hub:
    hub = lh.Hub.create(folder / "hub.db", name="h", namespace="t", partitions=partitions)
    send(hub, events)
    return hub


def send(hub: lh.Hub, events: int) -> None:
    if events:
        hub.send_columns(
            [f"H{n % 50}" for n in range(events)],
            [json.dumps({"home": f"H{n % 50}", "n": n}).encode() for n in range(events)],
        )


def read(spark: SparkSession, feed: Any, schema: Any = None, **options: Any) -> DataFrame:
    reader = spark.read.format("leasehold").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(str(feed.path))


def places(df: DataFrame) -> Counter[tuple[str, int]]:
    return Counter((row.partition, row.sequence) for row in df.collect())


def kept(hub: lh.Hub, first: int = 0) -> Counter[tuple[str, int]]:
    return Counter(
        (each.partition, n) for each in result_of(hub.extents()) for n in range(first, each.end)
    )


class Stream:
    """Queries that go on from one another by way of a checkpoint."""

    def __init__(self, spark: SparkSession, feed: Any, folder: Path, schema: str = PLACE) -> None:
        self._spark, self._feed, self._folder, self._schema = spark, feed, folder, schema

    def start(self, *, now: bool = True, **options: Any) -> StreamingQuery:
        df = (
            self._spark.readStream.format("leasehold")
            .options(**options)
            .schema(self._schema)
            .load(str(self._feed.path))
        )
        trigger: dict[str, Any] = {"availableNow": True} if now else {"processingTime": "0 seconds"}
        return (
            df.writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(**trigger)
            .start(str(self._folder / "out"))
        )

    def drain(self, **options: Any) -> list[int]:
        """Rows by batch."""
        for left in reversed(range(STARTS)):
            query = self.start(**options)
            try:
                query.awaitTermination()
                break
            except StreamingQueryException as error:
                if NOT_IN_TIME not in str(error) or not left:
                    raise
        return [progress.numInputRows for progress in query.recentProgress]

    def written(self) -> DataFrame:
        return self._spark.read.schema(self._schema).parquet(str(self._folder / "out"))


def test_an_event_has_all_its_columns(source: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path)
    hub.send([lh.EventData(b"\xff", properties={"k": "é"})], partition_key="key")
    hub.send([lh.EventData(b"")], partition_id=3)
    df = read(source, hub)
    assert [(field.name, field.dataType.simpleString()) for field in df.schema] == [
        ("body", "binary"),
        ("partition", "string"),
        ("sequence", "bigint"),
        ("offset", "string"),
        ("enqueued_at", "timestamp"),
        ("partition_key", "string"),
        ("properties", "string"),
    ]
    rows = {row.body: row for row in df.collect()}
    event = hub.read_batch(rows[b"\xff"].partition, lh.Checkpoint(next_sequence=0), 1).events[0]
    row = rows[b"\xff"]
    assert (row.sequence, row.offset, row.partition_key) == (0, event.offset, "key")
    assert row.enqueued_at.astimezone(UTC) == event.enqueued_at
    assert json.loads(row.properties) == {"k": "é"}
    assert (rows[b""].partition, rows[b""].partition_key) == ("3", None)


def test_a_change_has_all_its_columns(source: SparkSession, tmp_path: Path) -> None:
    with lh.Container.create(
        tmp_path / "c.db",
        name="c",
        namespace="t",
        partition_key="/key",
        ranges=2,
        versions_s=1e9,
    ) as container:
        for id in "abcd":
            container.upsert({"id": id, "key": id, "value": 1})
        container.split(result_of(container.feed().partitions())[0].id)
        container.upsert({"id": "a", "key": "a", "value": 2})
        container.delete("b", "b")
        rows = read(source, container, mode="all").orderBy("lsn").collect()
        assert [(row.lsn, row.operation) for row in rows] == [
            (1, "insert"),
            (2, "insert"),
            (3, "insert"),
            (4, "insert"),
            (5, "replace"),
            (6, "delete"),
        ]
        assert json.loads(rows[4].previous)["value"] == 1
        assert json.loads(rows[4].document)["value"] == 2
        assert rows[5].document is None
        assert {row.range for row in rows} <= {
            leaf.id for leaf in result_of(container.feed().partitions())
        }
        typed = read(source, container, "id string, value int").collect()
        assert {(row.id, row.value) for row in typed} == {("a", 2), ("c", 1), ("d", 1)}


BODIES = {
    b'{"home": "H1", "n": 1}': ("H1", 1),
    b'{"home": null}': (None, None),
    b'{"home": "H1", "n": "many"}': None,
    b'{"home": "H1", "n": 2147483648}': None,
    b'{"home": "H1", "n": 1': None,
    b"\xff\xfe": None,
    b"": None,
    b"[1]": None,
    json.dumps({"home": "x" * 1_000_000, "n": 7}).encode(): ("x" * 1_000_000, 7),
}


def test_bodies_are_decoded_and_those_that_do_not_fit_stay(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, partitions=1)
    for body in BODIES:
        hub.send([lh.EventData(body)])
    schema = "body binary, home string, n int, _corrupt_record string"
    rows = {bytes(row.body): row for row in read(source, hub, schema).collect()}
    assert rows.keys() == BODIES.keys()
    for body, wanted in BODIES.items():
        row = rows[body]
        assert (row.home, row.n) == (wanted or (None, None))
        corrupt = None if wanted else body.decode("utf-8", "backslashreplace")
        assert row._corrupt_record == corrupt
    assert read(source, hub, "n int").count() == len(BODIES)


def test_a_read_goes_from_position_to_position(source: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path, 400)
    ends = {each.partition: each.end for each in result_of(hub.extents())}
    found = read(source, hub, PLACE, startingPosition=10, endingPosition="sequence:15")
    assert places(found) == {(p, n): 1 for p in ends for n in range(10, 15)}
    by_partition = json.dumps({"0": "latest", "1": ends["1"] - 1, "*": "earliest"})
    found = read(source, hub, PLACE, startingPosition=by_partition)
    assert places(found).keys() == {
        *((p, n) for p in ("2", "3") for n in range(ends[p])),
        ("1", ends["1"] - 1),
    }
    now = datetime.now(UTC).isoformat()
    assert read(source, hub, PLACE, startingPosition=f"time:{now}").count() == 0
    assert read(source, hub, PLACE, endingPosition=f"time:{now}").count() == 400


def test_an_empty_hub_has_no_rows(source: SparkSession, tmp_path: Path) -> None:
    assert read(source, make_hub(tmp_path)).collect() == []


def test_ranges_are_packed_into_as_many_tasks_as_pay_off(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, partitions=16)
    send(hub, 1000)
    assert read(source, hub, PLACE).rdd.getNumPartitions() == 1
    send(hub, 4 * MIN_SPLIT)
    df = read(source, hub, PLACE)
    assert df.rdd.getNumPartitions() == 2  # the session's cores
    assert places(df) == kept(hub)
    assert read(source, hub, PLACE, tasks=3).rdd.getNumPartitions() == 3
    assert read(source, hub, PLACE, tasks=1).rdd.getNumPartitions() == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "earliest"}, "is unknown; these are known: path, mode, startingPos"),
        ({"startingPosition": "first"}, "option 'startingPosition': start 'first' is not one of"),
        ({"startingPosition": '{"9": 0}'}, "has no partition 9; it has 0, 1, 2, 3"),
        ({"startingPosition": "10"}, "sequence 10 is beyond the end"),
        ({"startingPosition": "1", "endingPosition": "0"}, "endingPosition is before it"),
        ({"maxEventsPerTrigger": "5"}, "'maxEventsPerTrigger' is not for spark.read"),
        ({"mode": "all"}, "is a hub, which has no modes"),
    ],
)
def test_a_bad_option_is_told(
    source: SparkSession, tmp_path: Path, options: dict[str, str], told: str
) -> None:
    hub = make_hub(tmp_path)
    for partition in range(4):
        hub.send([lh.EventData(b"{}")] * 3, partition_id=partition)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own, with ours inside
        read(source, hub, **options).collect()
    assert told in str(caught.value)


def test_a_path_without_a_feed_is_told(source: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no hub and no container at"):
        source.read.format("leasehold").load(str(tmp_path / "none.db"))
    with pytest.raises(Exception, match="option 'path' is missing"):
        source.read.format("leasehold").load()


def test_a_schema_that_cannot_be_is_told(source: SparkSession, tmp_path: Path) -> None:
    hub = make_hub(tmp_path)
    with pytest.raises(Exception, match="column n cannot be decoded to decimal128"):
        read(source, hub, "n decimal(9,2)").collect()
    with pytest.raises(Exception, match="column n is not nullable"):
        read(source, hub, "n struct<inner: int not null>").collect()


def test_a_query_that_is_started_again_goes_on_where_it_was(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100)
    stream = Stream(source, hub, tmp_path)
    batches = stream.drain(maxEventsPerTrigger=40)
    assert batches == [40, 40, 20]
    send(hub, 60)
    hub.raise_partitions(6)
    hub.send([lh.EventData(b"{}")] * 5, partition_id=5)
    assert sum(stream.drain()) == 65
    assert sum(stream.drain()) == 0
    assert places(stream.written()) == kept(hub)


def test_a_query_that_died_before_its_batch_was_done_does_it_again(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100)
    stream = Stream(source, hub, tmp_path)
    stream.drain(maxEventsPerTrigger=60)
    # As it is when the driver dies between planning the last batch and the word that it is done.
    for log in (tmp_path / "checkpoint" / "commits", tmp_path / "out" / "_spark_metadata"):
        (log / "1").unlink()
        (log / ".1.crc").unlink(missing_ok=True)
    send(hub, 10)
    assert stream.drain() == [40, 10]
    assert places(stream.written()) == kept(hub)


def test_a_running_query_sees_what_comes_and_where_it_may_begin(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, 100)
    before = {each.partition: each.end for each in result_of(hub.extents())}
    stream = Stream(source, hub, tmp_path)
    query = stream.start(now=False, startingPosition="latest", maxEventsPerTrigger=10)
    try:
        deadline = time.monotonic() + 60
        while not query.recentProgress and time.monotonic() < deadline:
            time.sleep(0.1)  # it has looked where the end is
        send(hub, 25)
        query.processAllAvailable()
        assert max(progress.numInputRows for progress in query.recentProgress) == 10
        reported = json.loads(query.recentProgress[-1].sources[0].endOffset)
    finally:
        query.stop()
    assert reported["next"] == {each.partition: each.end for each in result_of(hub.extents())}
    new = {(p, n) for p, n in kept(hub) if n >= before[p]}
    assert places(stream.written()) == Counter(new)


def test_a_stream_of_changes_goes_on_through_a_split(source: SparkSession, tmp_path: Path) -> None:
    with lh.Container.create(
        tmp_path / "c.db",
        name="c",
        namespace="t",
        partition_key="/id",
        ranges=1,
        versions_s=1e9,
    ) as container:
        stream = Stream(source, container, tmp_path, "lsn bigint, id string, n int")
        for number in range(30):
            container.upsert({"id": str(number), "n": 0})
        assert stream.drain(mode="all", maxEventsPerTrigger=12) == [12, 12, 6]
        container.upsert({"id": "7", "n": 1})
        container.split("0")
        for number in range(30):
            container.upsert({"id": str(number), "n": 2})
        stream.drain(mode="all")
        rows = stream.written().collect()
    assert sorted(row.lsn for row in rows) == list(range(1, 62))
    assert Counter(row.n for row in rows) == {0: 30, 1: 1, 2: 30}


def test_events_that_are_gone_stop_a_stream_unless_it_may_go_on(
    source: SparkSession, tmp_path: Path
) -> None:
    hub = make_hub(tmp_path, partitions=1)
    hub.send([lh.EventData(b"{}")] * 5)
    stream = Stream(source, hub, tmp_path)
    stream.drain()
    hub.send([lh.EventData(b"{}")] * 5)
    hub.send([lh.EventData(b"{}")] * 5)
    hub.trim_before(0, 10)
    with pytest.raises(Exception, match=r"older than what the hub keeps.*'onPositionGone'"):
        stream.drain()
    assert sum(stream.drain(onPositionGone="earliest")) == 5
    assert places(stream.written()) == Counter(("0", n) for n in (*range(5), *range(10, 15)))


def test_a_stream_has_no_end(source: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="'endingPosition' is not for"):
        Stream(source, make_hub(tmp_path, 1), tmp_path).drain(endingPosition="latest")
