"""What is special about Event Hubs: links that are cut, positions of others, what messages say."""

import asyncio
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.eventhub import EventData as Message
from azure.eventhub import EventHubProducerClient
from azure.identity.aio import DefaultAzureCredential
from support.eventhubs import KEY, Endpoint, endpoint
from support.processing import until

from leasehold import (
    BadInput,
    Checkpoint,
    EventData,
    FeedUnavailable,
    Group,
    Hub,
    Lease,
    LeaseLost,
    PositionGone,
    open_feed,
)
from leasehold.core import strict_json
from leasehold.core.ranges import Range
from leasehold.endpoints.amqp import management, message_out, receiving
from leasehold.endpoints.amqp.errors import LinkFailed
from leasehold.endpoints.amqp.owner_levels import OwnerLevels
from leasehold.feeds.eventhubs import EventHubsFeed, broker, link
from leasehold.feeds.eventhubs.address import EventHubsSettings
from leasehold.feeds.eventhubs.sdk import DECODERS, Clients, Questions
from leasehold.feeds.eventhubs.troubles import is_busy

START = Checkpoint(next_sequence=0)


@contextmanager
def opened(served: Endpoint, query: str = "fresh_s=0") -> Iterator[EventHubsFeed]:
    feed = open_feed(f"{served.url}?{query}")
    assert isinstance(feed, EventHubsFeed)
    try:
        yield feed
    finally:
        feed.close()


def lease_of(feed: EventHubsFeed, epoch: int, group: str = "alerts") -> Lease:
    of = Group(namespace=feed.namespace, feed=feed.name, name=group)
    return Lease(group=of, partition="0", checkpoint=START, owner="worker-1", epoch=epoch)


def send(served: Endpoint, count: int, partition: str = "0", size: int = 10) -> None:
    for number in range(count):
        served.hub.send([EventData(b"%0*d" % (size, number))], partition_id=partition)


async def read_all(feed: EventHubsFeed, position: Checkpoint = START) -> list[int]:
    found: list[int] = []
    while (batch := await feed.read("0", position, 100)).events:
        found += [event.sequence for event in batch.events]
        position = batch.next
    return found


async def read_on(feed: EventHubsFeed, lease: Lease, position: Checkpoint) -> None:
    while True:
        position = (await feed.read_as_owner(lease, position, 2)).next


def test_the_broker_cuts_the_link_of_a_reader_whose_lease_has_passed_on(served: Endpoint) -> None:
    send(served, 5)

    async def scenario(zombie: EventHubsFeed, owner: EventHubsFeed) -> None:
        old, new = lease_of(zombie, 3), lease_of(owner, 4)
        before = await zombie.read_as_owner(old, START, 2)
        assert len(before.events) == 2
        assert len((await owner.read_as_owner(new, before.next, 10)).events) == 3
        assert served.links() == [("alerts", "0", 4)]
        for _ in range(2):  # once its link was cut, and again with a new one
            with pytest.raises(LeaseLost, match="partition 0, consumer group alerts"):
                await read_on(zombie, old, before.next)
        send(served, 1)
        after = await owner.read_as_owner(new, Checkpoint(next_sequence=5), 10)
        assert [event.sequence for event in after.events] == [5]
        await owner.let_go(new)
        await until(lambda: served.links() == [])

    with opened(served) as zombie, opened(served) as owner:
        asyncio.run(scenario(zombie, owner))


@pytest.mark.parametrize(
    ("query", "level"),
    [("owner_level=none", None), ("owner_level=0", 0), ("consumer_group=$Default", None)],
)
def test_owner_levels_can_be_told_to_be_off_or_as_stock_processors_have_them(
    served: Endpoint, query: str, level: int | None
) -> None:
    send(served, 1)
    with opened(served, query) as feed:
        batch = asyncio.run(feed.read_as_owner(lease_of(feed, 7), START, 10))
        assert len(batch.events) == 1
        group = "$default" if "group" in query else "alerts"
        assert served.links() == [(group, "0", level)]


