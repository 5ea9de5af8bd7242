"""Group ``alerts``: broken glass and carbon monoxide become alert documents (requirement H5).

Nearly all readings are ordinary. Those are told by one pattern over the whole column of bodies;
only what does not fit it, urgent or odd or broken, is looked at one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from homes.domain.kinds import KIND, SENSOR_KINDS, SensorKind
from leasehold import (
    ArrowEvents,
    BadInput,
    Context,
    DeadLetters,
    DocumentConflict,
    Documents,
    Event,
    Feed,
    FeedUnavailable,
    LeaseholdError,
    LeaseStore,
    Processor,
    Retry,
    SinkUnavailable,
    StoreUnavailable,
    strict_json,
)

log = logging.getLogger("leasehold")
GROUP = "alerts"
CO = "co"
CO_PPM = KIND[CO].active_from
NAME_CHARS_MAX = 128
TS_MAX_MS = 8_640_000_000_000_000
"""The last time that a browser knows, in the year 275760."""
RETRY = Retry(attempts=10, backoff_s=0.5, backoff_max_s=60.0, then="dead-letter")
"""For what nobody thought of. What can never be right is set aside at once, and a container in
trouble is waited for."""

_NAME = f'"[A-Za-z0-9_.:-]{{1,{NAME_CHARS_MAX}}}"'
_NUMBER = r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?"


class Malformed(ValueError):
    """A body that is no reading."""


class SensorReading(NamedTuple):
    home_id: str
    sensor_id: str
    type: str
    value: float
    ts: int


FIELDS = strict_json.Fields(SensorReading._fields)


def alerts_processor(
    hub: Feed,
    store: LeaseStore,
    container: Documents,
    *,
    dead_letters: DeadLetters,
    co_ppm: float = CO_PPM,
    known: Callable[[str], bool] | None = None,
    retry: Retry = RETRY,
    max_events: int = 10_000,
    poll_interval_s: float = 0.25,
    **settings: Any,
) -> Processor:
    """One instance of the group. ``container`` has the partition key ``/home_id``.

    ``co_ppm``: from which value on carbon monoxide is an alert. ``known``: whether a home is one of
    ours; alerts of others are dead-lettered. Left out: all are. ``settings``: of ``Processor``.
    """
    if not 0 < co_ppm < float("inf"):
        raise BadInput(f"co_ppm is {co_ppm}; give parts per million, more than 0")
    return Processor(
        hub,
        group=GROUP,
        store=store,
        on_batch=_Alerts(container, co_ppm, known or (lambda home: True)),
        dead_letters=dead_letters,
        retry=retry,
        max_events=max_events,
        poll_interval_s=poll_interval_s,
        **settings,
    )


def parse(body: bytes) -> SensorReading:
    """The reading that a body is; ``Malformed`` says why it is none.

    A wrong time or battery does not make it malformed: an alarm must not fail for that.
    """
    try:
        fields = FIELDS.read(body)
    except strict_json.UNREADABLE as error:
        raise Malformed(f"the body is no JSON object: {error}") from error
    for name in ("home_id", "sensor_id", "type"):
        text = fields.get(name)
        if not isinstance(text, str) or not 1 <= len(text) <= NAME_CHARS_MAX:
            raise Malformed(f"{name} is {text!r:.60}; it is text of 1 to {NAME_CHARS_MAX}")
    value, ts = fields.get("value"), fields.get("ts")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise Malformed(f"value is {value!r:.60}; it is a number")
    if isinstance(ts, bool) or not isinstance(ts, int) or abs(ts) > TS_MAX_MS:
        raise Malformed(f"ts is {ts!r:.60}; it is milliseconds since 1970")
    return SensorReading(fields["home_id"], fields["sensor_id"], fields["type"], value, ts)


def is_urgent(reading: SensorReading, co_ppm: float = CO_PPM) -> bool:
    kind = KIND.get(reading.type)
    if kind is None or not kind.alarm_text:
        return False
    return reading.value >= co_ppm if kind.name == CO else kind.is_active(reading.value)


def alert_of(reading: SensorReading, event: Event) -> dict[str, Any]:
    """The document. Its id follows from the reading, so that one that comes again changes nothing.

    ``enqueued_ms`` is when the hub had it, for measuring how long alerts take.
    """
    return {
        "id": f"{reading.sensor_id}-{reading.ts}",
        **reading._asdict(),
        "enqueued_ms": int(event.enqueued_at.timestamp() * 1000),
        "status": "new",
    }


def ordinary(co_ppm: float = CO_PPM) -> str:
    """A pattern for bodies that are good readings and no alert. What it does not match may be, too:
    it is there to be quick, and knows only the usual order of the fields."""
    values = [
        rf'"{kind.name}", *"value": *{number}'
        for kind in SENSOR_KINDS
        if (number := _ordinary_number(kind, co_ppm))
    ]
    return (
        rf'\A\{{"home_id": *{_NAME}, *"sensor_id": *{_NAME}, *"type": *(?:{"|".join(values)}), *'
        rf'"battery": *{_NUMBER}, *"ts": *(?:0|[1-9][0-9]{{0,14}})\}}\z'
    )


def _ordinary_number(kind: SensorKind, co_ppm: float) -> str:
    """A pattern for values that are no alert, or for some of them; empty: none is that simple."""
    if not kind.alarm_text:
        return _NUMBER
    if not kind.unit:
        return "0"
    limit = co_ppm if kind.name == CO else kind.active_from
    digits = len(str(int(limit))) - 1  # whatever has fewer before the point is below the limit
    return rf"(?:0|[1-9][0-9]{{0,{digits - 1}}})(?:\.[0-9]{{1,15}})?" if digits else ""


def unusual(events: Sequence[Event], pattern: str) -> Iterable[Event]:
    """Those that are to be looked at one by one."""
    if not isinstance(events, ArrowEvents):
        return events
    usual = pc.match_substring_regex(events.arrow.column("body"), pattern)
    places = np.flatnonzero(~usual.to_numpy(zero_copy_only=False))
    return ArrowEvents(events.arrow.take(places), events.partition) if len(places) else ()


class _Alerts:
    """The handler."""

    def __init__(self, container: Documents, co_ppm: float, known: Callable[[str], bool]) -> None:
        self._container, self._co_ppm, self._known = container, co_ppm, known
        self._ordinary = ordinary(co_ppm)

    def __call__(self, events: Sequence[Event], context: Context) -> None:
        try:
            for event in unusual(events, self._ordinary):
                self._look_at(event, context)
        except (FeedUnavailable, StoreUnavailable) as error:  # a full disk, for example
            raise SinkUnavailable(f"alerts cannot be kept now: {error}") from error

    def _look_at(self, event: Event, context: Context) -> None:
        try:
            reading = parse(event.body)
            if is_urgent(reading, self._co_ppm):
                self._store(alert_of(reading, event))
        except Malformed as error:
            context.dead_letter(event, error)
        except BadInput as error:
            self._require_container(error)
            context.dead_letter(event, error)

    def _require_container(self, error: BadInput) -> None:
        """It may be the alert that is no good, or a container that was closed or removed."""
        try:
            self._container.properties()
        except LeaseholdError:
            raise SinkUnavailable(f"alerts cannot be kept now: {error}") from error

    def _store(self, alert: dict[str, Any]) -> None:
        if not self._known(alert["home_id"]):
            raise BadInput(f"an alert of {alert['home_id']!r}, which is none of our homes")
        try:
            self._container.insert(alert)
        except DocumentConflict:  # it came again; it may have been changed since, and stays so
            return
        log.info("alert %s: %s is %s", alert["id"], alert["type"], alert["value"])


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
