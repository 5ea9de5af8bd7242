"""Partitioned feeds, shared by lease among many instances."""

from leasehold.core.change import Change
from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint, Group, Lease, Member, Ownership, Partition, Snapshot
from leasehold.core.policy import every, manual
from leasehold.core.retry import Retry
from leasehold.errors import (
    BadInput,
    DocumentConflict,
    FeedUnavailable,
    HandlerHung,
    InstanceReplaced,
    LeaseholdError,
    LeaseLost,
    PositionGone,
    SinkUnavailable,
    StoreUnavailable,
)
from leasehold.feeds import open_feed
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.ports import DeadLetter, Which
from leasehold.processor.changefeed import ChangeFeedProcessor
from leasehold.processor.estimator import Estimate, Estimator
from leasehold.processor.handlers import Context
from leasehold.processor.metrics import LagMetrics, Registry, serve_metrics
from leasehold.processor.processor import Processor
from leasehold.processor.redrive import letter_for, redrive, to_hub
from leasehold.stores import open_dead_letters, open_store

__all__ = [
    "BadInput",
    "Change",
    "ChangeFeedProcessor",
    "Checkpoint",
    "Container",
    "Context",
    "DeadLetter",
    "DocumentConflict",
    "Estimate",
    "Estimator",
    "Event",
    "EventData",
    "FeedUnavailable",
    "Group",
    "HandlerHung",
    "Hub",
    "InstanceReplaced",
    "LagMetrics",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Member",
    "Ownership",
    "Partition",
    "PositionGone",
    "Processor",
    "Registry",
    "Retry",
    "SinkUnavailable",
    "Snapshot",
    "StoreUnavailable",
    "Which",
    "every",
    "letter_for",
    "manual",
    "open_dead_letters",
    "open_feed",
    "open_store",
    "redrive",
    "serve_metrics",
    "to_hub",
]
