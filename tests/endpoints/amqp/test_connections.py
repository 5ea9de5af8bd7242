"""Clients that are wrong, greedy, slow or gone: told so or cut off, and nobody else suffers."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.amqp_endpoint import ServedHub, served_hub
from support.amqp_peer import HEADER, Peer, condition_of, from_start, message, token

from leasehold import Hub
from leasehold.endpoints.amqp.codec import Described, Symbol, UInt, ULong, decode, encode
from leasehold.endpoints.amqp.frames import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Transfer,
    encode_frame,
)

BODY = message((0x75, b"x" * 100))
SELECTOR = "apache.org:selector-filter:string"
READ = "sensors/ConsumerGroups/$Default/Partitions/"


@pytest.fixture
def peer(served: ServedHub) -> Iterator[Peer]:
    with Peer(served.port) as made:
        assert made.put_token(token(served)) == 202
        yield made


def alive(served: ServedHub) -> bool:
    """Whether others are still served."""
    with Peer(served.port) as other:
        return other.put_token(token(served)) == 202


def memory_mb(served: ServedHub) -> float:
    assert served.process
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def send_to_hub(served: ServedHub, partition: int, *bodies: bytes) -> int:
    """The sequence of the first one."""
    with Hub.open(served.path) as hub:
        (stored,) = hub.send_columns(None, list(bodies), partition_id=partition)
    return stored.first_sequence


BAD = {
    "no AMQP": (b"HELLO WORLD, HOW ARE YOU", ""),
    "another version": (b"AMQP\x00\x02\x00\x00", ""),
    "a huge frame": (HEADER + struct.pack(">IBBH", 1 << 31, 2, 0, 0), ""),
    "a session before open": (
        HEADER + encode_frame(0, Begin(None, UInt(0), UInt(1), UInt(1))),
        "",
    ),
    "open twice": (HEADER + encode_frame(0, Open("a")) * 2, "amqp:not-allowed"),
    "a frame too large after open": (
        HEADER + encode_frame(0, Open("a")) + struct.pack(">IBBH", 70_000, 2, 0, 0),
        "amqp:connection:framing-error",
    ),
    "garbage after open": (
        HEADER + encode_frame(0, Open("a")) + struct.pack(">IBBH", 20, 2, 0, 0) + b"\xff" * 12,
        "amqp:decode-error",
    ),
    "a transfer without a session": (
        HEADER + encode_frame(0, Open("a")) + encode_frame(3, Transfer(UInt(0))),
        "amqp:not-allowed",
    ),
    "frames too small to work with": (
        HEADER + encode_frame(0, Open("a", max_frame_size=UInt(100))),
        "amqp:connection:framing-error",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_amqp_ends_the_connection_and_says_why(served: ServedHub, name: str) -> None:
    data, condition = BAD[name]
    with Peer(served.port, open_=False) as wrong:
        wrong.write(data)
        assert wrong.ended() == condition


def test_random_bytes_at_any_stage_harm_nobody_else(served: ServedHub) -> None:
    chance = random.Random(17)
    stages = [
        b"",
        HEADER,
        HEADER + encode_frame(0, Open("a")),
        HEADER
        + encode_frame(0, Open("a"))
        + encode_frame(0, Begin(None, UInt(0), UInt(9), UInt(9))),
        b"AMQP\x03\x01\x00\x00",
        b"GET / HTTP/1.1\r\n",
    ]
    before = memory_mb(served)
    for turn in range(120):
        with Peer(served.port, open_=False) as wrong:
            wrong.write(stages[turn % len(stages)])
            body = chance.randbytes(chance.randrange(1, 400))
            if turn % 2:  # a frame whose size is right gets further
                body = struct.pack(">IBBH", 8 + len(body), 2, turn % 3, 0) + body
            wrong.write(body)
    assert alive(served)
    assert memory_mb(served) - before < 50


def test_frames_with_one_wrong_byte_harm_nobody_else(served: ServedHub) -> None:
    chance = random.Random(18)
    good = [
        Attach("a", UInt(0), True, source=Described(ULong(0x28), [READ + "0"])),
        Attach("a", UInt(1), False, target=Described(ULong(0x29), ["$cbs"])),
        Flow(UInt(0), UInt(1), UInt(0), UInt(1), UInt(0), UInt(0), UInt(10)),
        Transfer(UInt(1), UInt(0), b"t", UInt(0)),
        Detach(UInt(0), True),
        End(),
    ]
    for _ in range(60):
        with Peer(served.port) as wrong:
            for each in good:
                wire = bytearray(encode_frame(0, each, BODY))
                wire[chance.randrange(8, len(wire))] = chance.randrange(256)
                try:
                    wrong.write(bytes(wire))
                except ConnectionError:
                    break
    assert alive(served)


@pytest.mark.parametrize(
    ("address", "receive"),
    [
        ("nothing", False),
        ("sensors/Partitions/99", False),
        ("sensors/Partitions/x", False),
        (READ + "99", True),
        ("nothing/ConsumerGroups/$Default/Partitions/0", True),
        ("sensors", True),
        ("", True),
    ],
)
def test_a_link_to_what_is_not_there_is_refused(peer: Peer, address: str, receive: bool) -> None:
    peer.attach(0, address, receive=receive)
    assert condition_of(peer.expect(Detach).error) == "amqp:not-found"


def test_nothing_can_be_used_without_a_token(served: ServedHub) -> None:
    with Peer(served.port) as stranger:
        for handle, (address, receive) in enumerate([("sensors", False), (READ + "0", True)]):
            stranger.attach(handle, address, receive=receive)
            assert condition_of(stranger.expect(Detach).error) == "amqp:unauthorized-access"
        asked = {"operation": "READ", "name": "sensors", "type": "com.microsoft:eventhub"}
        assert stranger.request("sensors/$management", asked, None) == 401


@pytest.mark.parametrize(
    ("wrong", "name", "status"),
    [
        ({"key": "another"}, "sb://localhost/sensors", 401),
        ({"policy": "another"}, "sb://localhost/sensors", 401),
        ({"expires_in_s": -5}, "sb://localhost/sensors", 401),
        ({}, "sb://localhost/nothing", 404),
    ],
)
def test_a_wrong_token_is_answered_with_a_status(
    served: ServedHub, wrong: Any, name: str, status: int
) -> None:
    with Peer(served.port) as stranger:
        assert stranger.put_token(token(served, **wrong), name=name) == status


def test_a_token_that_runs_out_ends_its_links(served: ServedHub) -> None:
    with Peer(served.port) as client:
        assert client.put_token(token(served, expires_in_s=2)) == 202
        client.attach(0, "sensors", receive=False)
        assert condition_of(client.expect(Detach).error) == "amqp:unauthorized-access"
        assert client.put_token(token(served), base=102) == 202
        client.attach(1, "sensors", receive=False)
        client.transfer(1, BODY, 1)
        assert client.settled() == ""


def test_a_name_and_a_key_will_do_instead_of_a_token(served: ServedHub) -> None:
    key = served.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
    with Peer(served.port, open_=False) as client:
        assert sasl_outcome(client, f"\0RootManageSharedAccessKey\0{key}") == 0
        client.open()
        client.attach(0, "sensors", receive=False)
        client.transfer(0, BODY, 1)
        assert client.settled() == ""
    for wrong in ("\0RootManageSharedAccessKey\0wrong", f"\0wrong\0{key}", ""):
        with Peer(served.port, open_=False) as client:
            assert sasl_outcome(client, wrong) == 1
            assert client.socket.recv(1) == b""


def sasl_outcome(client: Peer, answer: str) -> int:
    init = encode(Described(ULong(0x41), [Symbol("PLAIN"), answer.encode(), None]))
    client.write(b"AMQP\x03\x01\x00\x00" + struct.pack(">IBBH", 8 + len(init), 2, 1, 0) + init)
    frame = client.exactly(8)
    for _ in range(2):  # the mechanisms, then the outcome
        frame = client.exactly(int.from_bytes(client.exactly(4)) - 4)
    return int(decode(frame, 4)[0].value[0])


def test_a_receiver_gets_as_much_as_it_has_credit_for(served: ServedHub, peer: Peer) -> None:
    begin = send_to_hub(served, 1, *[b"%d" % n for n in range(20)])
    at = from_start(f"amqp.annotation.x-opt-sequence-number > '{begin - 1}'")
    peer.attach(0, READ + "1", receive=True, filter=at)
    peer.credit(0, 3)
    first = [peer.expect(Transfer) for _ in range(3)]
    peer.credit(0, 4, count=3, echo=True)
    assert peer.expect(Flow).handle == 0  # which came before any transfer without credit
    more = [peer.expect(Transfer) for _ in range(4)]
    ids = [each.delivery_id for each in (*first, *more)]
    assert ids == list(range(ids[0], ids[0] + 7))
    assert all(each.settled for each in first)
    peer.credit(0, 100, count=7, drain=True)
    rest = [peer.frame(Transfer) for _ in range(13)]
    assert b"19" in rest[-1].payload
    drained = peer.expect(Flow)
    assert (drained.link_credit, drained.delivery_count, drained.drain) == (0, 107, True)


def test_tags_are_short_and_come_again(served: ServedHub, peer: Peer) -> None:
    """The Python client remembers every tag that it ever saw."""
    begin = send_to_hub(served, 3, *[b"x"] * 600)
    at = from_start(f"amqp.annotation.x-opt-sequence-number > '{begin - 1}'")
    peer.attach(0, READ + "3", receive=True, filter=at)
    peer.credit(0, 600)
    tags = [peer.expect(Transfer).delivery_tag for _ in range(600)]
    assert {len(tag or b"") for tag in tags} == {1}
    assert all(len(set(tags[n : n + 200])) == 200 for n in range(400))


@pytest.mark.parametrize("descriptor", [Symbol(SELECTOR), ULong(0x468C_0000_0004)])
def test_a_filter_is_known_by_its_symbol_and_by_its_number(
    served: ServedHub, peer: Peer, descriptor: Any
) -> None:
    begin = send_to_hub(served, 1, b"before", b"wanted")
    selector = f"amqp.annotation.x-opt-sequence-number > '{begin}'"
    wanted = {Symbol(SELECTOR): Described(descriptor, selector)}
    peer.attach(0, READ + "1", receive=True, filter=wanted)
    peer.credit(0, 1)
    assert b"wanted" in peer.frame(Transfer).payload


def test_a_receiver_without_credit_gets_nothing(served: ServedHub, peer: Peer) -> None:
    send_to_hub(served, 1, b"waiting")
    peer.attach(0, READ + "1", receive=True)
    peer.credit(0, 0, echo=True)
    flow = peer.expect(Flow)
    assert (flow.handle, flow.delivery_count) == (0, 0)


def test_a_session_gets_no_more_frames_than_its_window_and_ids_count_deliveries(
    served: ServedHub,
) -> None:
    begin = send_to_hub(served, 2, b"x" * 200_000, b"small", b"last")
    at = from_start(f"amqp.annotation.x-opt-sequence-number >= '{begin}'")
    with Peer(served.port, window=2) as client:
        assert client.put_token(token(served)) == 202
        client.attach(0, READ + "2", receive=True, filter=at)
        frames = []
        client.credit(0, 10)
        while True:
            frame = client.frame(Transfer)
            frames.append(frame)
            client.received += 1
            if b"last" in frame.payload:
                break
            if len(frames) % 2 == 0:
                client.send(Flow(UInt(client.received), UInt(2), UInt(0), UInt(9), None, echo=True))
                # Its answer comes first: the endpoint had nothing more under way.
                assert client.read().performative.handle is None
    transfers = [frame.performative for frame in frames]
    assert [each.more for each in transfers] == [True] * (len(frames) - 3) + [False] * 3
    large, small, last = transfers[0], transfers[-2], transfers[-1]
    assert len(frames) > 5
    assert (small.delivery_id, last.delivery_id) == (large.delivery_id + 1, large.delivery_id + 2)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", "first"),
        ("amqp.annotation.x-opt-offset > '@latest'", "next"),
        ("amqp.annotation.x-opt-sequence-number > '{sequence}'", "after"),
        ("amqp.annotation.x-opt-sequence-number >= '{sequence}'", "at"),
        ("amqp.annotation.x-opt-offset > '{offset}'", "after"),
        ("amqp.annotation.x-opt-offset >= '{offset}'", "at"),
        ("amqp.annotation.x-opt-enqueued-time > '{before_ms}'", "at"),
        ("amqp.annotation.x-opt-enqueued-time >= '{time_ms}'", "at"),
        ("amqp.annotation.x-opt-enqueued-time > '{time_ms}'", "after"),
    ],
)
def test_every_kind_of_position_is_understood(placed: Any, selector: str, expected: str) -> None:
    served, facts = placed
    at = from_start(selector.format(**facts))
    with Peer(served.port) as client:
        assert client.put_token(token(served)) == 202
        client.attach(0, READ + "0", receive=True, filter=at)
        client.credit(0, 1)
        if expected == "next":
            client.send(Flow(UInt(0), UInt(9), UInt(0), UInt(9), None, echo=True))
            client.expect(Flow)
            send_to_hub(served, 0, b"next")
        assert expected.encode() in client.frame(Transfer).payload


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A hub with three events, each at a time of its own, and what is known of the second."""
    with served_hub(tmp_path_factory.mktemp("placed"), partitions=1) as served:
        for body in (b"first", b"at", b"after"):
            send_to_hub(served, 0, body)
            time.sleep(0.01)
        with Hub.open(served.path) as hub:
            event = hub.read_batch("0", hub.position_of("0", 1), 1).events[0]
        ms = int(event.enqueued_at.timestamp() * 1000)
        yield (
            served,
            {"sequence": 1, "offset": event.offset, "time_ms": ms, "before_ms": ms - 1},
        )


