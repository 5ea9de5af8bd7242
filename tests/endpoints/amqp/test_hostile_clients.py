"""Clients that mean harm: what they can cost is bounded, and nobody else notices."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.amqp_endpoint import ServedHub, served_hub
from support.amqp_peer import HEADER, SOURCE, TARGET, Peer, condition_of, message, token
from support.eventhubs import Endpoint, endpoint

from leasehold import EventData, Hub
from leasehold.endpoints.amqp import connection
from leasehold.endpoints.amqp.codec import Described, UInt, ULong
from leasehold.endpoints.amqp.frames import (
    Attach,
    Begin,
    Close,
    Detach,
    Flow,
    Open,
    Transfer,
    encode_frame,
)
from leasehold.endpoints.amqp.sections import BATCH_FORMAT
from leasehold.endpoints.amqp.sending import ProducerLink

READ = "sensors/ConsumerGroups/{}/Partitions/0"
BODY = message((0x75, b"x"))
OPENED = HEADER + encode_frame(0, Open("a")) + encode_frame(0, Begin(None, *[UInt(9)] * 3))


@pytest.fixture
def peer(served: ServedHub) -> Iterator[Peer]:
    with Peer(served.port) as made:
        assert made.put_token(token(served)) == 202
        yield made


def memory_mb(served: ServedHub) -> float:
    """The most that it ever took."""
    assert served.process
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def bomb(size: int) -> bytes:
    """An array of arrays that each say to have a thousand elements, which take no bytes."""
    inner = struct.pack(">II", 5, 1024) + b"\x40"
    count = size // len(inner)
    elements = b"\xf0" + inner * count
    return struct.pack(">BII", 0xF0, len(elements) + 4, count) + elements


def test_a_small_message_does_not_become_a_large_value(served: ServedHub) -> None:
    before = memory_mb(served)
    with Peer(served.port) as stranger:
        stranger.attach(0, "$cbs", receive=False)
        stranger.transfer(0, b"\x00\x53\x77" + bomb(60_000), 1)
        assert stranger.settled() == "amqp:decode-error"
    assert memory_mb(served) - before < 30


@pytest.mark.parametrize(
    "hostile",
    [
        Flow(UInt(0), UInt(9), UInt(0), UInt(9), UInt(0), UInt(0), ULong(1 << 40), echo=True),
        Attach("a", ULong(1 << 33), True),
        Attach("a", UInt(0), False, UInt(300)),  # type: ignore[arg-type]
        Begin(None, ULong(1 << 32), UInt(9), UInt(9)),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_numbers_that_have_no_room_in_an_answer_end_the_connection(
    served: ServedHub, hostile: Any
) -> None:
    with Peer(served.port, open_=False) as stranger:
        stranger.write(OPENED + encode_frame(0, hostile))
        assert stranger.ended() == "amqp:invalid-field"


@pytest.mark.parametrize("address", ["sb://[x", "sb://[::1/none", "://", "%ff%fe/\udcff"])
def test_an_address_that_is_none_is_refused_like_any_other(
    served: ServedHub, peer: Peer, address: str
) -> None:
    text = address.encode("utf-8", "surrogateescape").decode("latin-1")
    assert peer.put_token(token(served), name=text, base=110) in (401, 404)
    peer.attach(0, text, receive=False)
    assert condition_of(peer.expect(Detach).error) == "amqp:not-found"


@pytest.mark.parametrize(
    "annotations",
    [b"\xc1\x00", b"\xd1\x00\x00\x00\x00", b"\xc1\x01\x04", b"\xc1\x03\x02\x40\x40"],
)
def test_a_map_that_lies_about_its_size_is_refused_and_the_link_goes_on(
    peer: Peer, annotations: bytes
) -> None:
    peer.attach(0, "sensors/Partitions/1", receive=False)
    lie = b"\x00\x53\x72" + annotations
    accepted = annotations == b"\xc1\x03\x02\x40\x40"  # null: null
    peer.transfer(0, lie + BODY, 1)
    assert peer.settled() == ("" if accepted else "amqp:decode-error")
    peer.transfer(0, BODY, 2)
    assert peer.settled() == ""


@pytest.mark.parametrize("code", [0x70, 0x71, 0x72, 0x73, 0x74, 0x78])
def test_a_section_of_another_type_is_refused_and_stands_in_no_readers_way(
    peer: Peer, code: int
) -> None:
    peer.attach(0, "sensors/Partitions/1", receive=False)
    peer.transfer(0, message((code, "text")) + BODY, 1)
    assert peer.settled() == "amqp:decode-error"


@pytest.mark.parametrize("what", ["links", "sessions"])
def test_who_has_no_token_gets_few_links_and_sessions(served: ServedHub, what: str) -> None:
    with Peer(served.port) as stranger:
        for n in range(1, 40):
            attach = Attach("a" * 50_000, UInt(n), True, source=Described(SOURCE, ["$cbs"]))
            begin = Begin(None, UInt(0), UInt(9), UInt(9))
            with suppress(ConnectionError):
                stranger.send(*((attach, b"", 0) if what == "links" else (begin, b"", n)))
        found = stranger.ended()
    assert found in ("amqp:resource-limit-exceeded", "")  # it hung up while we went on


def test_answers_that_nobody_takes_are_bounded_in_bytes(served: ServedHub) -> None:
    before = memory_mb(served)
    with Peer(served.port) as stranger:
        stranger.attach(0, "$cbs", receive=False)
        for n in range(8):
            source, target = Described(SOURCE, ["$cbs"]), Described(TARGET, [f"here {n}"])
            stranger.send(Attach("a", UInt(1 + n), True, source=source, target=target))
        with suppress(ConnectionError):
            for n in range(400):
                properties = ["i" * 60_000, None, None, None, f"here {n % 8}"]
                request = message((0x73, properties), (0x74, {"operation": "x"}))
                stranger.transfer(0, request, n + 1, settled=True)
        assert stranger.ended() in ("amqp:resource-limit-exceeded", "")
    with Peer(served.port) as stranger:
        stranger.attach(0, "$cbs", receive=False)
        for _ in range(3):
            stranger.transfer(0, bytes(60_000), 1, more=True)
        assert condition_of(stranger.expect(Detach).error) == "amqp:link:message-size-exceeded"
    assert memory_mb(served) - before < 60


def test_parts_without_a_payload_take_no_room(tmp_path: Path) -> None:
    with endpoint(tmp_path / "sensors.db", partitions=1) as served, Peer(served.port) as client:
        assert client.put_token(token(served)) == 202
        client.attach(0, "sensors/Partitions/0", receive=False)
        client.expect(Flow)  # its credit; the next one answers the echo, after all transfers
        for _ in range(100):
            client.transfer(0, b"", 1, more=True)
        client.send(Flow(UInt(0), UInt(9), UInt(0), UInt(9), echo=True))
        client.expect(Flow)
        (link,) = [
            each
            for one in served.endpoint._connections
            for each in one.links()
            if isinstance(each, ProducerLink)
        ]
        assert len(link._parts) == 1
        client.transfer(0, BODY, 1)
        assert client.settled() == ""


def test_deliveries_that_are_given_up_cost_credit_that_comes_back(peer: Peer) -> None:
    peer.attach(0, "sensors/Partitions/1", receive=False)
    given = peer.expect(Flow)
    assert given.link_credit is not None
    for n in range(given.link_credit):
        peer.transfer(0, b"begun", 2 * n + 1, more=True)
        peer.transfer(0, b"", 2 * n + 1, aborted=True)
    peer.transfer(0, BODY, 10_000)
    again = peer.expect(Flow)
    assert again.delivery_count is not None
    assert again.delivery_count > 100
    assert peer.settled() == ""


def test_pings_of_who_does_not_read_are_bounded(served: ServedHub) -> None:
    before = memory_mb(served)
    ping = b"\x89\xff" + struct.pack(">Q", 1 << 19) + b"\0\0\0\0" + b"x" * (1 << 19)
    with Peer(served.port, open_=False) as stranger:
        stranger.write(
            b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
            b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
        )
        with pytest.raises(ConnectionError):
            stranger.write(ping * 200)
    assert memory_mb(served) - before < 60


def test_who_reads_slowly_from_many_partitions_at_once_stays_connected(tmp_path: Path) -> None:
    links, events = 60, 16
    with served_hub(tmp_path, partitions=1) as served:
        with Hub.open(served.path) as hub:
            hub.send([EventData(bytes(20_000))] * events, partition_id=0)
        with Peer(served.port) as slow:
            slow.socket.setsockopt(1, 8, 1 << 16)  # the kernel keeps little of it
            assert slow.put_token(token(served)) == 202
            for n in range(1, links + 1):
                source = Described(SOURCE, [READ.format(f"group-{n}")])
                slow.send(Begin(None, UInt(0), UInt(5000), UInt(5000)), channel=n)
                slow.send(Attach("a", UInt(0), True, source=source), channel=n)
                credit = Flow(UInt(0), *[UInt(5000)] * 3, UInt(0), UInt(0), UInt(events))
                slow.send(credit, channel=n)
            time.sleep(0.7)  # as a client does that is busy with something else
            for _ in range(links * events):
                slow.frame(Transfer)


def test_a_batch_of_a_hundred_thousand_events_is_one_delivery(
    served: ServedHub, peer: Peer
) -> None:
    events = 100_000
    peer.attach(0, "sensors/Partitions/2", receive=False)
    whole = message((0x75, message((0x75, b"")))) * events
    assert len(whole) < 1 << 20
    for at in range(0, len(whole), 60_000):
        more = at + 60_000 < len(whole)
        peer.send(
            Transfer(UInt(0), UInt(1), b"t", UInt(BATCH_FORMAT), more=more), whole[at : at + 60_000]
        )
    assert peer.settled() == ""
    with Hub.open(served.path) as hub:
        assert hub.partition_properties("2").events == events


def test_of_batches_under_way_when_it_is_killed_those_accepted_are_stored_and_none_in_part(
    tmp_path: Path,
) -> None:
    size, clients = 300, 3
    accepted: list[set[bytes]] = [set() for _ in range(clients)]

    def send(served: ServedHub, who: int) -> None:
        with Peer(served.port) as client, suppress(ConnectionError, AssertionError):
            assert client.put_token(token(served)) == 202
            client.attach(0, f"sensors/Partitions/{who % 2}", receive=False)
            for n in range(10_000):
                name = b"%d/%d" % (who, n)
                batch = message((0x75, message((0x75, name + b" " * 100)))) * size
                client.send(Transfer(UInt(0), UInt(n), b"t", UInt(BATCH_FORMAT)), batch)
                if n >= 5:  # some are always under way
                    assert client.settled() == ""
                    accepted[who].add(b"%d/%d" % (who, n - 5))

    with served_hub(tmp_path, partitions=2) as served:
        threads = [threading.Thread(target=send, args=(served, who)) for who in range(clients)]
        for thread in threads:
            thread.start()
        while not all(len(some) > 20 for some in accepted):
            time.sleep(0.01)
        served.stop(kill=True)
        for thread in threads:
            thread.join()
    with Hub.open(served.path) as hub:
        stored: dict[bytes, int] = {}
        for partition in hub.partition_ids:
            position = hub.position_of(partition, "earliest")
            while len((found := hub.read_batch(partition, position, 10_000)).events):
                for event in found.events:
                    name = event.body.strip()
                    stored[name] = stored.get(name, 0) + 1
                position = found.next
    assert set().union(*accepted) <= stored.keys()
    assert set(stored.values()) == {size}


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(connection, "OPEN_WITHIN_S", 1.0)
    monkeypatch.setattr(connection, "SILENT_MAX_S", 1.0)
    with endpoint(tmp_path / "sensors.db", partitions=1) as made:
        yield made


@pytest.mark.parametrize("said", [b"", HEADER, b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n"])
def test_who_connects_and_never_opens_is_not_waited_for(impatient: Endpoint, said: bytes) -> None:
    with Peer(impatient.port, open_=False) as silent:
        silent.write(said)
        while silent.socket.recv(1000):
            pass


def test_who_is_gone_without_a_word_is_forgotten(impatient: Endpoint) -> None:
    with Peer(impatient.port) as silent:
        assert condition_of(silent.expect(Close).error) == "amqp:connection:forced"
    assert impatient.links() == []


def test_while_the_hub_is_away_clients_are_told_to_come_again(tmp_path: Path) -> None:
    with endpoint(tmp_path / "sensors.db", partitions=1) as served, Peer(served.port) as client:
        aside = served.path.with_name("aside.db")
        assert client.put_token(token(served)) == 202
        served.path.rename(aside)
        try:
            client.attach(0, READ.format("$Default"), receive=True)
            assert condition_of(client.expect(Detach).error) == "com.microsoft:server-busy"
            asked = {"operation": "READ", "name": "sensors", "type": "com.microsoft:eventhub"}
            assert client.request("sensors/$management", asked, None, base=120) == 503
        finally:
            aside.rename(served.path)
        client.attach(1, READ.format("$Default"), receive=True)
        assert client.request("sensors/$management", asked, None, base=130) == 200
