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
from leasehold.processor.handlers import Context
from leasehold.processor.processor import Processor
from leasehold.stores import open_store

__all__ = [
    "BadInput",
    "Checkpoint",
    "Context",
    "Event",
    "EventData",
    "FeedUnavailable",
    "Group",
    "HandlerHung",
    "Hub",
    "InstanceReplaced",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Member",
    "Ownership",
    "Partition",
    "PositionGone",
    "Processor",
    "Retry",
    "Snapshot",
    "StoreUnavailable",
    "every",
    "manual",
    "open_store",
]