@pytest.mark.parametrize(
    "selector",
    [
        "x-opt-offset > 'a",
        "amqp.annotation.x-opt-offset > 'abc'",
        "amqp.annotation.x-opt-offset > '9223372036854775807'",
        "amqp.annotation.x-opt-sequence-number > '1000000'",
        "amqp.annotation.x-opt-enqueued-time > '99999999999999999999'",
    ],
)
def test_a_position_that_is_not_understood_or_beyond_the_end_is_refused(
    peer: Peer, selector: str
) -> None:
    peer.attach(0, READ + "0", receive=True, filter=from_start(selector))
    assert condition_of(peer.expect(Detach).error) == "com.microsoft:argument-error"


def test_what_is_accepted_is_stored_even_if_the_endpoint_is_killed_then(tmp_path: Path) -> None:
    with served_hub(tmp_path, partitions=1) as served:
        with Peer(served.port) as client:
            assert client.put_token(token(served)) == 202
            client.attach(0, "sensors/Partitions/0", receive=False)
            for n in range(100):
                client.transfer(0, message((0x75, b"%d" % n)), n + 1)
            assert [client.settled() for _ in range(50)] == [""] * 50
            served.stop(kill=True)
        with Hub.open(served.path) as hub:
            stored = hub.read_batch("0", hub.position_of("0", "earliest"), 1000).events
            assert [event.body for event in stored] == [b"%d" % n for n in range(len(stored))]
            assert len(stored) >= 50


