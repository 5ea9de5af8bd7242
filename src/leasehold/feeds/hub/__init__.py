"""The embedded hub: a SQLite file whose rows are batches of events in Arrow."""

from leasehold.feeds.hub.file import HUB
from leasehold.feeds.hub.hub import Hub
from leasehold.feeds.hub.intake import EventBatch
from leasehold.feeds.hub.properties import HubProperties, PartitionProperties

__all__ = ["HUB", "EventBatch", "Hub", "HubProperties", "PartitionProperties"]
