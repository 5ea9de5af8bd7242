"""What every lease store must do. A store is done when all of these pass.

``CHECKS`` lists the rules one by one, so that a test runner can report each by name;
``check_lease_store`` runs them all. A check gets a function that reopens the store (all opened
stores share the same data, as two processes would) and a group that nobody else uses. A store whose
records can be locked by others, or whose clock a test can set, gives ``lock`` and ``step`` as well.
"""

from __future__ import annotations

from leasehold.testing import check_lease_ownership, check_lease_progress
from leasehold.testing.check_lease_faults import (
    CLOCK_CHECKS,
    FAULT_CHECKS,
    LOCK_CHECKS,
    Lock,
    Step,
)
from leasehold.testing.lease_scenes import EARLIEST, Check, OpenStore, any_group

__all__ = ["CHECKS", "EARLIEST", "Check", "OpenStore", "any_group", "check_lease_store"]

CHECKS: list[Check] = [
    *check_lease_ownership.CHECKS,
    *check_lease_progress.CHECKS,
    *FAULT_CHECKS,
]


async def check_lease_store(
    open_store: OpenStore, *, lock: Lock | None = None, step: Step | None = None
) -> None:
    """Every rule for a lease store. An assertion fails where one is broken. ``lock`` and ``step``:
    how to lock a record and to step the store's clock, if a test can."""
    for rule in CHECKS:
        await rule(open_store, any_group())
    if lock is not None:
        for locked in LOCK_CHECKS:
            await locked(open_store, any_group(), lock)
    if step is not None:
        for stepped in CLOCK_CHECKS:
            await stepped(open_store, any_group(), step)
