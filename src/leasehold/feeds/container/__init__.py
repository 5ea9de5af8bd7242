"""The embedded container: documents, ranges and their splits, and the change feed in two modes."""

from leasehold.feeds.container.change_feed import MODES, ChangeFeed, Continuation
from leasehold.feeds.container.container import (
    DOCUMENT_BYTES_MAX,
    VERSIONS_S,
    Container,
)
from leasehold.feeds.container.file import CONTAINER
from leasehold.feeds.container.properties import ContainerProperties, RangeProperties

__all__ = [
    "CONTAINER",
    "DOCUMENT_BYTES_MAX",
    "MODES",
    "VERSIONS_S",
    "ChangeFeed",
    "Container",
    "ContainerProperties",
    "Continuation",
    "RangeProperties",
]
