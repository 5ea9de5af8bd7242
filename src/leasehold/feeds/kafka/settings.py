"""A Kafka URL: ``kafka://b1:9092,b2:9092/topic?security_protocol=SASL_SSL``, and the secrets that
belong to it, which come from the environment."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from leasehold.errors import BadInput
from leasehold.settings import STORE_TIMEOUT_S

PORT = 9092
CLIENT_SETTINGS = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "sasl_username": (),
    "ssl_ca_location": (),
    "ssl_certificate_location": (),
    "ssl_key_location": (),
    "ssl_endpoint_identification_algorithm": ("https", "none"),
    "broker_address_family": ("any", "v4", "v6"),
    "client_id": (),
    "client_rack": (),
}
"""What the client library is told, with the values that it knows; none: any text."""
ISOLATION = ("read_committed", "read_uncommitted")
OWN_SETTINGS = ("isolation_level", "namespace", "sasl_env", "timeout_s")
USERNAME = "KAFKA_SASL_USERNAME"
SECRETS = {
    "sasl.password": "KAFKA_SASL_PASSWORD",
    "ssl.key.password": "KAFKA_SSL_KEY_PASSWORD",
}
"""By what the client library calls them: the environment variable."""
SECRET_WORDS = re.compile("password|secret|token|jaas|ssl_key_pem", re.IGNORECASE)
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    brokers: tuple[str, ...]
    topic: str
    client: Mapping[str, str] = field(default_factory=dict)
    """As in the URL."""
    isolation_level: str = ISOLATION[0]
    namespace: str | None = None
    sasl_env: str = SECRETS["sasl.password"]
    """The environment variable that holds the password."""
    timeout_s: float = STORE_TIMEOUT_S

    @classmethod
    def from_url(cls, url: str, **given: Any) -> KafkaSettings:
        """``given`` are settings in code, which count more than those in the URL."""
        parts = urlsplit(url)
        if "@" in parts.netloc:  # it may hold a password, so the URL is not repeated
            raise BadInput(
                f"kafka://…@…: leave the user out of the URL: give ?sasl_username=NAME or "
                f"{USERNAME}, and the password as {SECRETS['sasl.password']} in the environment"
            )
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        query |= {name: str(value) for name, value in given.items() if value is not None}
        _require_known(query)
        topic = parts.path.removeprefix("/")
        if not TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise BadInput(
                f"kafka://{parts.netloc}/{topic}: give the brokers and one topic, such as "
                "kafka://b1:9092,b2:9092/readings"
            )
        return cls(
            brokers=_brokers(parts.netloc),
            topic=topic,
            client={name: query[name] for name in CLIENT_SETTINGS if name in query},
            isolation_level=query.get("isolation_level", ISOLATION[0]),
            namespace=query.get("namespace"),
            sasl_env=query.get("sasl_env", SECRETS["sasl.password"]),
            timeout_s=_seconds(query.get("timeout_s", STORE_TIMEOUT_S)),
        )

    @property
    def address(self) -> str:
        """The URL in one spelling, whoever wrote it. No secret was ever in it."""
        query = dict(self.client)
        if self.isolation_level != ISOLATION[0]:
            query["isolation_level"] = self.isolation_level
        if self.namespace is not None:
            query["namespace"] = self.namespace
        if self.sasl_env != SECRETS["sasl.password"]:
            query["sasl_env"] = self.sasl_env
        if self.timeout_s != STORE_TIMEOUT_S:
            query["timeout_s"] = f"{self.timeout_s:g}"
        text = f"kafka://{','.join(self.brokers)}/{self.topic}"
        return f"{text}?{urlencode(sorted(query.items()), quote_via=quote)}" if query else text

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.topic} at {','.join(self.brokers)}"

    def config(self) -> dict[str, Any]:
        """For the client library, with the secrets. Never shown, never kept."""
        config: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.brokers),
            # Errors reach us by a callback; the library would write them to the terminal.
            "log_level": 2,
            "socket.connection.setup.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1_000,
        }
        for name, value in self.client.items():
            config[name.replace("_", ".")] = value
        if self._uses_sasl:
            config.setdefault("sasl.mechanism", "PLAIN")
            user = self.client.get("sasl_username") or os.environ.get(USERNAME)
            if not user or not os.environ.get(self.sasl_env):
                raise BadInput(
                    f"security_protocol={self.client['security_protocol']} needs a user and a "
                    f"password: set {USERNAME} and {self.sasl_env} in the environment"
                )
            config["sasl.username"] = user
            config["sasl.password"] = os.environ[self.sasl_env]
        if secret := os.environ.get(SECRETS["ssl.key.password"]):
            config["ssl.key.password"] = secret
        return config

    @property
    def _uses_sasl(self) -> bool:
        return self.client.get("security_protocol", "").startswith("SASL")


def _require_known(query: Mapping[str, str]) -> None:
    for name, value in query.items():
        if SECRET_WORDS.search(name):
            raise BadInput(
                f"kafka://…?{name}=…: no secret in a URL, which is written into logs and plans: "
                f"set {' or '.join(SECRETS.values())} in the environment"
            )
        if name not in CLIENT_SETTINGS and name not in OWN_SETTINGS:
            known = ", ".join((*CLIENT_SETTINGS, *OWN_SETTINGS))
            raise BadInput(f"kafka://…?{name}=…: {name} is unknown; there are {known}")
        allowed = ISOLATION if name == "isolation_level" else CLIENT_SETTINGS.get(name, ())
        if allowed and value not in allowed:
            raise BadInput(f"kafka://…?{name}={value}: {name} is one of {', '.join(allowed)}")
        if not value:
            raise BadInput(f"kafka://…?{name}=: {name} has no value")


def _brokers(netloc: str) -> tuple[str, ...]:
    found = []
    for each in netloc.split(","):
        parts = BROKER.fullmatch(each)
        if not parts or int(parts[2] or PORT) not in range(1, 65536):
            raise BadInput(
                f"kafka://{netloc}: {each or 'an empty name'} is no broker; give host:port, "
                "several with commas between them: kafka://b1:9092,b2:9092/topic"
            )
        found.append(f"{parts[1]}:{parts[2] or PORT}")
    return tuple(found)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise BadInput(f"kafka://…?timeout_s={value}: give seconds, more than 0")
    return seconds