def test_links_are_attached_again_where_they_were_after_every_kind_of_loss(
    served: Endpoint,
) -> None:
    async def scenario(feed: EventHubsFeed) -> None:
        position, found = START, []
        for lose in (lambda: None, served.cut, restart, served.cut):
            lose()
            send(served, 30)
            while True:
                try:
                    batch = await feed.read("0", position, 7)
                except FeedUnavailable:
                    continue
                if not batch.events:
                    break
                found += [event.sequence for event in batch.events]
                position = batch.next
        assert found == list(range(120))
        assert feed.requests["reattached"] >= 1

    def restart() -> None:
        served.stop()
        served.start()

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_offsets_are_looked_up_over_one_connection_that_keeps_no_link(served: Endpoint) -> None:
    send(served, 40)
    tokens = [served.hub.tokens_of({"0": n})["0"] for n in range(40)]

    async def scenario(feed: EventHubsFeed) -> None:
        assert (await feed.locate("0", "sequence:3")).token == tokens[3]
        lookups = feed._links._lookups._amqp
        held = [len(lookups._session.links), len(lookups._session._input_handles)]
        for number in range(5, 35):
            assert (await feed.locate("0", f"sequence:{number}")).token == tokens[number]
        assert len(served.endpoint._connections) == 2  # the other one is for questions
        assert feed._links._lookups._amqp is lookups
        assert [len(lookups._session.links), len(lookups._session._input_handles)] == held
        await until(lambda: served.links() == [])
        for lose in (served.cut, restart):
            lose()
            assert (await feed.locate("0", "sequence:9")).token == tokens[9]

    def restart() -> None:
        served.stop()
        served.start()

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_a_look_up_that_is_given_up_leaves_no_answer_for_the_next(served: Endpoint) -> None:
    send(served, 40)
    tokens = [served.hub.tokens_of({"0": n})["0"] for n in range(40)]

    async def scenario(feed: EventHubsFeed) -> None:
        for number in range(1, 30):
            given_up = asyncio.ensure_future(feed.locate("0", f"sequence:{number + 5}"))
            await asyncio.wait([given_up], timeout=number / 2000)
            given_up.cancel()
            assert (await feed.locate("0", f"sequence:{number}")).token == tokens[number]

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_where_an_owner_keeps_look_ups_out_a_position_has_no_offset(served: Endpoint) -> None:
    send(served, 9)

    async def scenario(feed: EventHubsFeed) -> None:
        owned = lease_of(feed, 4, "$Default")
        await feed.read_as_owner(owned, START, 2)
        assert await feed.locate("0", "sequence:5") == Checkpoint(next_sequence=5)
        await feed.let_go(owned)
        await until(lambda: served.links() == [])
        assert (await feed.locate("0", "sequence:5")).token == served.hub.tokens_of({"0": 5})["0"]

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_while_nothing_answers_a_read_says_so(served: Endpoint) -> None:
    with opened(served, "fresh_s=0&timeout_s=5") as feed:
        asyncio.run(read_all(feed))
        served.stop()
        try:
            with pytest.raises(FeedUnavailable, match=f"localhost:{served.port}/sensors"):
                asyncio.run(read_all(feed))
        finally:
            served.start()
        assert asyncio.run(read_all(feed)) == []


