"""What one processor tells about itself. ``docs/how-to/observe.md`` lists the names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group
from leasehold.ports import Attributes, LeaseStore, Measure, Telemetry
from leasehold.telemetry.counted_store import VERBS

log = logging.getLogger("leasehold.telemetry")
GROUP = ("namespace", "feed", "group")
# Not "instance": Prometheus gives every target a label of that name, and would rename ours.
MEMBER = (*GROUP, "member")
TAKEN = ("offered", "orphaned")
"""Why a lease is taken: it was free or given up in order, or its owner died or was overruled."""

OWNED = Measure(
    name="owned_partitions",
    kind="level",
    about="Partitions that this member works on.",
    attributes=MEMBER,
)
EVENTS = Measure(
    name="events_handled",
    kind="count",
    about="Events that the handler finished.",
    attributes=(*MEMBER, "partition"),
)
HANDLER = Measure(
    name="handler",
    kind="observation",
    about="Time in the handler, per call.",
    unit="s",
    attributes=MEMBER,
)
RETRIES = Measure(
    name="retries",
    kind="count",
    about="Handler calls that failed and were tried again.",
    attributes=(*MEMBER, "partition"),
)
DEAD_LETTERS = Measure(
    name="dead_letters",
    kind="count",
    about="Events set aside as dead letters.",
    attributes=(*MEMBER, "partition"),
)
MOVES = Measure(
    name="lease_moves",
    kind="count",
    about="Leases that this member took or gave up, by reason.",
    attributes=(*MEMBER, "reason"),
)
RENEWAL_AGE = Measure(
    name="renewal_age",
    kind="level",
    about="Time since the oldest renewal of a lease that this member holds.",
    unit="s",
    attributes=MEMBER,
)
STORE_ERRORS = Measure(
    name="store_errors",
    kind="count",
    about="Requests to the lease store that failed or were given up.",
    attributes=(*MEMBER, "verb"),
)
LAG_EVENTS = Measure(
    name="lag_events",
    kind="level",
    about="Events between checkpoint and end.",
    attributes=(*GROUP, "partition"),
)
LAG = Measure(
    name="lag",
    kind="level",
    about="Age of the oldest unprocessed event.",
    unit="s",
    attributes=(*GROUP, "partition"),
)
STORE_REQUESTS = Measure(
    name="store_requests",
    kind="count",
    about="Requests of this process to lease stores.",
    attributes=("verb",),
)
STORE_REQUEST_UNITS = Measure(
    name="store_request_units",
    kind="count",
    about="Request units that Cosmos DB charged for them.",
    attributes=("verb",),
)
FEED_REQUESTS = Measure(
    name="feed_requests",
    kind="count",
    about="Requests of this process to feeds.",
    attributes=("verb",),
)
FEED_REQUEST_UNITS = Measure(
    name="feed_request_units",
    kind="count",
    about="Request units that Cosmos DB charged for them.",
    attributes=("verb",),
)
BY_PARTITION = (EVENTS, RETRIES, DEAD_LETTERS)
LAGS = (LAG_EVENTS, LAG)
MEASURES = (
    OWNED,
    EVENTS,
    HANDLER,
    RETRIES,
    DEAD_LETTERS,
    MOVES,
    RENEWAL_AGE,
    STORE_ERRORS,
    *LAGS,
    STORE_REQUESTS,
    STORE_REQUEST_UNITS,
    FEED_REQUESTS,
    FEED_REQUEST_UNITS,
)


class LagGauges:
    """A group's lag, partition by partition."""

    def __init__(self, group: Group, telemetry: Telemetry) -> None:
        self._group = (group.namespace, group.feed, group.name)
        self.known: set[str] = set()
        self._to = SafeTelemetry(telemetry)
        self._to.tell("declare", LAGS)

    def set(self, partition: str, events: int, seconds: float | None) -> None:
        """``None``: the age is not known, which is not the same as 0."""
        self.known.add(partition)
        self._level(partition, events, seconds)

    def forget(self, partition: str) -> None:
        self.known.discard(partition)
        self._level(partition, None, None)

    def _level(self, partition: str, events: int | None, seconds: float | None) -> None:
        self._to.tell("level", LAG_EVENTS, (*self._group, partition), events)
        self._to.tell("level", LAG, (*self._group, partition), seconds)


