"""What a processor that works in cycles, as on Spark, tells about them."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.core.model import Group
from leasehold.ports import Measure, Telemetry
from leasehold.telemetry.metrics import MEMBER, SafeTelemetry

PARTS = ("plan", "job", "commit")
CANCELLED = ("lost", "overdue", "stop", "timeout")

TARGET = Measure(
    name="cycle_target",
    kind="level",
    about="How long a cycle should take (cycle_s).",
    unit="s",
    attributes=MEMBER,
)
CYCLE = Measure(
    name="cycle",
    kind="observation",
    about="How long cycles took, from plan to commit.",
    unit="s",
    attributes=MEMBER,
)
PART = Measure(
    name="cycle_part",
    kind="observation",
    about="How long parts of a cycle took: plan, job, commit.",
    unit="s",
    attributes=(*MEMBER, "part"),
)
LAST = Measure(
    name="cycle_last",
    kind="level",
    about="How long the last cycle took.",
    unit="s",
    attributes=MEMBER,
)
EVENTS = Measure(
    name="cycle_events",
    kind="level",
    about="Events of the last cycle.",
    attributes=MEMBER,
)
NEXT = Measure(
    name="cycle_next_events",
    kind="level",
    about="The most events that the next cycle may take.",
    attributes=MEMBER,
)
BYTES = Measure(
    name="cycle_bytes",
    kind="level",
    about="Bytes of events in the last cycle, by the size of a few of them.",
    attributes=MEMBER,
)
RATE = Measure(
    name="cycle_events_per_second",
    kind="level",
    about="Events of the last cycle by its time.",
    attributes=MEMBER,
)
CANCELS = Measure(
    name="jobs_cancelled",
    kind="count",
    about="Jobs that were cancelled, by reason.",
    attributes=(*MEMBER, "reason"),
)
CYCLE_MEASURES = (TARGET, CYCLE, PART, LAST, EVENTS, NEXT, BYTES, RATE, CANCELS)


class CycleMetrics:
    def __init__(self, group: Group, instance: str, telemetry: Telemetry, target_s: float) -> None:
        self._to = SafeTelemetry(telemetry)
        self._member = (group.namespace, group.feed, group.name, instance)
        self._to.tell("declare", CYCLE_MEASURES)
        self._to.tell("level", TARGET, self._member, target_s)
        self._to.tell("observe", CYCLE, self._member)
        for part in PARTS:
            self._to.tell("observe", PART, (*self._member, part))
        for reason in CANCELLED:
            self._to.tell("count", CANCELS, (*self._member, reason), 0)

    def ended(
        self,
        *,
        events: int,
        seconds: float,
        size_bytes: int,
        next_events: int,
        parts: Mapping[str, float],
    ) -> None:
        self._to.tell("observe", CYCLE, self._member, seconds)
        for part, took_s in parts.items():
            self._to.tell("observe", PART, (*self._member, part), took_s)
        rate = events / max(seconds, 1e-9)
        for measure, value in (
            (LAST, seconds),
            (EVENTS, events),
            (NEXT, next_events),
            (BYTES, size_bytes),
            (RATE, rate),
        ):
            self._to.tell("level", measure, self._member, value)

    def cancelled(self, reason: str) -> None:
        self._to.tell("count", CANCELS, (*self._member, reason), 1)