def test_events_with_and_without_keys_may_be_in_one_batch(served: ServedHub, peer: Peer) -> None:
    key = {Symbol("x-opt-partition-key"): "home 7"}
    inner = [message((0x75, b"a")), message((0x72, key), (0x75, b"b")), message((0x75, b"c"))]
    begin = send_to_hub(served, 3, b"before") + 1
    peer.attach(0, "sensors/Partitions/3", receive=False)
    batch = message(*[(0x75, each) for each in inner])
    peer.send(Transfer(UInt(0), UInt(1), b"t", UInt(0x80013700)), batch)
    assert peer.settled() == ""
    with Hub.open(served.path) as hub:
        events = hub.read_batch("3", hub.position_of("3", begin), 10).events
    assert [(each.body, each.partition_key) for each in events] == [
        (b"a", None),
        (b"b", "home 7"),
        (b"c", None),
    ]


def test_what_cannot_be_stored_is_refused_and_the_endpoint_goes_on(tmp_path: Path) -> None:
    with served_hub(tmp_path, partitions=1) as served, Peer(served.port) as client:
        assert client.put_token(token(served)) == 202
        client.attach(0, "sensors/Partitions/0", receive=False)
        aside = served.path.with_name("aside.db")
        served.path.rename(aside)
        client.transfer(0, BODY, 1)
        assert client.settled() == "com.microsoft:argument-error"
        aside.rename(served.path)
        client.transfer(0, BODY, 2)
        assert client.settled() == ""


