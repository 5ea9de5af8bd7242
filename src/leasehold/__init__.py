"""Partitioned feeds, shared by lease among many instances."""

from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint, Group, Lease, Member, Ownership, Partition, Snapshot
from leasehold.core.policy import every, manual
from leasehold.core.retry import Retry
from leasehold.errors import (
    BadInput,
    FeedUnavailable,
    HandlerHung,
    InstanceReplaced,
    LeaseholdError,
    LeaseLost,
    PositionGone,
    StoreUnavailable,
)
from leasehold.feeds.hub import Hub
from leasehold.processor.estimator import Estimate, Estimator
from leasehold.processor.handlers import Context
from leasehold.processor.metrics import LagMetrics, Registry, serve_metrics
from leasehold.processor.processor import Processor
from leasehold.stores import open_store

__all__ = [
    "BadInput",
    "Checkpoint",
    "Context",
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
    "Snapshot",
    "StoreUnavailable",
    "every",
    "manual",
    "open_store",
    "serve_metrics",
]
