"""Events on their way to the dead letters."""

from __future__ import annotations

from leasehold.core.event import Event
from leasehold.core.model import Group
from leasehold.ports import DeadLetter, traced_text


def letter_for(
    group: Group, event: Event, error: BaseException | str, attempts: int = 1
) -> DeadLetter:
    """What to put for an event that a group will not try again."""
    return DeadLetter(
        group=group,
        partition=event.partition,
        sequence=event.sequence,
        token=event.offset,
        body=event.body,
        properties=event.properties,
        partition_key=event.partition_key,
        enqueued_at=event.enqueued_at,
        error=traced_text(error),
        attempts=attempts,
    )
