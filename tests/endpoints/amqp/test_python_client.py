"""The official Python client (azure-eventhub) against the endpoint."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import (
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    TransportType,
)
from azure.eventhub._buffered_producer._partition_resolver import PartitionResolver
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumer
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError
from support.amqp_endpoint import ServedHub, served_hub

from leasehold import Hub
from leasehold.endpoints.amqp.key_hash import official_partition_of

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(30)]


@pytest.fixture
def producer(served: ServedHub) -> Iterator[Any]:
    with EventHubProducerClient.from_connection_string(served.connection_string) as client:
        yield client


def received(
    served: ServedHub, partition: str, count: int, start: Any = "-1", **settings: Any
) -> list[EventData]:
    """As many events of a partition, as the official consumer receives them."""
    made = {key: settings.pop(key) for key in MADE_WITH & settings.keys()}
    client = EventHubConsumerClient.from_connection_string(
        served.connection_string, "$Default", **made
    )
    found: list[EventData] = []

    def on_batch(context: Any, events: Sequence[EventData]) -> None:
        found.extend(events)
        if len(found) >= count:
            client.close()

    with client:
        client.receive_batch(
            on_batch, partition_id=partition, starting_position=start, max_wait_time=1, **settings
        )
    return found


MADE_WITH = {"transport_type", "custom_endpoint_address", "connection_verify"}


def last_of(served: ServedHub, partition: str) -> int:
    with Hub.open(served.path) as hub:
        return hub.partition_properties(partition).last_sequence


def bodies(events: Sequence[EventData]) -> list[str]:
    return [event.body_as_str() for event in events]


def test_what_is_sent_is_received_in_order_and_stored_in_the_hub(served, producer):
    before = last_of(served, "0")
    producer.send_batch([EventData(f"event {n}") for n in range(50)], partition_id="0")
    events = received(served, "0", 50, before)
    assert bodies(events) == [f"event {n}" for n in range(50)]
    assert [event.sequence_number for event in events] == list(range(before + 1, before + 51))
    with Hub.open(served.path) as hub:
        stored = hub.read_batch("0", hub.position_of("0", before + 1), 100).events
    assert [event.body for event in stored] == [f"event {n}".encode() for n in range(50)]
    assert [event.offset for event in stored] == [event.offset for event in events]


def test_events_that_others_write_into_the_hub_are_received_as_well(served):
    before = last_of(served, "1")
    with Hub.open(served.path) as hub:
        hub.send_columns(["home 7"], [b"direct"], ['{"unit": "C", "whole": 3}'], partition_id=1)
    (event,) = received(served, "1", 1, before)
    assert (event.body_as_str(), event.partition_key) == ("direct", b"home 7")
    assert event.properties == {b"unit": b"C", b"whole": 3}


def test_everything_that_a_message_carries_comes_back(served, producer):
    before = last_of(served, "0")
    sent = AmqpAnnotatedMessage(
        data_body=[b"one", b"two"],
        header=AmqpMessageHeader(priority=5, time_to_live=60_000),
        properties=AmqpMessageProperties(message_id="m-1", subject="about", user_id=b"me"),
        application_properties={"n": 5, "half": 0.5, "raw": b"\xff", "yes": True},
        annotations={"x-mine": 7},
        delivery_annotations={"x-way": "short"},
    )
    producer.send_batch([sent, AmqpAnnotatedMessage(value_body={"a": [1, 2]})], partition_id="0")
    first, second = (event.raw_amqp_message for event in received(served, "0", 2, before))
    assert list(first.body) == [b"one", b"two"]
    assert (first.header.priority, first.header.time_to_live) == (5, 60_000)
    assert (first.properties.message_id, first.properties.subject) == (b"m-1", b"about")
    assert first.application_properties == {
        b"n": 5,
        b"half": 0.5,
        b"raw": b"\xff",
        b"yes": True,
    }
    assert first.annotations[b"x-mine"] == 7
    assert first.delivery_annotations[b"x-way"] == b"short"
    assert second.body == {b"a": [1, 2]}


def test_a_key_goes_to_the_partition_that_official_clients_expect(served, producer):
    keys = [f"home-{n}" for n in range(12)]
    for key in keys:
        producer.send_batch([EventData(key)], partition_key=key)
    found = {}
    with Hub.open(served.path) as hub:
        for partition in hub.partition_ids:
            position = hub.position_of(partition, "earliest")
            for event in hub.read_batch(partition, position, 100_000).events:
                if event.partition_key in keys:
                    found[event.partition_key] = int(partition)
    assert found == {key: official_partition_of(key, 4) for key in keys}


def test_the_buffered_producer_sends_all(served):
    before = {number: last_of(served, number) for number in "0123"}
    failed: list[Any] = []
    done: list[Any] = []
    client = EventHubProducerClient.from_connection_string(
        served.connection_string,
        buffered_mode=True,
        max_wait_time=1,
        on_success=lambda events, partition: done.extend(events),
        on_error=lambda events, partition, error: failed.append(error),
    )
    keys = [f"key-{n}" for n in range(20)]
    with client:
        for key in keys:
            client.send_event(EventData(key), partition_key=key)
    resolver = PartitionResolver(list("0123"))
    expected = {key: resolver.get_partition_id_by_partition_key(key) for key in keys}
    with Hub.open(served.path) as hub:
        found = {
            event.body.decode(): event.partition
            for number, last in before.items()
            for event in hub.read_batch(number, hub.position_of(number, last + 1), 1000).events
        }
    assert (found, failed, len(done)) == (expected, [], 20)


def test_a_full_batch_of_a_megabyte_is_one_send(served, producer):
    before = last_of(served, "2")
    batch = producer.create_batch(partition_id="2")
    assert batch.max_size_in_bytes == 1 << 20
    while True:
        try:
            batch.add(EventData(b"x" * 20_000))
        except ValueError:
            break
    producer.send_batch(batch)
    large = EventData(b"y" * 1_000_000)
    producer.send_batch([large], partition_id="2")
    events = received(served, "2", len(batch) + 1, before)
    assert [len(event.body_as_str()) for event in events] == [20_000] * len(batch) + [1_000_000]
    with pytest.raises(ValueError, match="exceed"):
        producer.send_batch([EventData(b"z" * (1 << 20))], partition_id="2")


def test_events_are_received_from_any_position(served, producer):
    before = last_of(served, "3")
    for n in range(3):
        producer.send_batch([EventData(f"{n}")], partition_id="3")
    all_three = received(served, "3", 3, before)
    second = all_three[1]
    assert bodies(all_three) == ["0", "1", "2"]
    inclusive = {"starting_position_inclusive": True}
    assert bodies(received(served, "3", 2, second.sequence_number, **inclusive)) == ["1", "2"]
    assert bodies(received(served, "3", 1, second.sequence_number)) == ["2"]
    assert bodies(received(served, "3", 2, second.offset, **inclusive)) == ["1", "2"]
    assert bodies(received(served, "3", 1, second.offset)) == ["2"]
    just_before = second.enqueued_time - timedelta(milliseconds=1)
    assert bodies(received(served, "3", 2, just_before))[-2:] == ["1", "2"]


def test_latest_means_what_comes_from_now_on(served, producer):
    found = threading.Event()
    client = EventHubConsumerClient.from_connection_string(served.connection_string, "$Default")
    got: list[EventData] = []

    def on_event(context: Any, event: EventData | None) -> None:
        if event is not None:
            got.append(event)
        found.set()

    thread = threading.Thread(
        target=client.receive,
        args=(on_event,),
        kwargs={"partition_id": "1", "starting_position": "@latest", "max_wait_time": 1},
    )
    thread.start()
    try:
        assert found.wait(60)  # it waited in vain once: it is there
        producer.send_batch([EventData("new")], partition_id="1")
        while not got:
            found.clear()
            assert found.wait(60)
    finally:
        client.close()
        thread.join(60)
    assert bodies(got) == ["new"]


def test_what_the_hub_and_its_partitions_hold_is_told(served, producer):
    producer.send_batch([EventData("one more")], partition_id="0")
    about = producer.get_eventhub_properties()
    assert (about["eventhub_name"], about["partition_ids"]) == ("sensors", ["0", "1", "2", "3"])
    with Hub.open(served.path) as hub:
        known = hub.partition_properties("0")
    told = producer.get_partition_properties("0")
    assert told["last_enqueued_sequence_number"] == known.last_sequence
    assert told["last_enqueued_offset"] == known.last_offset
    assert (told["beginning_sequence_number"], told["is_empty"]) == (0, False)
    impatient = EventHubProducerClient.from_connection_string(
        served.connection_string, retry_total=0
    )
    with impatient, pytest.raises(EventHubError):
        impatient.get_partition_properties("99")


def test_the_end_of_the_partition_is_told_with_every_event(served, producer):
    before = last_of(served, "0")
    producer.send_batch([EventData("a"), EventData("b")], partition_id="0")
    client = EventHubConsumerClient.from_connection_string(served.connection_string, "$Default")
    told: list[Any] = []

    def on_event(context: Any, event: EventData) -> None:
        told.append(context.last_enqueued_event_properties)
        client.close()

    with client:
        client.receive(
            on_event,
            partition_id="0",
            starting_position=before,
            track_last_enqueued_event_properties=True,
        )
    assert told[0]["sequence_number"] == before + 2


def test_a_higher_owner_level_takes_a_partition_over(served, producer):
    producer.send_batch([EventData("a")], partition_id="3")
    errors: list[Exception] = []
    low = EventHubConsumerClient.from_connection_string(served.connection_string, "$Default")
    reads = threading.Event()
    thread = threading.Thread(
        target=low.receive,
        kwargs={
            "on_event": lambda context, event: reads.set(),
            "on_error": lambda context, error: (errors.append(error), low.close()),
            "partition_id": "3",
            "owner_level": 1,
            "starting_position": "-1",
            "max_wait_time": 1,
        },
    )
    thread.start()
    try:
        assert reads.wait(60)
        assert received(served, "3", 1, owner_level=2)
        thread.join(60)
    finally:
        low.close()
        thread.join(60)
    assert "stolen" in str(errors[0])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ((r"(SharedAccessKey=)[^;]+", r"\1d3Jvbmc="), AuthenticationError),
        ((r"(SharedAccessKeyName=)[^;]+", r"\1wrong"), AuthenticationError),
        ((r"EntityPath=\w+", "EntityPath=nothing"), (AuthenticationError, ConnectError)),
    ],
)
def test_who_has_no_right_is_told_so(served, change, error):
    wrong = re.sub(*change, served.connection_string)
    with (
        EventHubProducerClient.from_connection_string(wrong, retry_total=0) as client,
        pytest.raises(error),
    ):
        client.send_batch([EventData("x")])


def test_it_works_over_a_websocket(served):
    over = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://localhost:{served.port}",
    }
    before = last_of(served, "0")
    with EventHubProducerClient.from_connection_string(served.connection_string, **over) as client:
        client.send_batch([EventData("y" * 300_000), EventData("small")], partition_id="0")
    events = received(served, "0", 2, before, **over)
    assert [len(body) for body in bodies(events)] == [300_000, 5]


def test_it_works_over_tls(tmp_path):
    with served_hub(tmp_path, "--tls", partitions=1) as secured:
        for transport in (TransportType.Amqp, TransportType.AmqpOverWebsocket):
            settings = {
                "transport_type": transport,
                "custom_endpoint_address": f"sb://localhost:{secured.port}",
                "connection_verify": f"{secured.path}.certificate.pem",
            }
            before = last_of(secured, "0")
            with EventHubProducerClient.from_connection_string(
                secured.connection_string, **settings
            ) as client:
                client.send_batch([EventData("secret")])
            assert bodies(received(secured, "0", 1, before, **settings)) == ["secret"]


def test_clients_go_on_after_the_endpoint_was_killed_and_started_again(tmp_path: Path) -> None:
    with served_hub(tmp_path, partitions=1) as served:
        connection = served.connection_string
        got: list[str] = []
        consumer = EventHubConsumerClient.from_connection_string(
            connection, "$Default", retry_backoff_factor=0.1
        )
        thread = threading.Thread(
            target=consumer.receive,
            args=(lambda context, event: got.append(event.body_as_str()) if event else None,),
            kwargs={"partition_id": "0", "starting_position": "-1", "max_wait_time": 1},
        )
        thread.start()
        try:
            with EventHubProducerClient.from_connection_string(
                connection, retry_total=10, retry_backoff_factor=0.1
            ) as client:
                client.send_batch([EventData("before")])
                wait_until(lambda: "before" in got)
                served.stop(kill=True)
                served.start()
                client.send_batch([EventData("after")])
                wait_until(lambda: "after" in got)
        finally:
            consumer.close()
            thread.join(60)
        assert served.connection_string == connection
        assert next(body for body in got if body != "before") == "after"


def test_the_async_client_sends_and_receives(served):
    async def flow() -> list[str]:
        before = last_of(served, "2")
        async with AsyncProducer.from_connection_string(served.connection_string) as client:
            await asyncio.gather(
                *(client.send_batch([EventData(f"{n}")], partition_id="2") for n in range(5))
            )
        consumer = AsyncConsumer.from_connection_string(served.connection_string, "$Default")
        found: list[str] = []
        done = asyncio.Event()

        async def on_event(context: Any, event: EventData) -> None:
            found.append(event.body_as_str())
            if len(found) == 5:
                done.set()

        async with consumer:
            task = asyncio.ensure_future(
                consumer.receive(on_event, partition_id="2", starting_position=before)
            )
            await asyncio.wait_for(done.wait(), 100)
        task.cancel()  # else it ends when it next looks whether it was closed
        await asyncio.wait((task,))
        return found

    assert sorted(asyncio.run(flow())) == [f"{n}" for n in range(5)]


def wait_until(holds: Callable[[], bool], bound_s: float = 90) -> None:
    for _ in range(int(bound_s * 20)):
        if holds():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come about in time")
