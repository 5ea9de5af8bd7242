import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from leasehold.feeds.kafka.client import PASSING, Troubles, committed_offsets, known
from leasehold.feeds.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings.from_url("kafka://b:9092/t")


def test_an_offset_that_a_broker_did_not_tell_is_asked_for_again() -> None:
    assert known({0: 0, 1: 7}) == {0: 0, 1: 7}
    for missing in (-1, -1001):
        with pytest.raises(KafkaException) as caught:
            known({0: 5, 1: missing})
        assert caught.value.args[0].code() in PASSING


def test_what_was_heard_last_explains_why_no_answer_came() -> None:
    troubles = Troubles()
    assert "no answer within 4 s. Are" in str(troubles.explain(SETTINGS))
    troubles.heard(KafkaError(KafkaError._TRANSPORT, "b:9092: Connect failed"))
    troubles.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert "Connect failed" in str(troubles.explain(SETTINGS))
    troubles.heard(KafkaError(KafkaError._AUTHENTICATION, "Invalid credentials"))
    assert troubles.refused
    assert "refuse the user or the password: Invalid" in str(troubles.explain(SETTINGS))
    troubles.well()
    assert "no answer within 4 s. Are" in str(troubles.explain(SETTINGS))


def test_an_error_of_one_partition_does_not_mean_that_nothing_is_committed() -> None:
    class Refused(TopicPartition):
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    known_ones = [TopicPartition("t", 0, 7), TopicPartition("t", 1, -1001)]
    assert committed_offsets(known_ones) == {0: 7}
    with pytest.raises(KafkaException):
        committed_offsets([*known_ones, Refused("t", 2)])
