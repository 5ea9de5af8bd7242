"""Which positions the hub has, and what is said of those that it does not have."""

from __future__ import annotations

from leasehold.core.model import Checkpoint
from leasehold.errors import Gone, PositionGone
from leasehold.feeds.eventhubs.broker import NO_TOKEN, PartitionInfo


def require(info: PartitionInfo, position: Checkpoint) -> None:
    """Raises ``PositionGone`` unless the hub has the position, as far as the broker tells."""
    at = position.next_sequence
    if at == 0 and position.token not in NO_TOKEN:
        return  # only the offset is known, as some processors leave it
    if at < info.first:
        raise gone(info, position, "retention")
    if at > info.end:
        raise gone(info, position, "beyond end")
    if at == info.end and not same_offset(position.token, info.last_offset):
        raise gone(info, position, "other feed")


def same_offset(token: str, offset: str) -> bool:
    """Whether they may be the same. Those of replicated namespaces are no numbers; they change."""
    return not (token.isdigit() and offset.isdigit()) or token == offset


def begin_of(position: Checkpoint, first_kept: int) -> tuple[str | int, bool]:
    """Where a link begins for a position, and whether that event comes, too.

    The event before the position comes as well, where its offset can show that this is still the
    hub that the position is of.
    """
    at, token = position.next_sequence, position.token
    if token in NO_TOKEN or (token.isdigit() and at > 0 and at - 1 < first_kept):
        return at, True
    return (at - 1, True) if token.isdigit() and at > 0 else (token, False)


def gone(info: PartitionInfo, position: Checkpoint, reason: Gone) -> PositionGone:
    at, token = position.next_sequence, position.token
    place = f"sequence {at}" if at >= 0 else f"offset {token}"
    kept = (
        f"it keeps sequences {info.first} to {info.end - 1}"
        if info.first < info.end
        else f"it is empty; the next sequence is {info.end}"
    )
    text = {
        "retention": f"{place} is older than what the hub keeps: {kept}",
        "beyond end": f"{place} is beyond the end ({kept}); was the hub recreated?",
        "other feed": f"{place} with offset {token} is a position of another hub; it was "
        f"recreated ({kept})",
    }[reason]
    return PositionGone(
        f"{info.hub}, partition {info.partition}: {text}",
        partition=info.partition,
        position=position,
        reason=reason,
        earliest=info.earliest,
        latest=info.latest,
    )
