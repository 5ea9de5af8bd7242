"""The same hub over its Kafka endpoint: here a real broker that holds the same events."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from support.eventhubs import KEY, Endpoint, connection_string, kafka_endpoint, send_to_both
from support.kafka import Kafka
from support.servers import reserved_port

from leasehold import Checkpoint, EventData, Hub, PositionGone, open_feed
from leasehold.core.ranges import Range
from leasehold.feeds.eventhubs import EventHubsFeed
from leasehold.ports import Feed
from leasehold.testing.check_columns import COLUMN_CHECKS
from leasehold.testing.check_feed import CHECKS, Check, FeedUnderTest, run_check

pytestmark = pytest.mark.servers
NOT_HERE = {
    "a_start_that_means_nothing_is_refused",  # these two do not read
    "an_unknown_partition_is_refused",
    "a_sequence_or_an_offset_begins_with_that_event",  # Kafka does not know AMQP's offsets
    "any_event_can_be_checkpointed_by_its_sequence_and_offset",
    "a_time_begins_with_the_first_event_not_older",  # this broker has times of its own
    "event_times_are_those_of_the_events_or_left_out",
}
RULES = [rule for rule in CHECKS + COLUMN_CHECKS if rule.__name__ not in NOT_HERE]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of all endpoints here, one after another: the broker knows one connection string."""
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture(scope="module")
def broker(port: int) -> Iterator[Kafka]:
    with kafka_endpoint(connection_string(port)) as made:
        yield made


@pytest.fixture
def served(
    broker: Kafka, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Endpoint]:
    monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", connection_string(port))
    name = f"hub-{uuid4().hex[:8]}"
    Hub.create(tmp_path / "hub.db", name=name, namespace="homes.local", partitions=3).close()
    broker.topic(3, name)
    made = Endpoint(tmp_path / "hub.db", port)
    yield made
    made.stop()


def address(served: Endpoint, broker: Kafka, query: str) -> str:
    return f"{served.url}?{query}&kafka={broker.secure}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_holds_over_kafka(rule: Check, served: Endpoint, broker: Kafka) -> None:
    url = address(served, broker, "transport=kafka&fresh_s=0")

    async def make() -> FeedUnderTest:
        opened = [open_feed(url)]

        async def send(partition: str, bodies: Sequence[bytes]) -> None:
            send_to_both(served.hub, broker, partition, bodies)

        async def open_again() -> Feed:
            opened.append(open_feed(url))
            return opened[-1]

        async def close() -> None:
            for each in opened:
                each.close()

        return FeedUnderTest(
            feed=opened[0], send=send, open_again=open_again, secrets=(KEY,), close=close
        )

    asyncio.run(run_check(rule, make))


def test_bulk_reading_goes_over_kafka_where_it_can_and_gives_the_same(
    served: Endpoint, broker: Kafka
) -> None:
    send_to_both(served.hub, broker, "1", [b"%d" % n for n in range(300)])
    found, ways = [], []
    for query in ("transport=auto", "transport=amqp"):
        feed = open_feed(address(served, broker, query))
        assert isinstance(feed, EventHubsFeed)
        chunks = list(feed.read_columns([Range(partition="1", first=20, end=280)]))
        names = ["sequence", "partition", "body", "partition_key"]
        found.append([row for chunk in chunks for row in chunk.columns(names).to_pylist()])
        ways.append(feed._kafka._feed is not None)
        feed.close()
    assert ways == [True, False]
    assert found[0] == found[1]
    assert [row["sequence"] for row in found[0]] == list(range(20, 280))


def test_positions_of_either_transport_are_good_for_the_other(
    served: Endpoint, broker: Kafka
) -> None:
    send_to_both(served.hub, broker, "0", [b"%d" % n for n in range(60)])

    async def scenario() -> None:
        position, found = Checkpoint(next_sequence=0), []
        for transport in ("amqp", "kafka", "amqp", "kafka"):
            feed = open_feed(address(served, broker, f"transport={transport}"))
            assert feed.namespace == f"localhost:{served.port}"
            batch = await feed.read("0", position, 15)
            found += [event.sequence for event in batch.events]
            position = batch.next
            assert position.token == served.hub.tokens_of({"0": position.next_sequence})["0"]
            feed.close()
        assert found == list(range(60))

    asyncio.run(scenario())


def test_a_hub_that_was_recreated_is_another_one_over_kafka_too(
    served: Endpoint, broker: Kafka, tmp_path: Path
) -> None:
    """There, only its creation time tells: topics of Event Hubs have no ids."""
    send_to_both(served.hub, broker, "0", [b"%d" % n for n in range(30)])
    feed = open_feed(address(served, broker, "transport=kafka&offsets=none"))
    asyncio.run(feed.partitions())
    position = asyncio.run(feed.read("0", Checkpoint(next_sequence=0), 15)).next
    name = served.hub.name
    served.stop()
    served.path = tmp_path / "again.db"
    Hub.create(served.path, name=name, namespace="homes.local", partitions=3).close()
    served.start()
    served.hub.send([EventData(b"new")] * 30, partition_id="0")
    asyncio.run(feed.partitions())
    with pytest.raises(PositionGone) as gone:
        asyncio.run(feed.read("0", position, 15))
    assert gone.value.reason == "other feed"
    assert gone.value.resume.next_sequence == 0
    feed.close()


def test_where_there_is_no_kafka_endpoint_bulk_reading_goes_over_amqp(served: Endpoint) -> None:
    served.hub.send_columns(None, [b"a", b"b"], partition_id="2")
    with reserved_port() as nowhere:
        feed = open_feed(f"{served.url}?timeout_s=3&kafka=127.0.0.1:{nowhere}")
        (chunk,) = feed.read_columns([Range(partition="2", first=0, end=2)])
        assert [event.body for event in chunk.events([0, 1])] == [b"a", b"b"]
        feed.close()
