"""Where a group begins on a partition that it has no checkpoint for (requirement E15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

FORMS = (
    "'earliest', 'latest', 'sequence:N', 'offset:N', 'time:2026-01-31T12:00:00Z', "
    "'committed:GROUP', 'leases:URL', a sequence number, or a datetime with a time zone"
)
NO_STOCK_LEASES = "start 'leases:…': only feeds of Cosmos DB begin so; give another start"
NOTHING_COMMITTED = (
    "start 'committed:{group}': only Kafka keeps offsets of consumer groups; give another start"
)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest event that is still kept."""


@dataclass(frozen=True, slots=True)
class Latest:
    """After the newest event: only what comes later."""


@dataclass(frozen=True, slots=True)
class AtSequence:
    """The event with this sequence number first."""

    sequence: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The event with this offset first. Offsets are the feed's own, so this is its text."""

    offset: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first event enqueued at this time or later."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a consumer group of the outside system itself, such as Kafka, has got to."""

    group: str


@dataclass(frozen=True, slots=True)
class StockLeases:
    """Where the outside system's own processors have got to, by the leases that they wrote."""

    url: str


Start = Earliest | Latest | AtSequence | AtOffset | AtTime | Committed | StockLeases


def parse(value: Any) -> Start:
    """A start position from what a user wrote. Raises ``ValueError`` saying what would do."""
    if isinstance(value, Earliest | Latest):
        return value
    if isinstance(value, Committed):
        return _committed(value.group, value)
    if isinstance(value, StockLeases):
        return _stock_leases(value.url, value)
    if isinstance(value, AtOffset):
        return _at_offset(value.offset, value)
    if isinstance(value, AtTime | datetime):
        return _at_time(value.time if isinstance(value, AtTime) else value, value)
    if isinstance(value, AtSequence | int):
        return _at_sequence(value.sequence if isinstance(value, AtSequence) else value, value)
    if isinstance(value, str):
        return _parse_text(value)
    raise _unknown(value)


def parse_per_partition(value: Any) -> Mapping[str, Start]:
    """Start positions by partition; ``"*"`` stands for every partition not named.

    ``value`` is one start for all, or a mapping from partition to start.
    """
    if not isinstance(value, Mapping):
        return {"*": parse(value)}
    starts = {}
    for partition, start in value.items():
        try:
            starts[str(partition)] = parse(start)
        except ValueError as error:
            raise ValueError(f"partition {partition}: {error}") from error
    return starts


def _parse_text(text: str) -> Start:
    kind, colon, rest = text.strip().partition(":")
    match kind.lower(), bool(colon):
        case "earliest", False:
            return Earliest()
        case "latest", False:
            return Latest()
        case "sequence", True:
            return _at_sequence(rest, text)
        case "offset", True:
            return _at_offset(rest, text)
        case "time", True:
            return _at_time(rest, text)
        case "committed", True:
            return _committed(rest, text)
        case "leases", True:
            return _stock_leases(rest, text)
    raise _unknown(text)


def _at_sequence(value: Any, given: Any) -> AtSequence:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"start {given!r}: a sequence number is a whole number from 0 on")
    return AtSequence(value)


def _at_offset(value: Any, given: Any) -> AtOffset:
    text = str(value).strip()
    if not text:
        raise ValueError(f"start {given!r}: the offset is missing")
    return AtOffset(text)


def _committed(value: Any, given: Any) -> Committed:
    group = str(value).strip()
    if not group:
        raise ValueError(f"start {given!r}: the name of the consumer group is missing")
    return Committed(group)


def _stock_leases(value: Any, given: Any) -> StockLeases:
    url = str(value).strip()
    if "://" not in url:
        raise ValueError(f"start {given!r}: write leases: and the URL of a lease container")
    return StockLeases(url)


def _at_time(value: Any, given: Any) -> AtTime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(f"start {given!r}: write the time like 2026-01-31T12:00:00Z") from None
    if not isinstance(value, datetime):
        raise _unknown(given)
    if value.utcoffset() is None:
        raise ValueError(f"start {given!r}: the time needs a time zone, for example a final Z")
    return AtTime(value.astimezone(UTC))


def _unknown(value: Any) -> ValueError:
    return ValueError(f"start {value!r} is not one of {FORMS}")