def test_a_message_is_refused_if_it_is_too_large_or_cannot_be_read(
    served: ServedHub, peer: Peer
) -> None:
    peer.attach(0, "sensors/Partitions/3", receive=False)
    peer.transfer(0, b"\xff\xff", 1)
    assert peer.settled() == "amqp:decode-error"
    key = {Symbol("x-opt-partition-key"): "k" * 300}
    peer.transfer(0, message((0x72, key), (0x75, b"x")), 2)
    assert peer.settled() == "com.microsoft:argument-error"
    part = message((0x75, b"x" * (1 << 21)))
    sent = 0
    while sent <= (1 << 20) + (1 << 17):
        peer.transfer(0, part[sent : sent + 60_000], 3, more=True)
        sent += 60_000
    assert condition_of(peer.expect(Detach).error) == "amqp:link:message-size-exceeded"
    peer.attach(1, "sensors/Partitions/3", receive=False)
    peer.transfer(1, BODY, 4)
    assert peer.settled() == ""


def test_messages_that_are_begun_and_never_finished_are_bounded(served: ServedHub) -> None:
    before = memory_mb(served)
    with Peer(served.port) as client:
        assert client.put_token(token(served)) == 202
        for handle in range(20):
            client.attach(handle, "sensors", receive=False)
        client.socket.settimeout(60)
        try:
            for turn in range(17 * 20):
                client.transfer(turn % 20, b"x" * 60_000, turn % 20 + 1, more=True)
            condition = client.ended()
        except ConnectionError:  # it hung up while we went on sending
            condition = ""
        assert condition in ("amqp:resource-limit-exceeded", "")
    assert alive(served)
    assert memory_mb(served) - before < 80