class Metrics:
    def __init__(self, group: Group, instance: str, telemetry: Telemetry) -> None:
        self._to = SafeTelemetry(telemetry)
        self._member = (group.namespace, group.feed, group.name, instance)
        self._open: set[str] = set()
        self._to.tell("declare", MEASURES)
        self._lag = LagGauges(group, telemetry)
        self._to.tell("level", OWNED, self._member, 0)
        # From the start, so that the first failure is seen as a change.
        self._to.tell("observe", HANDLER, self._member)
        for reason in (*TAKEN, *Reason):
            self._count(MOVES, _text(reason), 0)
        for verb in VERBS:
            self._count(STORE_ERRORS, verb, 0)

    def opened(self, partition: str, reason: Enum | str = "offered") -> None:
        """Work on a partition begins. Its counters begin at 0, so that the first error is seen as
        a change."""
        self._open.add(partition)
        self._to.tell("level", OWNED, self._member, len(self._open))
        for measure in BY_PARTITION:
            self._count(measure, partition, 0)
        self.moved(partition, reason)

    def closed(self, partition: str, reason: Enum | str) -> None:
        """Work on a partition has ended; its lag is another member's to tell."""
        self._open.discard(partition)
        self._to.tell("level", OWNED, self._member, len(self._open))
        self._lag.forget(partition)
        self.moved(partition, reason)

    def handled(self, partition: str, events: int) -> None:
        self._count(EVENTS, partition, events)

    def handler_took(self, seconds: float) -> None:
        """One call of the handler has ended, well or not."""
        self._to.tell("observe", HANDLER, self._member, seconds)

    def store_failed(self, verb: str) -> None:
        self._count(STORE_ERRORS, verb)

    def watch_renewals(self, age_s: Callable[[], float | None]) -> None:
        """``age_s`` is asked at each look at the metrics, so that a blocked event loop shows."""

        def read() -> Mapping[Attributes, float]:
            age = age_s()
            return {} if age is None else {self._member: age}

        self._to.tell("watch", RENEWAL_AGE, self._member, read)

    def retried(self, partition: str) -> None:
        self._count(RETRIES, partition)

    def dead_lettered(self, partition: str, events: int = 1) -> None:
        self._count(DEAD_LETTERS, partition, events)

    def moved(self, partition: str, reason: Enum | str) -> None:
        """By reason only: a series per partition and reason would be many, and say little."""
        self._count(MOVES, _text(reason))

    def lag(self, partition: str, events: int | None, seconds: float | None = None) -> None:
        """How far behind a partition of this member is. ``None``: that is not known."""
        if events is None:
            self._lag.forget(partition)
        else:
            self._lag.set(partition, events, seconds)

    def watch(self, *, store: LeaseStore | None = None, feed: object = None) -> None:
        """Count the requests of a store, of a feed if it counts them, and their request units."""
        self._watch_requests(STORE_REQUESTS, getattr(store, "requests", None))
        self._watch_requests(STORE_REQUEST_UNITS, getattr(store, "request_units", None))
        self._watch_requests(FEED_REQUESTS, getattr(feed, "requests", None))
        self._watch_requests(FEED_REQUEST_UNITS, getattr(feed, "request_units", None))

    def _watch_requests(self, measure: Measure, requests: Mapping[str, float] | None) -> None:
        if requests is None:
            return

        def read() -> Mapping[Attributes, float]:
            # Copied at once, for its keeper goes on counting.
            return {(verb,): count for verb, count in dict(requests).items()}

        self._to.tell("watch", measure, id(requests), read)

    def _count(self, measure: Measure, last: str, amount: int = 1) -> None:
        self._to.tell("count", measure, (*self._member, last), amount)


class SafeTelemetry:
    """A telemetry that fails costs no event. It is said once for each of its methods."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._failed: set[str] = set()

    def tell(self, method: str, *given: Any) -> None:
        try:
            getattr(self._telemetry, method)(*given)
        except Exception:
            if method not in self._failed:
                self._failed.add(method)
                log.exception("the telemetry %r failed in %s", self._telemetry, method)


def _text(reason: Enum | str) -> str:
    return str(reason.value) if isinstance(reason, Enum) else reason
