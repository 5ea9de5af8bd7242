"""TLS, and users by SCRAM, against a broker that asks for them."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation, ScramMechanism
from cryptography.hazmat.primitives import serialization
from support.blocking import result_of
from support.kafka import Kafka

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput
from leasehold.feeds import open_feed, open_sender
from leasehold.feeds.kafka import KafkaFeed

KEY_PASSWORD = "of-the-key"


def trusted(kafka: Kafka) -> str:
    assert kafka.tls is not None
    return f"ssl_ca_location={kafka.tls}/broker.certificate.pem"


def require_read_and_write(url: str) -> None:
    body = uuid4().bytes
    with open_sender(url) as sender, KafkaFeed.from_url(url) as feed:
        sender.send(EventData(body), partition_id=1)
        found = result_of(feed.read("1", Checkpoint(next_sequence=0), 10))
        assert body in [event.body for event in found.events]


@pytest.mark.parametrize(
    "mechanism", [ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512], ids=["256", "512"]
)
def test_a_scram_user_reads_and_writes_over_tls(
    kafka: Kafka, mechanism: ScramMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled = mechanism.name.replace("_", "-")
    user, topic = f"ann-{spelled}", kafka.topic()
    kafka.add_scram_user(user, mechanism, "her-secret")
    kafka.allow(user, topic, AclOperation.READ, AclOperation.WRITE)
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "her-secret")
    settings = f"security_protocol=SASL_SSL&sasl_mechanism={spelled}&sasl_username={user}"
    url = f"kafka://{kafka.nodes[0].scram}/{topic}?{settings}"
    require_read_and_write(f"{url}&{trusted(kafka)}")
    with pytest.raises(BadInput, match=r"no secure connection.*ssl_ca_location"):
        open_feed(url)
    other = "SCRAM-SHA-256" if "512" in spelled else "SCRAM-SHA-512"
    with pytest.raises(BadInput, match=r"refuse the user or the password.*sasl_mechanism"):
        open_feed(f"{url}&{trusted(kafka)}".replace(f"={spelled}&", f"={other}&"))
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "not-her-secret")
    with pytest.raises(BadInput, match="refuse the user or the password") as caught:
        open_feed(f"{url}&{trusted(kafka)}")
    assert "not-her-secret" not in str(caught.value)


def test_a_client_signs_in_by_its_certificate(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    kafka.allow("CN=localhost", topic, AclOperation.READ, AclOperation.WRITE)
    url = f"kafka://{kafka.nodes[0].mutual}/{topic}?security_protocol=SSL&{trusted(kafka)}"
    own = f"{url}&ssl_certificate_location={kafka.tls}/client.certificate.pem&ssl_key_location="
    require_read_and_write(f"{own}{kafka.tls}/client.tls-key.pem")
    with pytest.raises(BadInput, match=r"ssl_certificate_location"):
        open_feed(url)
    assert kafka.tls is not None
    locked(kafka.tls / "client.tls-key.pem", tmp_path / "locked.pem")
    monkeypatch.setenv("KAFKA_SSL_KEY_PASSWORD", KEY_PASSWORD)
    require_read_and_write(f"{own}{tmp_path}/locked.pem")
    monkeypatch.setenv("KAFKA_SSL_KEY_PASSWORD", "another")
    with pytest.raises(BadInput, match="KAFKA_SSL_KEY_PASSWORD") as caught:
        open_feed(f"{own}{tmp_path}/locked.pem")
    assert "another" not in str(caught.value)


def locked(path: Path, to: Path) -> None:
    """The same key behind a password."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    to.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
        )
    )
