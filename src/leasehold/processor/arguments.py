"""Checks of what a user gives to a processor, and what stands in for what is not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasehold.core import start as starts
from leasehold.errors import BadInput
from leasehold.ports import DeadLetters, LeaseStore
from leasehold.settings import Every, Retry

DEAD_LETTERS = 'open_dead_letters("sqlite:///data/dead.db")'


def check_names(group: Any, instance: Any) -> None:
    if not isinstance(group, str) or not group.strip():
        raise BadInput(f"group must be a name, for example alerts, not {group!r}")
    if instance is not None and not (isinstance(instance, str) and instance.strip()):
        raise BadInput(f"instance must be a name, for example worker-1, not {instance!r}")


def check_parts(store: Any, checkpoint: Any, retry: Any, dead_letters: Any) -> None:
    _check_part("store", store, LeaseStore, 'open_store("sqlite:///data/leases.db")')
    if checkpoint is not None:
        _check_part("checkpoint", checkpoint, Every, "every(events=500, seconds=5)")
    if retry is not None:
        _check_part("retry", retry, Retry, "Retry(attempts=5)")
    if dead_letters is not None:
        _check_part("dead_letters", dead_letters, DeadLetters, DEAD_LETTERS)
    if retry is not None and retry.then == "dead-letter" and dead_letters is None:
        raise BadInput(
            f'retry then="dead-letter" needs a store for the letters: dead_letters={DEAD_LETTERS}'
        )


def parse_starts(start: Any) -> Mapping[str, Any]:
    try:
        return starts.parse_per_partition(start)
    except ValueError as error:
        raise BadInput(str(error)) from error


def _check_part(name: str, value: Any, kind: type, example: str) -> None:
    """A URL in place of a store would fail only in the middle of the work."""
    if not isinstance(value, kind):
        raise BadInput(f"{name} cannot be {value!r}: give {name}={example}")
