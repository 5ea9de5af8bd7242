"""What one processor tells about itself, by name. ``docs/how-to/observe.md`` lists the names.

A registry may be shared by all processors of a process; one server then gives out all of them.
"""

from __future__ import annotations

from enum import Enum

from leasehold.core.model import Group
from leasehold.ports import LeaseStore
from leasehold.processor.estimator import Estimate
from leasehold.processor.prometheus import MetricsServer, Registry, serve_metrics

__all__ = ["LagMetrics", "Metrics", "MetricsServer", "Registry", "serve_metrics"]

GROUP = ("namespace", "feed", "group")
# Not "instance": Prometheus gives every target a label of that name, and would rename ours.
MEMBER = (*GROUP, "member")
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)


class LagMetrics:
    """A group's lag. By itself for a process that watches a group and is no member of it."""

    def __init__(self, group: Group, registry: Registry) -> None:
        self._group = (group.namespace, group.feed, group.name)
        self._known: set[str] = set()
        each = (*GROUP, "partition")
        self._events = registry.gauge(
            "leasehold_lag_events", "Events between checkpoint and end.", each
        )
        self._seconds = registry.gauge(
            "leasehold_lag_seconds", "Age of the oldest unprocessed event.", each
        )

    def set(self, partition: str, events: int, seconds: float | None) -> None:
        """``None``: the age is not known, which is not the same as 0."""
        self._known.add(partition)
        self._events.set((*self._group, partition), events)
        if seconds is None:
            self._seconds.drop((*self._group, partition))
        else:
            self._seconds.set((*self._group, partition), seconds)

    def forget(self, partition: str) -> None:
        self._known.discard(partition)
        self._events.drop((*self._group, partition))
        self._seconds.drop((*self._group, partition))

    def show(self, estimate: Estimate) -> None:
        """All partitions of the group, and no others, owned or not."""
        for partition in self._known - {each.partition for each in estimate.partitions}:
            self.forget(partition)
        for each in estimate.partitions:
            self.set(each.partition, each.lag_events, each.lag_s)


class Metrics:
    def __init__(self, group: Group, instance: str, registry: Registry | None = None) -> None:
        self.registry = registry = registry or Registry()
        self._member = (group.namespace, group.feed, group.name, instance)
        self._open: set[str] = set()
        each = (*MEMBER, "partition")
        self._owned = registry.gauge(
            "leasehold_owned_partitions", "Partitions that this member works on.", MEMBER
        )
        self._events = registry.counter(
            "leasehold_events_handled_total", "Events that the handler finished.", each
        )
        self._seconds = registry.histogram(
            "leasehold_handler_seconds", "Time in the handler, per call.", MEMBER, SECONDS
        )
        self._retries = registry.counter(
            "leasehold_retries_total", "Handler calls that failed and were tried again.", each
        )
        self._dead_letters = registry.counter(
            "leasehold_dead_letters_total", "Events set aside as dead letters.", each
        )
        self._moves = registry.counter(
            "leasehold_lease_moves_total",
            "Leases that this member took or gave up, by reason.",
            (*MEMBER, "reason"),
        )
        self._lag = LagMetrics(group, registry)
        self._store_requests = registry.counts(
            "leasehold_store_requests_total", "Requests of this process to lease stores.", "verb"
        )
        self._feed_requests = registry.counts(
            "leasehold_feed_requests_total", "Requests of this process to feeds.", "verb"
        )
        self._owned.set(self._member, 0)

    def opened(self, partition: str, reason: Enum | str = "taken") -> None:
        """Work on a partition begins. Its counters begin at 0, so that the first error is seen as
        a change."""
        self._open.add(partition)
        self._owned.set(self._member, len(self._open))
        for counter in (self._events, self._retries, self._dead_letters):
            counter.add((*self._member, partition), 0)
        self.moved(partition, reason)

    def closed(self, partition: str, reason: Enum | str) -> None:
        """Work on a partition has ended; its lag is another member's to tell."""
        self._open.discard(partition)
        self._owned.set(self._member, len(self._open))
        self._lag.forget(partition)
        self.moved(partition, reason)

    def handled(self, partition: str, events: int, seconds: float) -> None:
        """One handler call succeeded."""
        self._events.add((*self._member, partition), events)
        self._seconds.observe(self._member, seconds)

    def retried(self, partition: str) -> None:
        self._retries.add((*self._member, partition))

    def dead_lettered(self, partition: str, events: int = 1) -> None:
        self._dead_letters.add((*self._member, partition), events)

    def moved(self, partition: str, reason: Enum | str) -> None:
        """By reason only: a series per partition and reason would be many, and say little."""
        text = str(reason.value) if isinstance(reason, Enum) else reason
        self._moves.add((*self._member, text))

    def lag(self, partition: str, events: int, seconds: float | None = None) -> None:
        """How far behind a partition of this member is."""
        self._lag.set(partition, events, seconds)

    def watch(self, *, store: LeaseStore | None = None, feed: object = None) -> None:
        """Count the requests of a store, and of a feed if it counts them."""
        if store is not None:
            self._store_requests.watch(store.requests)
        requests = getattr(feed, "requests", None)
        if requests is not None:
            self._feed_requests.watch(requests)

    def render(self) -> str:
        return self.registry.render()
