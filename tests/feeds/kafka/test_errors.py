"""What a user sees of a topic or of brokers that cannot be used: an error that says what to do, and
in bounded time."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation
from support.blocking import result_of
from support.kafka import Kafka

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds import open_feed, open_sender
from leasehold.feeds.kafka import KafkaFeed

BOUND_S = 60.0
"""For noticing what hangs, on a machine that is busy; the feed's own limits are 10 s and less."""


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < BOUND_S


@pytest.fixture
def user(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> str:
    """Signs in as somebody who may do nothing yet."""
    monkeypatch.setenv("KAFKA_SASL_USERNAME", "reader")
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", kafka.users["reader"])
    return "reader"


def secure(server: Kafka, topic: str) -> str:
    return f"kafka://{server.secure}/{topic}?security_protocol=SASL_PLAINTEXT"


def test_an_unknown_topic_is_named(kafka: Kafka) -> None:
    for opening in (open_feed, open_sender):
        with pytest.raises(BadInput, match="there is no topic no-such-topic at 127"):
            opening(kafka.url("no-such-topic"))


def test_brokers_that_do_not_answer_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            with pytest.raises(FeedUnavailable, match=rf"t at {address}: no answer .* brokers up"):
                open_feed(f"kafka://{address}/t?timeout_s=1")


def test_a_wrong_password_is_said_to_be_wrong_and_not_shown(
    kafka: Kafka, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "not-the-password")
    with pytest.raises(BadInput, match="refuse the user or the password") as caught:
        open_feed(secure(kafka, kafka.topic()))
    assert "KAFKA_SASL_PASSWORD" in str(caught.value)
    assert "not-the-password" not in str(caught.value)


def test_tls_with_a_listener_that_has_none_is_told(kafka: Kafka) -> None:
    with pytest.raises((BadInput, FeedUnavailable), match="security_protocol"):
        open_feed(kafka.url("t", security_protocol="SSL", timeout_s="1"))
    with pytest.raises(BadInput, match="cannot be reached with these settings"):
        open_feed(kafka.url("t", security_protocol="SSL", ssl_ca_location="/no/such/file.pem"))


def test_permissions_that_are_missing_are_named(kafka: Kafka, user: str) -> None:
    topic = kafka.topic()
    url = secure(kafka, topic)
    with pytest.raises(BadInput, match=r"no permission .* grant Describe and Read"):
        open_feed(url)
    kafka.allow(user, topic, AclOperation.DESCRIBE)
    with open_sender(kafka.url(topic)) as filling:
        filling.send(EventData(b"x"), partition_id=0)
    with KafkaFeed.from_url(url) as feed:
        at = result_of(feed.locate("0", "earliest"))
        with pytest.raises(BadInput, match="no permission"):
            result_of(feed.read("0", at, 10))
    with open_sender(url) as sender, pytest.raises(BadInput, match="Write to send"):
        sender.send(EventData(b"x"))


def test_a_refusal_that_the_library_lost_is_found_again(
    kafka: Kafka, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens when the refusal meets a delivery report in one call."""

    class Forgetful(Producer):
        def flush(self, timeout: float = -1) -> int:
            with suppress(KafkaException, SystemError):
                super().flush(timeout)
            raise SystemError("flush returned NULL without setting an exception")

    topic = kafka.topic()
    kafka.allow(user, topic, AclOperation.DESCRIBE)
    monkeypatch.setattr("leasehold.feeds.kafka.sender.Producer", Forgetful)
    url = secure(kafka, topic)
    with open_sender(url) as sender, pytest.raises(BadInput, match="Write to send"):
        sender.send(EventData(b"x"))
    lost = pytest.raises(FeedUnavailable, match="did not say why")
    with open_sender(kafka.url(topic, timeout_s="1")) as sender, lost:
        sender.send(EventData(b"x"))


def test_who_has_permission_reads_and_shows_no_secret(kafka: Kafka, user: str) -> None:
    topic = kafka.topic()
    kafka.allow(user, topic, AclOperation.READ, AclOperation.WRITE)
    url = secure(kafka, topic)
    with open_sender(url) as sender, KafkaFeed.from_url(url) as feed:
        sender.send(EventData(b"x"), partition_id=1)
        found = result_of(feed.read("1", Checkpoint(next_sequence=0), 10))
        assert [event.body for event in found.events] == [b"x"]
        for shown in (repr(feed), repr(sender), feed.address):
            assert kafka.users[user] not in shown


def test_an_event_that_is_too_large_is_refused(kafka: Kafka) -> None:
    with open_sender(kafka.url(kafka.topic(max_message_bytes=1000))) as sender:
        with pytest.raises(BadInput, match=r"larger than the topic takes \(max.message.bytes"):
            sender.send(EventData(os.urandom(5_000)))
        with pytest.raises(BadInput, match="an event of 2,000,000 bytes"):
            sender.send(EventData(b"x" * 2_000_000))
        sender.send(EventData(b"small"))
