"""A feed of another package, found by its entry point: the one that the how-to page writes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lines_feed import LinesFeed
from pyspark.sql import SparkSession
from support.command_line import leasehold

import leasehold as lh
from leasehold.core.model import Checkpoint
from leasehold.spark import SparkProcessor, register
from leasehold.spark.range_feed import RangeFeed
from leasehold.testing.check_columns import COLUMN_CHECKS
from leasehold.testing.check_feed import CHECKS, Check, FeedUnderTest, run_check
from leasehold.testing.check_feed_faults import CLOSE_CHECKS

QUICK = {"balance_interval_s": 0.2, "lease_ttl_s": 30.0, "poll_interval_s": 0.05}


async def made_in(folder: Path) -> FeedUnderTest:
    feed = LinesFeed.create(folder / "readings", partitions=3)

    async def send(partition: str, bodies: Sequence[bytes]) -> None:
        feed.send_lines(partition, bodies)

    async def open_again() -> LinesFeed:
        return LinesFeed(folder / "readings")

    return FeedUnderTest(feed=feed, send=send, open_again=open_again)


@pytest.mark.parametrize(
    "rule", CHECKS + CLOSE_CHECKS + COLUMN_CHECKS, ids=lambda rule: rule.__name__
)
def test_it_passes_the_suite(rule: Check, tmp_path: Path) -> None:
    asyncio.run(run_check(rule, lambda: made_in(tmp_path)))


def filled(folder: Path, events: int = 30) -> str:
    """The URL of a feed with events of different lengths in three partitions."""
    feed = LinesFeed.create(folder / "readings", partitions=3)
    for number in range(events):
        feed.send_lines(str(number % 3), [json.dumps({"n": number, "x": "." * number}).encode()])
    return f"lines://{folder}/readings"


def store_in(folder: Path) -> str:
    return f"sqlite:///{folder}/leases.db"


def test_a_processor_handles_its_events(tmp_path: Path) -> None:
    feed, seen = lh.open_feed(filled(tmp_path)), Counter[int]()
    lh.Processor(
        feed,
        group="count",
        store=lh.open_store(store_in(tmp_path)),
        on_event=lambda event: seen.update([json.loads(event.body)["n"]]),
        start="earliest",
        **QUICK,
    ).run(until_drained=True)
    assert seen == Counter(range(30))


def test_spark_processes_its_events_once_although_sequences_have_gaps(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, seen, sizes = filled(tmp_path), Counter[int](), []

    def on_batch(df: Any, batch: Any) -> None:
        rows = df.collect()
        seen.update(row.n for row in rows)
        sizes.append(len(rows))
        assert {row.partition for row in rows} <= {each.partition for each in batch.ranges}

    SparkProcessor(
        spark,
        lh.open_feed(url),
        group="count",
        store=lh.open_store(store_in(tmp_path)),
        on_batch=on_batch,
        schema="n long",
        start="earliest",
        max_events=900,  # sequences, here: bytes
        tasks=1,
        gather_s=0.01,
        **QUICK,
    ).run(until_drained=True)
    assert seen == Counter(range(30))
    assert len(sizes) > 1


def test_the_data_source_reads_it_by_its_url(spark: SparkSession, tmp_path: Path) -> None:
    url = filled(tmp_path)
    register(spark)
    rows = spark.read.format("leasehold").schema("n long, partition string").load(url).collect()
    assert Counter(row.n for row in rows) == Counter(range(30))
    assert {row.partition for row in rows} == {"0", "1", "2"}


def test_the_command_line_takes_its_url(tmp_path: Path) -> None:
    url = filled(tmp_path)
    words = (url, "--group", "count", "--store", store_in(tmp_path))
    lh.Processor(
        lh.open_feed(url),
        group="count",
        store=lh.open_store(store_in(tmp_path)),
        on_event=lambda event: None,
        start="earliest",
        **QUICK,
    ).run(until_drained=True)
    assert json.loads(leasehold("lag", *words, "--json").stdout)["lag_events"] == 0
    leasehold("rewind", *words, "--to", "earliest", "--yes")
    behind = json.loads(leasehold("lag", *words, "--json").stdout)
    assert {each["checkpoint"] for each in behind["partitions"]} == {0}
    refused = leasehold("lag", url, *words[1:], "--mode", "all", ok=False)
    assert "unexpected keyword argument 'mode'" in refused.stderr.replace("\n", " ")


def test_ranges_with_gaps_follow_each_other_and_have_every_event(tmp_path: Path) -> None:
    feed = lh.open_feed(filled(tmp_path))
    lazy, at, found = RangeFeed(feed), Checkpoint(next_sequence=0), list[Any]()

    async def read() -> Any:
        return await lazy.read("1", at, 70)

    while len((batch := asyncio.run(read())).events):
        assert batch.events.range.first == at.next_sequence
        assert batch.events.range.end == batch.next.next_sequence
        for chunk in feed.read_columns([batch.events.range]):
            found += chunk.events(range(len(chunk)))
        at = batch.next
    assert [json.loads(event.body)["n"] for event in found] == list(range(1, 30, 3))


def test_a_sequence_without_an_event_stands_for_nothing(tmp_path: Path) -> None:
    """A job that fails on no rows at all is told where, and goes on behind the gap."""
    lazy = RangeFeed(lh.open_feed(filled(tmp_path)))

    async def read() -> Any:
        return await lazy.read("0", Checkpoint(next_sequence=0), 1000)

    events = asyncio.run(read()).events
    assert json.loads(events[0].body)["n"] == 0
    assert (events[1].sequence, events[1].body, events[1].offset) == (1, b"", "")
