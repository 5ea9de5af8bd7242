"""Which event hub a URL names, how it is read, and the secret for it from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from leasehold.errors import BadInput

CONNECTION_STRING = "AZURE_EVENTHUBS_CONNECTION_STRING"
DEFAULT_GROUP = "$Default"
EXAMPLE = "eventhubs://NAMESPACE.servicebus.windows.net/HUB?consumer_group=NAME"
EVENT_BYTES_MAX = 1 << 20
"""The most that Event Hubs takes as one event."""

Transport = Literal["auto", "amqp", "websocket", "kafka"]
"""``auto``: AMQP; in bulk, for Spark, over the Kafka endpoint where there is one."""
Offsets = Literal["amqp", "none"]
OwnerLevel = int | Literal["epoch", "none"]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?")
_BROKERS = re.compile(r"([A-Za-z0-9.-]+:\d{1,5}(,[A-Za-z0-9.-]+:\d{1,5})*)?")
_HUB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubsSettings:
    """What a URL says. Secrets are not among it."""

    host: str
    """The fully qualified namespace; with its port, if it is a development endpoint."""
    hub: str
    namespace: str = ""
    """The name in the lease store, if that is another: some stock processors leave out the port."""
    consumer_group: str | None = None
    """None: that of the group that reads; ``$Default`` where no group does."""
    owner_level: OwnerLevel = "epoch"
    transport: Transport = "auto"
    kafka: str = ""
    """Where the Kafka endpoint is, if not at port 9093 of the namespace."""
    offsets: Offsets = "amqp"
    """Where a position's AMQP offset is not known, whether to look for it, for the sake of stock
    processors, which go on after it."""
    prefetch: int = 1000
    prefetch_bytes: int = 4 << 20
    fresh_s: float = 2.0
    """How long what the broker said of a partition is believed. It takes 50 such questions a second
    from all who use the namespace."""
    timeout_s: float = 20.0
    ca: str = ""
    secret: str = CONNECTION_STRING

    @classmethod
    def from_url(cls, url: str) -> EventHubsSettings:
        # What might be a secret goes into no message, and neither does an error that quotes it.
        try:
            parts = urlsplit(url)
            given = dict(
                parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            )
        except ValueError:
            raise BadInput(
                f"cannot read this URL of an event hub; it looks like {EXAMPLE}"
            ) from None
        hub = unquote(parts.path.strip("/"))
        if "@" in parts.netloc or parts.fragment:
            raise BadInput(
                "the URL of an event hub holds no credentials, since URLs end up in logs: set "
                f"{CONNECTION_STRING}, or sign in for azure-identity"
            )
        known = {*cls.__slots__} - {"host", "hub"}
        if given.keys() - known:
            raise BadInput(
                f"the URL of an event hub knows only {', '.join(sorted(known))} after the '?'; "
                f"credentials come from the environment: {CONNECTION_STRING}"
            )
        if not _HOST.fullmatch(parts.netloc) or not _HUB.fullmatch(hub):
            raise BadInput(f"the URL of an event hub names the namespace and the hub: {EXAMPLE}")
        return cls(host=parts.netloc.lower(), hub=hub, **_read(given))

    @property
    def url(self) -> str:
        """The same again, for another process."""
        default = EventHubsSettings(host=self.host, hub=self.hub)
        said = {
            name: getattr(self, name)
            for name in self.__slots__
            if getattr(self, name) != getattr(default, name)
        }
        query = f"?{urlencode(said, safe='$/')}" if said else ""
        return f"eventhubs://{self.host}/{quote(self.hub)}{query}"

    def group_of(self, reader: str | None) -> str:
        """The consumer group that a group reads through."""
        return self.consumer_group or reader or DEFAULT_GROUP

    def level_of(self, reader: str, epoch: int) -> int | None:
        """The owner level of a reader who holds a lease of that epoch. A consumer group that
        several groups share knows no levels: they would cut one another off."""
        if self.owner_level == "none" or self.group_of(reader) != reader:
            return None
        return epoch if self.owner_level == "epoch" else self.owner_level


def connection_string(
    settings: EventHubsSettings, environ: Mapping[str, str] = os.environ
) -> str | None:
    """From the environment, if it is for this namespace and hub. None: there is none."""
    text = environ.get(settings.secret, "")
    if not text:
        if settings.secret != CONNECTION_STRING:
            raise BadInput(
                f"secret={settings.secret}: there is no such variable in the environment; it holds "
                "the connection string of the namespace"
            )
        return None
    said = {
        name.strip().lower(): value.strip()
        for name, _, value in (part.partition("=") for part in text.split(";"))
    }
    host = said.get("endpoint", "").partition("://")[2].strip("/").lower()
    if not host:
        raise BadInput(f"{settings.secret} is no connection string: it has no Endpoint=sb://…")
    if host != settings.host:
        raise BadInput(
            f"{settings.secret} is for {host}, and the URL names {settings.host}: make them agree, "
            "or name another variable with secret= in the URL"
        )
    if said.get("entitypath", settings.hub) != settings.hub:
        raise BadInput(
            f"{settings.secret} is for the hub {said['entitypath']}, and the URL names "
            f"{settings.hub}: use the namespace's own connection string, or that of the hub"
        )
    return text


def is_emulator(text: str) -> bool:
    """Whether a connection string is for a development endpoint, which speaks without TLS."""
    return "usedevelopmentemulator=true" in text.lower().replace(" ", "")


def _read(given: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = dict(given)
    for name, allowed in (("transport", get_args(Transport)), ("offsets", get_args(Offsets))):
        if given.get(name, allowed[0]) not in allowed:
            raise BadInput(f"{name} is one of {', '.join(allowed)}")
    if not _BROKERS.fullmatch(given.get("kafka", "")):
        raise BadInput("kafka is the address of the Kafka endpoint, HOST:PORT")
    for name in ("consumer_group", "namespace"):
        if not given.get(name, DEFAULT_GROUP):
            raise BadInput(f"{name} is a name; leave it out, or give one")
    if not _VARIABLE.fullmatch(given.get("secret", CONNECTION_STRING)):
        raise BadInput("secret is the name of an environment variable, not the secret itself")
    level = given.get("owner_level", "epoch")
    if level.isascii() and level.isdigit():
        values["owner_level"] = int(level)
    elif level not in ("epoch", "none"):
        raise BadInput("owner_level is epoch, none, or a whole number such as 0")
    for name in ("prefetch", "prefetch_bytes"):
        if name in given:
            values[name] = _number(name, given[name])
    for name in ("fresh_s", "timeout_s"):
        if name in given:
            values[name] = _seconds(name, given[name])
    return values


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise BadInput(f"{name} is a whole number above 0")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < float("inf") or (value == 0 and name == "fresh_s")):
        raise BadInput(f"{name} is a number of seconds above 0")
    return value
