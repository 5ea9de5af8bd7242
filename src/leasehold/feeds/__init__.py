"""The feeds. A URL picks one: ``open_feed("data/sensors.db")``, ``open_feed("kafka://…")``."""

from __future__ import annotations

import os
from typing import Any, cast

from leasehold.ports import Documents, Feed, Sender
from leasehold.schemes import Schemes

__all__ = ["open_container", "open_feed", "open_sender"]

SCHEMES = Schemes(
    kind="feed",
    group="leasehold.feeds",
    own={
        "file": "leasehold.feeds.embedded:open_file",
        "cosmos": "leasehold.feeds.cosmos:open_cosmos",
        "eventhubs": "leasehold.feeds.eventhubs:EventHubsFeed.from_url",
        "kafka": "leasehold.feeds.kafka:KafkaFeed.from_url",
    },
    examples=(
        "data/sensors.db (the file of a hub or of a container)",
        "file:///data/alerts.db?mode=all (the same as a URL, with its settings)",
        "cosmos://ACCOUNT.documents.azure.com/DATABASE/CONTAINER (Azure Cosmos DB)",
        "eventhubs://NAMESPACE.servicebus.windows.net/HUB (Azure Event Hubs)",
        "kafka://b1:9092,b2:9092/topic",
    ),
)

SENDERS = Schemes(
    kind="sender",
    group="leasehold.senders",
    own={
        "file": "leasehold.feeds.embedded:open_hub",
        "eventhubs": "leasehold.feeds.eventhubs:EventHubsFeed.from_url",
        "kafka": "leasehold.feeds.kafka:KafkaSender.from_url",
    },
    examples=(
        "data/sensors.db (the file of a hub)",
        "eventhubs://NAMESPACE.servicebus.windows.net/HUB (Azure Event Hubs)",
        "kafka://b1:9092,b2:9092/topic",
    ),
    unknown="nothing can be sent to {scheme}://",
)

CONTAINERS = Schemes(
    kind="container",
    group="leasehold.containers",
    own={
        "file": "leasehold.feeds.embedded:open_container",
        "cosmos": "leasehold.feeds.cosmos:CosmosContainer.from_url",
    },
    examples=(
        "data/alerts.db (the file of a container)",
        "cosmos://ACCOUNT.documents.azure.com/DATABASE/CONTAINER (Azure Cosmos DB)",
    ),
)


def open_container(url: str | os.PathLike[str]) -> Documents:
    """The container of documents that a URL names, to write to and to read by hand."""
    text = os.fspath(url)
    return cast(Documents, CONTAINERS.open(_scheme(text), text, {}))


def open_feed(url: str | os.PathLike[str], mode: str | None = None, **settings: Any) -> Feed:
    """The feed that a URL names. A path is the file of a hub or of a container, whichever it holds.

    ``mode`` is for change feeds: ``"latest"`` (if not given) or ``"all"``. Secrets are never part
    of a URL: a feed takes them from the environment.
    """
    if mode is not None:
        settings["mode"] = mode
    text = os.fspath(url)
    return cast(Feed, SCHEMES.open(_scheme(text), text, settings))


def open_sender(url: str | os.PathLike[str], **settings: Any) -> Sender:
    """What can be sent to at a URL: a hub by its file, an event hub, a Kafka topic. The feed that
    it fills is ``open_feed`` of the same URL."""
    text = os.fspath(url)
    return cast(Sender, SENDERS.open(_scheme(text), text, settings))


def _scheme(text: str) -> str:
    scheme, is_url, _ = text.partition("://")
    return scheme.lower() if is_url else "file"
