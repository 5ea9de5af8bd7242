"""Partitioned feeds, shared by lease among many instances."""

from leasehold.core.model import Checkpoint, Group, Lease, Member, Ownership, Partition, Snapshot
from leasehold.errors import (
    BadInput,
    InstanceReplaced,
    LeaseholdError,
    LeaseLost,
    StoreUnavailable,
)
from leasehold.stores import open_store

__all__ = [
    "BadInput",
    "Checkpoint",
    "Group",
    "InstanceReplaced",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Member",
    "Ownership",
    "Partition",
    "Snapshot",
    "StoreUnavailable",
    "open_store",
]
