"""Processors on an event hub: they share it, lose it to whom the broker prefers, and outlive it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub.aio import EventHubConsumerClient
from support.amqp_endpoint import ServedHub, served_hub
from support.blocking import result_of
from support.eventhubs import Endpoint
from support.processing import Seen, each, fill, make_processor, open_leases, running, until

import leasehold as lh
from leasehold.core.model import Group


def test_instances_share_a_hub_and_handle_every_event_once(
    served: Endpoint, tmp_path: Path
) -> None:
    fill(served.hub, 50)
    seen, store = Seen(), open_leases(tmp_path)
    feeds = [lh.open_feed(served.url) for _ in range(2)]

    async def scenario() -> None:
        first, second = (
            make_processor(feed, store, on_batch=seen.batch, instance=f"i{n}")
            for n, feed in enumerate(feeds)
        )
        async with running(first):
            await until(lambda: seen.count == 200)
            levels = served.links()
            assert [(group, partition) for group, partition, _ in levels] == [
                ("g", str(n)) for n in range(4)
            ]
            async with running(second):
                await until(lambda: len(first.partitions) == len(second.partitions) == 2)
                fill(served.hub, 50)
                await until(lambda: seen.count == 400)
            await until(lambda: len(first.partitions) == 4)
            fill(served.hub, 5)
            await until(lambda: seen.count == 420)
            # The two partitions that went and came back have a higher level than the others.
            assert sorted(level for *_, level in served.links() if level is not None) > sorted(
                level for *_, level in levels if level is not None
            )
        await until(lambda: served.links() == [])

    try:
        asyncio.run(scenario())
    finally:
        for feed in feeds:
            feed.close()
    assert seen.by_partition == each(4, 105)


def test_who_is_cut_off_by_the_broker_stops_before_the_store_tells(
    served: Endpoint, tmp_path: Path
) -> None:
    """The lease would be good for half a minute; another reader has come with a higher level."""
    fill(served.hub, 5, ["0"])
    seen, closed = Seen(), []
    feed = lh.open_feed(served.url)
    client = EventHubConsumerClient.from_connection_string(
        served.connection_string, "g", eventhub_name="sensors"
    )

    async def scenario() -> None:
        processor = make_processor(
            feed,
            open_leases(tmp_path),
            on_batch=seen.batch,
            on_partition_close=lambda reason, context: closed.append((context.partition, reason)),
        )
        async with running(processor), client:
            await until(lambda: seen.count == 5)

            async def ignore(*_: Any) -> None: ...

            reading = asyncio.ensure_future(
                client.receive(ignore, partition_id="0", owner_level=1_000_000)
            )
            await until(lambda: ("0", "lost") in closed)
            reading.cancel()
            await asyncio.wait([reading])
            await client.close()
            fill(served.hub, 5, ["0"])  # it takes the lease again, in an epoch of its own
            await until(lambda: seen.count == 10)

    try:
        asyncio.run(scenario())
    finally:
        feed.close()
    assert seen.by_partition == {"0": list(range(10))}


def test_a_processor_begins_again_with_a_hub_that_was_recreated(
    served: Endpoint, tmp_path: Path
) -> None:
    """It has more events than were handled of the old one: their number does not tell."""
    fill(served.hub, 5)
    rounds, failures = [], []
    for events in (5, 8):
        seen, feed = Seen(), lh.open_feed(served.url)
        make_processor(
            feed,
            open_leases(tmp_path),
            on_batch=seen.batch,
            on_error=failures.append,
        ).run(until_drained=True)
        feed.close()
        rounds.append(seen.by_partition)
        if events == 5:
            served.stop()
            served.path = tmp_path / "again.db"
            lh.Hub.create(
                served.path, name="sensors", namespace="homes.local", partitions=4
            ).close()
            served.start()
            fill(served.hub, 8)
    assert rounds == [each(4, 5), each(4, 8)]
    assert [type(error) for error in failures] == [lh.PositionGone] * 4


def test_a_hub_that_grows_and_an_endpoint_that_is_killed_cost_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_hub(tmp_path, partitions=2) as served:
        monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", served.connection_string)
        feed = lh.open_feed(f"eventhubs://localhost:{served.port}/sensors?timeout_s=3")
        seen = Seen()
        try:
            asyncio.run(through_kills(served, feed, seen, tmp_path))
        finally:
            feed.close()
        assert {p: sorted(set(some)) for p, some in seen.by_partition.items()} == {
            "0": list(range(120)),
            "1": list(range(120)),
            "2": list(range(40)),
        }
        for sequences in seen.by_partition.values():  # in order, and only handled batches again
            assert sequences == sorted(sequences) or len(sequences) > len(set(sequences))


async def through_kills(served: ServedHub, feed: Any, seen: Seen, folder: Path) -> None:
    store = open_leases(folder)
    with lh.Hub.open(served.path) as hub:
        processor = make_processor(feed, store, on_batch=seen.batch, retry_max_s=1.0)
        async with running(processor):
            for _ in range(2):
                fill(hub, 40, ["0", "1"])
                await until(lambda: seen.count >= 80)
                served.stop(kill=True)
                fill(hub, 20, ["0", "1"])
                served.start()
            hub.raise_partitions(3)
            fill(hub, 40, ["2"])
            group = Group(namespace=feed.namespace, feed=feed.name, name="g")
            ends = {extent.partition: extent.end for extent in result_of(hub.extents())}

            async def all_done() -> bool:
                leases = (await store.snapshot(group)).leases
                return {x.partition: x.checkpoint.next_sequence for x in leases} == ends

            async with asyncio.timeout(60):
                while not await all_done():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