def test_answers_that_nobody_takes_are_bounded(peer: Peer) -> None:
    peer.attach(0, "$cbs", receive=False)
    peer.attach(1, "$cbs", receive=True)
    body = message((0x73, ["id", None, None, None, "here"]), (0x74, {"operation": "x"}))
    for n in range(300):
        peer.transfer(0, body, n + 1, settled=True)
    assert condition_of(peer.expect(Detach).error) == "amqp:resource-limit-exceeded"


def test_a_client_that_never_reads_is_disconnected(served: ServedHub) -> None:
    before = memory_mb(served)
    target = Described(ULong(0x29), ["nothing"])
    question = encode_frame(0, Attach("n" * 60_000, UInt(0), False, target=target))
    with Peer(served.port) as client, pytest.raises(ConnectionError):
        ask_for_ever(client, question)
    assert alive(served)
    assert memory_mb(served) - before < 60


def ask_for_ever(client: Peer, question: bytes) -> None:
    """Its answers are as long. The kernel keeps some MB of them before the endpoint has to."""
    for _ in range(2000):
        client.write(question)


def test_a_client_that_asks_for_a_sign_of_life_gets_it(served: ServedHub) -> None:
    with Peer(served.port, idle_time_out=UInt(400)) as client:
        beats = [client.read() for _ in range(3)]
    assert all(beat is not None and beat.performative is None for beat in beats)


def test_a_session_ends_and_its_channel_can_be_used_again(peer: Peer) -> None:
    peer.send(End())
    peer.expect(End)
    peer.send(Begin(None, UInt(0), UInt(9), UInt(9)))
    peer.expect(Begin)
    peer.send(Close())
    assert peer.ended() == ""


def test_receivers_of_clients_that_vanished_stand_in_nobodys_way(served: ServedHub) -> None:
    level = {Symbol("com.microsoft:epoch"): 9}
    for _ in range(20):
        gone = Peer(served.port)
        assert gone.put_token(token(served)) == 202
        gone.attach(0, READ + "3", receive=True, properties=level)
        gone.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # hang up without a word
        gone.socket.close()
    with Peer(served.port) as client:
        assert client.put_token(token(served)) == 202
        deadline = time.monotonic() + 30
        low = {Symbol("com.microsoft:epoch"): 1}
        for handle in range(200):
            if client.attach(handle, READ + "3", receive=True, properties=low).source is not None:
                return
            client.expect(Detach)
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_higher_owner_level_cuts_off_a_lower_one_on_another_connection(
    served: ServedHub, peer: Peer
) -> None:
    peer.attach(0, READ + "0", receive=True, properties={Symbol("com.microsoft:epoch"): 1})
    with Peer(served.port) as other:
        assert other.put_token(token(served)) == 202
        other.attach(0, READ + "0", receive=True, properties={Symbol("com.microsoft:epoch"): 2})
        assert condition_of(peer.expect(Detach).error) == "amqp:link:stolen"
        peer.attach(1, READ + "0", receive=True, properties={Symbol("com.microsoft:epoch"): 1})
        assert condition_of(peer.expect(Detach).error) == "amqp:link:stolen"


def test_a_thousand_connections_are_served_and_no_more(tmp_path: Path) -> None:
    with (
        served_hub(tmp_path, "--connections", "1000", partitions=1) as served,
        ExitStack() as stack,
    ):
        before = memory_mb(served)
        peers = [stack.enter_context(Peer(served.port)) for _ in range(1000)]
        assert memory_mb(served) - before < 150
        with Peer(served.port, open_=False) as refused:
            assert refused.read() is None
        for client in peers[::100]:
            assert client.put_token(token(served)) == 202
        for client in peers[:500]:
            client.socket.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                assert alive(served)
                break
            except (AssertionError, ConnectionError):
                assert time.monotonic() < deadline
                time.sleep(0.1)