def test_a_busy_broker_is_left_alone_for_a_while_and_that_is_counted(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(served, 3)
    enter, refused = OwnerLevels.enter, []

    def busy(self: OwnerLevels, *arguments: Any) -> None:
        if not refused:
            refused.append(arguments)
            raise LinkFailed("com.microsoft:server-busy", "The request was terminated (50002)")
        enter(self, *arguments)

    monkeypatch.setattr(OwnerLevels, "enter", busy)
    monkeypatch.setattr(broker, "BUSY_S", 0.2)
    with opened(served) as feed:
        with pytest.raises(FeedUnavailable, match="throttled"):
            asyncio.run(read_all(feed))
        assert asyncio.run(read_all(feed)) == [0, 1, 2]
        assert feed.requests["throttled"] == 1


@pytest.mark.parametrize(
    ("busy", "answer"),
    [(1, ""), (2, "throttled, as the namespace's units are used up"), (9, "throttled")],
)
def test_questions_of_a_busy_namespace_are_asked_again_and_then_given_up(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch, busy: int, answer: str
) -> None:
    ask, left = Questions.ask, [busy]

    async def refused(self: Questions, partition: str | None = None) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            text = "The request was terminated. Error code : 50008."
            raise self._client._amqp_transport.get_error(503, text)
        return await ask(self, partition)

    monkeypatch.setattr(Questions, "ask", refused)
    monkeypatch.setattr(broker, "BUSY_S", 0.01)
    with opened(served) as feed:
        if answer:
            with pytest.raises(FeedUnavailable, match=answer):
                asyncio.run(feed.partitions())
        else:
            assert len(asyncio.run(feed.partitions())) == 4
        assert feed.requests["throttled"] == min(busy, 2)


def test_a_port_or_a_number_does_not_make_an_error_a_busy_namespace() -> None:
    assert not is_busy(ConnectionRefusedError("localhost:50002: connection refused"))
    assert is_busy(RuntimeError("The request was terminated. Error code: 50002. Tracking…"))


def test_what_is_fetched_ahead_is_bounded_in_events_and_in_bytes(served: Endpoint) -> None:
    big = 100_000
    send(served, 40, size=big)

    async def scenario(feed: EventHubsFeed, events_max: int, bytes_max: int) -> None:
        position = START
        for _ in range(8):
            batch = await feed.read("0", position, 3)
            (link,) = feed._links._links.values()
            await asyncio.sleep(0.05)  # to come as it likes
            assert len(link._events) <= events_max
            assert link._bytes <= bytes_max
            position = batch.next

    with opened(served, "fresh_s=0&prefetch=5") as feed:
        asyncio.run(scenario(feed, 5, 5 * (big + 1000)))
    with opened(served, "fresh_s=0&prefetch_bytes=500000") as feed:
        asyncio.run(scenario(feed, 40, 500_000))


def test_what_a_message_says_comes_among_the_properties_and_goes_back(served: Endpoint) -> None:
    message = Message(b"door")
    message.properties = {"kind": "door", "count": 3, "open": True, "raw": b"\xff", "none": None}
    message.content_type, message.message_id = "application/json", "m-1"
    client = EventHubProducerClient.from_connection_string(
        served.connection_string, eventhub_name="sensors"
    )
    with client:
        client.send_batch([message], partition_key="H1")

    async def all_events(feed: EventHubsFeed) -> list[Any]:
        partitions = await feed.partitions()
        return [e for p in partitions for e in (await feed.read(p.id, START, 9)).events]

    with opened(served) as feed:
        (event,) = asyncio.run(all_events(feed))
        assert (event.body, event.partition_key) == (b"door", "H1")
        said = {
            "kind": "door",
            "count": 3,
            "open": True,
            "raw": "/w==",
            "none": None,
            "amqp:content-type": "application/json",
            "amqp:message-id": "m-1",
        }
        assert event.properties == said
        feed.send(EventData(event.body, event.properties), partition_key=event.partition_key)
        first, again = asyncio.run(all_events(feed))
        assert (again.body, again.partition_key, again.partition) == (
            b"door",
            "H1",
            first.partition,
        )
        assert again.properties == said


def test_properties_of_every_type_are_read_and_can_be_kept(served: Endpoint) -> None:
    """The SDK fails at decimals and characters, as .NET and Java may send, for ever."""
    given: dict[str, Any] = {
        "price": Decimal("-12.340"),
        "large": Decimal("79228162514264337593543950335"),
        "unit": Decimal("1E-28"),
        "none": float("nan"),
        "most": float("inf"),
        "id": UUID(int=7),
    }
    message = Message(b"paid")
    message.properties = given
    client = EventHubProducerClient.from_connection_string(
        served.connection_string, eventhub_name="sensors"
    )
    with client:
        client.send_batch([Message(b"before")], partition_id="0")
        client.send_batch([message], partition_id="0")
        client.send_batch([Message(b"after")], partition_id="0")

    with opened(served) as feed:
        batch = asyncio.run(feed.read("0", START, 9))
        assert [event.body for event in batch.events] == [b"before", b"paid", b"after"]
        found = dict(batch.events[1].properties)
        assert found == {
            "price": "-12.340",
            "large": "79228162514264337593543950335",
            "unit": "1E-28",
            "none": "nan",
            "most": "inf",
            "id": str(UUID(int=7)),
        }
        assert strict_json.loads(json.dumps(found)) == found
        (chunk,) = feed.read_columns([Range(partition="0", first=1, end=2)])
        assert dict(chunk.events([0])[0].properties) == found


@pytest.mark.parametrize(
    ("code", "encoded", "value"),
    [
        (0x73, "0001f3e0", "\U0001f3e0"),
        (0x74, "3200000f", Decimal("1.5")),
        (0x84, "b1a00000000004d2", Decimal("-123.4")),
        (0x94, "303e000000000000000000000000000f", Decimal("1.5")),
        (0x94, "f8000000000000000000000000000000", Decimal("-Infinity")),
        (0x74, "6cb8967f", Decimal("9999999")),
    ],
)
def test_what_the_sdk_cannot_decode_is_decoded_as_amqp_says(
    code: int, encoded: str, value: Any
) -> None:
    rest, found = DECODERS[code](memoryview(bytes.fromhex(encoded) + b"rest"))
    assert (bytes(rest), found) == (b"rest", value)


def test_an_event_that_cannot_be_understood_is_told_and_not_left_out(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK logs what its callback raises, and goes on with the next event."""
    plain, broken = link.event_of, {2}

    def event_of(message: Any, partition: str) -> Any:
        event = plain(message, partition)
        if event.sequence in broken:
            raise ValueError("what is this?")
        return event

    monkeypatch.setattr(link, "event_of", event_of)
    send(served, 5)
    with opened(served) as feed:
        position = asyncio.run(feed.read("0", START, 2)).next
        with pytest.raises(FeedUnavailable, match="what is this"):
            asyncio.run(feed.read("0", position, 2))
        broken.clear()
        assert asyncio.run(read_all(feed, position)) == [2, 3, 4]


def test_a_range_that_retention_overtakes_is_not_taken_for_whole(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "READ_EVENTS", 1)  # which the endpoint would have at hand
    send(served, 40)
    with opened(served, "fresh_s=0&prefetch=2") as feed:
        chunks = feed.read_columns([Range(partition="0", first=0, end=40)])
        assert next(chunks).events([0])[0].sequence == 0
        served.hub.trim_before("0", 30)
        with pytest.raises(PositionGone) as gone:
            list(chunks)
        assert gone.value.reason == "retention"


def test_what_was_heard_a_moment_ago_makes_no_newer_position_one_beyond_the_end(
    served: Endpoint,
) -> None:
    """Another instance has read on; a group would be sent back to its beginning."""
    send(served, 1)

    async def scenario(feed: EventHubsFeed, other: EventHubsFeed) -> None:
        await feed.extents()
        send(served, 2)
        after = (await other.read("0", START, 3)).next
        assert after.next_sequence == 3
        assert await feed.event_times({"0": after}) == {}

    with opened(served, "fresh_s=60") as feed, opened(served) as other:
        asyncio.run(scenario(feed, other))


def test_checkpoints_of_stock_processors_are_good_whatever_they_leave_out(
    served: Endpoint,
) -> None:
    send(served, 8)

    async def scenario(feed: EventHubsFeed) -> None:
        (event,) = (await feed.read("0", Checkpoint(next_sequence=4), 1)).events
        by_sequence = Checkpoint(next_sequence=5)  # Java's
        by_offset = Checkpoint(next_sequence=0, token=event.offset)
        both = Checkpoint(next_sequence=5, token=event.offset)
        for position in (by_sequence, by_offset, both):
            assert await read_all(feed, position) == [5, 6, 7]

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_offsets_of_a_replicated_namespace_are_text_and_go_on_where_they_are(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``1:2:3`` they come with events, are what stock processors keep, and name a position."""
    plain_event, plain_info = message_out._own_annotations, management._partition
    plain_start = receiving._at_offset

    def event(sequence: int, offset: Any, time_ms: int) -> bytes:
        return plain_event(sequence, f"1:{offset}:3", time_ms)

    def info(hub: Hub, partition: str) -> dict[str, Any]:
        known = plain_info(hub, partition)
        return known | {"last_enqueued_offset": f"1:{known['last_enqueued_offset']}:3"}

    def start(hub: Hub, partition: str, offset: str, inclusive: bool) -> int:
        number = offset.split(":")[1] if ":" in offset else offset
        return plain_start(hub, partition, number, inclusive)

    monkeypatch.setattr(message_out, "_own_annotations", event)
    monkeypatch.setattr(management, "_partition", info)
    monkeypatch.setattr(receiving, "_at_offset", start)
    send(served, 8)

    async def scenario(feed: EventHubsFeed) -> None:
        batch = await feed.read("0", START, 5)
        assert (batch.next.next_sequence, batch.next.token[:2]) == (5, "1:")
        assert await read_all(feed, batch.next) == [5, 6, 7]
        by_offset = Checkpoint(next_sequence=0, token=batch.next.token)
        assert await read_all(feed, by_offset) == [5, 6, 7]
        located = await feed.locate("0", f"offset:{batch.next.token}")
        assert located.next_sequence == 4
        assert (await feed.locate("0", "latest")).next_sequence == 8

    with opened(served) as feed:
        asyncio.run(scenario(feed))


def test_a_recreated_hub_is_another_one(
    served: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(served, 8)
    with opened(served) as feed:
        batch = asyncio.run(feed.read("0", START, 5))
        before = feed.identity
        served.stop()
        served.path = tmp_path / "again.db"
        Hub.create(served.path, name="sensors", namespace="homes.local", partitions=4).close()
        served.start()
        send(served, 20)
        with pytest.raises(PositionGone) as gone:
            read_until_told(feed, batch.next)
        assert gone.value.reason == "other feed"
        assert asyncio.run(read_all(feed, gone.value.resume)) == list(range(20))
        asyncio.run(feed.partitions())
        assert feed.identity != before


def read_until_told(feed: EventHubsFeed, position: Checkpoint) -> None:
    while True:
        with suppress(FeedUnavailable):
            position = asyncio.run(feed.read("0", position, 1)).next


def test_no_secret_is_in_a_url_a_pickle_an_error_or_a_log(
    served: Endpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    send(served, 2)
    with opened(served) as feed:
        assert asyncio.run(read_all(feed)) == [0, 1]
        copy = pickle.loads(pickle.dumps(feed))
        copy.close()
        shown = [repr(feed), feed.address, str(pickle.dumps(feed)), repr(feed.settings)]
    wrong = served.connection_string.replace(KEY, "c29tZXRoaW5nIGVsc2U=")
    monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", wrong)
    with opened(served) as feed, pytest.raises(BadInput, match="AZURE_EVENTHUBS") as refused:
        asyncio.run(feed.partitions())
    shown += [str(refused.value), caplog.text]
    assert not [text for text in shown if KEY in text or "c29tZXRo" in text]


def test_a_url_or_secret_that_cannot_be_right_is_refused_with_the_remedy(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, why in {
        "eventhubs://user:pass@x.net/hub": "holds no credentials",
        "eventhubs://x.servicebus.windows.net": "names the namespace and the hub",
        "eventhubs://x.net/hub?sharedaccesskey=abc": "credentials come from the environment",
        "eventhubs://x.net/hub?transport=carrier-pigeon": "amqp, websocket, kafka",
        "eventhubs://x.net/hub?owner_level=-1": "owner_level is",
        "eventhubs://x.net/hub?prefetch=0": "prefetch is a whole number",
        "eventhubs://x.net/hub?timeout_s=soon": "timeout_s is a number of seconds",
        "eventhubs://x.net/hub?secret=SharedAccessKey=abc": "name of an environment variable",
        "eventhubs://x.net/hub?secret=NO_SUCH": "no such variable",
        "eventhubs://x.net/hub": f"is for localhost:{served.port}, and the URL names x.net",
    }.items():
        with pytest.raises(BadInput, match=why) as refused:
            open_feed(url)
        assert "abc" not in str(refused.value)
        assert "pass" not in str(refused.value)
    monkeypatch.setenv("OTHER", served.connection_string + ";EntityPath=doors")
    with pytest.raises(BadInput, match="is for the hub doors"):
        open_feed(f"{served.url}?secret=OTHER")
    with opened(served) as feed:
        served.hub.send([EventData(b"x")], partition_id="0")
        assert open_feed(feed.address).address == feed.address
    missing = open_feed(f"eventhubs://localhost:{served.port}/nowhere")
    with pytest.raises(BadInput, match="no such hub"):
        asyncio.run(missing.partitions())
    missing.close()


def test_several_hubs_are_reached_with_a_secret_each(
    served: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with endpoint(tmp_path / "other.db", name="doors") as other:
        monkeypatch.setenv("DOORS", other.connection_string)
        for hub, query in ((served, "fresh_s=0"), (other, "fresh_s=0&secret=DOORS")):
            send(hub, 3)
            with opened(hub, query) as feed:
                assert asyncio.run(read_all(feed)) == [0, 1, 2]


def test_without_a_connection_string_whoever_is_signed_in_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AZURE_EVENTHUBS_CONNECTION_STRING", raising=False)
    settings = EventHubsSettings.from_url("eventhubs://homes.servicebus.windows.net/sensors")

    async def scenario() -> None:
        clients = Clients(settings)
        client: Any = clients.consumer("alerts")
        assert isinstance(client._credential, DefaultAzureCredential)
        assert (client._address.hostname, client.eventhub_name) == (settings.host, "sensors")
        await clients.close()

    asyncio.run(scenario())
