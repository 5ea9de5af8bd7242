import pickle

import pytest

from leasehold.errors import BadInput
from leasehold.feeds.kafka.settings import KafkaSettings

SECRET = "s3cr3t-pass"


def test_a_url_names_brokers_and_a_topic() -> None:
    settings = KafkaSettings.from_url("kafka://b1,b2:9093,[::1]:9094/my.topic_1-x")
    assert settings.brokers == ("b1:9092", "b2:9093", "[::1]:9094")
    assert settings.topic == "my.topic_1-x"
    assert settings.address == "kafka://b1:9092,b2:9093,[::1]:9094/my.topic_1-x"


def test_an_address_says_the_same_again() -> None:
    url = (
        "kafka://b1:9092/t?security_protocol=SASL_SSL&sasl_mechanism=SCRAM-SHA-512"
        "&ssl_ca_location=/etc/ssl/my%20ca.pem&sasl_username=ann&namespace=prod&timeout_s=2.5"
        "&isolation_level=read_uncommitted"
    )
    settings = KafkaSettings.from_url(url)
    assert KafkaSettings.from_url(settings.address) == settings
    assert KafkaSettings.from_url(settings.address).address == settings.address


def test_settings_reach_the_client_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SASL_USERNAME", "ann")
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", SECRET)
    settings = KafkaSettings.from_url("kafka://b/t?security_protocol=SASL_SSL&client_id=me")
    config = settings.config()
    assert config["security.protocol"] == "SASL_SSL"
    assert (config["sasl.username"], config["sasl.password"]) == ("ann", SECRET)
    assert config["client.id"] == "me"
    for shown in (settings.address, repr(settings), pickle.dumps(settings).decode("latin1")):
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"kafka://ann:{SECRET}@b/t", "KAFKA_SASL_PASSWORD"),
        (f"kafka://b/t?sasl_password={SECRET}", "no secret in a URL"),
        (f"kafka://b/t?ssl_key_password={SECRET}", "KAFKA_SSL_KEY_PASSWORD"),
        (f"kafka://b/t?sasl_jaas_config={SECRET}", "no secret in a URL"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        KafkaSettings.from_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://b", "one topic"),
        ("kafka://b/", "one topic"),
        ("kafka://b/a/b", "one topic"),
        ("kafka:///t", "no broker"),
        ("kafka://b,/t", "no broker"),
        ("kafka://b:99999/t", "no broker"),
        ("kafka://b/t?acks=0", "acks is unknown; there are security_protocol"),
        ("kafka://b/t?security_protocol=TLS", "one of PLAINTEXT, SSL"),
        ("kafka://b/t?isolation_level=none", "one of read_committed"),
        ("kafka://b/t?timeout_s=soon", "more than 0"),
        ("kafka://b/t?client_id=", "has no value"),
    ],
)
def test_what_cannot_work_is_refused_by_name(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        KafkaSettings.from_url(url)


def test_a_password_that_is_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_SASL_PASSWORD", raising=False)
    settings = KafkaSettings.from_url("kafka://b/t?security_protocol=SASL_SSL&sasl_username=ann")
    with pytest.raises(BadInput, match="set KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD"):
        settings.config()
