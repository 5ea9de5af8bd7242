"""Every setting of a processor and its default, once.

Processors, stores, simulations and the reference (docs/reference/settings.md) read them here. The
text below a field is its line in that reference. Each class refuses what cannot work, by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from leasehold.errors import BadInput

OnPositionGone = Literal["earliest", "fail"]
Then = Literal["retry-forever", "stop", "dead-letter"]
ATTEMPTS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How fast a group notices and acts."""

    lease_ttl_s: float = 10.0
    """after this long without a renewal, a lease may be taken over; at least twice the interval"""
    balance_interval_s: float = 3.0
    """how often an instance heartbeats, renews and looks; a third of it while leases change hands
    """
    shed_timeout_s: float = 60.0
    """how long a live owner may take to let go before it is overruled; longer than your longest
    batch"""
    request_timeout_s: float = 5.0
    """how long to wait for an answer of the store"""
    drain_timeout_s: float = 20.0
    """how long an orderly stop waits for work in hand; with it, a stop fits into the 30 s that
    Kubernetes grants by default"""

    @property
    def fresh_s(self) -> float:
        """How long after a renewal new work may begin."""
        return 0.75 * self.lease_ttl_s

    @property
    def patience_s(self) -> float:
        """How long an unowned lease is left to the member it is meant for."""
        return 1.25 * self.balance_interval_s

    @property
    def hurry_s(self) -> float:
        """The pause between two looks while leases are changing hands."""
        return self.balance_interval_s / 3

    @property
    def doubt_s(self) -> float:
        """How long what seems long dead at a first look is watched before it is believed: after an
        outage the living need that long to say so."""
        return 1.25 * self.hurry_s

    @property
    def silence_s(self) -> float:
        """Who did not hear the store for longer than this must let the others renew first: they may
        not have got through either."""
        spare_s = self.lease_ttl_s - self.balance_interval_s - self.hurry_s
        return max(spare_s, 1.5 * self.balance_interval_s)

    @property
    def alive_s(self) -> float:
        """How long upkeep may take between two of its steps before its loop counts as stuck."""
        return 2 * (self.request_timeout_s + self.balance_interval_s)

    @property
    def moment_s(self) -> float:
        """How long members that come or go together may need until all of them have said so."""
        return self.balance_interval_s / 10

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        _check_seconds(
            self, "lease_ttl_s", "balance_interval_s", "shed_timeout_s", "request_timeout_s"
        )
        _check_from_0(self, "drain_timeout_s")
        if self.lease_ttl_s < 2 * self.balance_interval_s:
            raise BadInput(
                f"lease_ttl_s={self.lease_ttl_s:g} leaves no time for a second renewal: make it at "
                f"least twice balance_interval_s ({2 * self.balance_interval_s:g})"
            )


TIMING = Timing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast an instance works on its partitions, and what it puts up with."""

    max_events: int = 1000
    """the most events that are read, and that a handler is given, at a time"""
    max_bytes: int = 64_000_000
    """how much of all partitions together may be in memory for another batch to be read ahead
    (64 MB); 0: read nothing ahead"""
    read_ahead: bool = True
    """whether the next batch is read while one is handled"""
    poll_interval_s: float = 0.5
    """the pause when there is nothing to read; one look at the feed serves all idle partitions of
    an instance, if the feed tells its ends"""
    read_timeout_s: float = 30.0
    """how long one read of the feed may take before it is tried again"""
    request_timeout_s: float = TIMING.request_timeout_s
    """how long to wait for an answer of the store"""
    retry_s: float = 0.5
    """the first pause after a failure of the feed or the store, which are tried again forever; it
    doubles each time"""
    retry_max_s: float = 30.0
    """the longest such pause"""
    handler_timeout_s: float | None = None
    """how long one call of the handler may take, or of `on_error`; none: any time"""
    on_position_gone: OnPositionGone = "earliest"
    """where to go on if the checkpoint's position is gone; `"fail"`: stop"""

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        if not _is_whole(self.max_events) or self.max_events < 1:
            raise BadInput(f"max_events must be 1 or more, not {self.max_events!r}")
        if not _is_whole(self.max_bytes) or self.max_bytes < 0:
            raise BadInput(
                f"max_bytes must be 0 (read nothing ahead) or more bytes, not {self.max_bytes!r}"
            )
        if not isinstance(self.read_ahead, bool):
            raise BadInput(f"read_ahead must be True or False, not {self.read_ahead!r}")
        _check_seconds(self, "poll_interval_s", "request_timeout_s", "read_timeout_s")
        _check_seconds(self, "retry_s", "retry_max_s")
        if self.retry_max_s < self.retry_s:
            raise BadInput(
                f"retry_max_s must be retry_s ({self.retry_s:g}) or more, not {self.retry_max_s!r}"
            )
        if self.handler_timeout_s is not None:
            _check_seconds(self, "handler_timeout_s", else_="; leave it out for no limit")
        if self.on_position_gone not in get_args(OnPositionGone):
            raise BadInput(
                f'on_position_gone must be "earliest" or "fail", not {self.on_position_gone!r}'
            )


PACE = Pace()
CHANGES_PACE = Pace(max_events=100, poll_interval_s=1.0)
"""Of a ``ChangeFeedProcessor``, where ``max_events`` is ``max_items``."""
SPARK_PACE = Pace(max_events=4_000_000, poll_interval_s=0.2, read_ahead=False)
"""Of a ``SparkProcessor``, whose jobs read the events themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """How a ``SparkProcessor`` makes jobs of the events of its partitions."""

    tasks: int | None = None
    """into how many tasks a large job is cut; none: as many as Spark has cores"""
    cycle_s: float = 2.0
    """how long a job should take: how many events it is given follows from how long the last ones
    took. Moves and stops wait for jobs in hand, so about this long"""
    cycle_bytes: int = 1_000_000_000
    """the most bytes of events in one job (1 GB), by the size of a few of them"""
    overlap: bool = True
    """whether, during a backlog, the next job begins when the one before is about to end.
    `on_batch` is then called from two threads at once, with different partitions"""
    gather_s: float = 0.05
    """how long partitions wait for one another before a job begins"""
    stall_s: float = 120.0
    """if a job has run this long, Spark is given a job of no work. If after as long again it has
    not done that and no task of the job has ended, the instance stops with an error and lets its
    leases go. More than the longest single task"""

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        if self.tasks is not None and (not _is_whole(self.tasks) or self.tasks < 1):
            raise BadInput(f"tasks must be 1 or more, not {self.tasks!r}")
        if not _is_whole(self.cycle_bytes) or self.cycle_bytes < 1:
            raise BadInput(f"cycle_bytes must be 1 or more, not {self.cycle_bytes!r}")
        if not isinstance(self.overlap, bool):
            raise BadInput(f"overlap must be True or False, not {self.overlap!r}")
        _check_from_0(self, "gather_s")
        _check_seconds(self, "stall_s", "cycle_s")


JOBS = JobSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often to try, how long to wait between, and what then."""

    attempts: int = 5
    """tries before `then`"""
    then: Then = "retry-forever"
    """or `"dead-letter"`, or `"stop"`"""
    backoff_s: float = 1.0
    """the pause after the first failure, less up to half of it by chance"""
    backoff_max_s: float = 60.0
    """the longest such pause"""
    factor: float = 2.0
    """by which it grows each time"""
    dead_in_a_row: int = 50
    """after so many dead letters with no event handled in between by the same instance, it is
    hardly the events' fault: `on_error` gets `DeadLettersHeld`, and only one event in
    `backoff_max_s` becomes a letter, after one more try, until an event is handled"""

    def __post_init__(self) -> None:
        _require(1 <= self.attempts <= ATTEMPTS_MAX, "attempts", f"1 to {ATTEMPTS_MAX}", self)
        _require(self.then in get_args(Then), "then", f"one of {', '.join(get_args(Then))}", self)
        _require(0 <= self.backoff_s < math.inf, "backoff_s", "0 or more", self)
        _require(
            self.backoff_s <= self.backoff_max_s < math.inf,
            "backoff_max_s",
            f"backoff_s ({self.backoff_s}) or more",
            self,
        )
        _require(1 <= self.factor < math.inf, "factor", "1 or more", self)
        _require(
            isinstance(self.dead_in_a_row, int) and self.dead_in_a_row >= 1,
            "dead_in_a_row",
            "a whole number from 1 on",
            self,
        )

    def delay_s(self, tries: int, chance: float) -> float:
        """The wait after that many failed tries.

        Half of it is fixed, so that nothing ever spins; half is by ``chance`` in [0, 1), so that
        partitions that failed together do not come back together.
        """
        try:
            full = self.backoff_s * float(self.factor) ** max(0, tries - 1)
        except OverflowError:
            full = self.backoff_max_s
        return min(full, self.backoff_max_s) * (1 + chance) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """When a checkpoint is written (requirement E14): whatever comes first. With nothing given,
    only the user's own checkpoints count."""

    events: int | None = None
    """a checkpoint after this many events"""
    seconds: float | None = None
    """after this many seconds, if anything was handled"""
    batches: int | None = None
    """after this many batches"""

    def __post_init__(self) -> None:
        for name in ("events", "seconds", "batches"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"checkpoint: {name} must be more than 0, not {value!r}")

    @property
    def manual(self) -> bool:
        return self.events is None and self.seconds is None and self.batches is None

    def due(self, events: int, seconds: float, batches: int) -> bool:
        """Whether to save, so much after the last time."""
        return (
            (self.events is not None and events >= self.events)
            or (self.batches is not None and batches >= self.batches)
            or (self.seconds is not None and events > 0 and seconds >= self.seconds)
        )


def every(
    *, events: int | None = None, seconds: float | None = None, batches: int | None = None
) -> Every:
    """A checkpoint every so many events, seconds or batches, whatever comes first."""
    if events is None and seconds is None and batches is None:
        raise ValueError("every() needs events=, seconds= or batches=; or use manual()")
    return Every(events=events, seconds=seconds, batches=batches)


def manual() -> Every:
    """No checkpoint but those that the handler writes itself."""
    return Every()


CHECKPOINT = every(batches=1)
"""When a processor writes one that is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSettings:
    """How an ``Estimator`` looks at a group."""

    stuck_after_s: float = 30.0
    """a partition with events to process whose checkpoint has not moved for this long is stuck"""
    rate_over_s: float = 30.0
    """rates are averages over this long, since checkpoints move in steps"""

    def check(self) -> None:
        """Refuse settings that cannot work, by name."""
        _check_seconds(self, "stuck_after_s", "rate_over_s")


LAG = LagSettings()

STORE_TIMEOUT_S = 4.0
"""``timeout_s`` of a store: it says what is wrong before a caller who waits ``request_timeout_s``
gives up on it."""
CONTAINER_RANGES = 4
"""``ranges`` of a new container."""
ENDPOINT_PORT = 8081
"""``port`` of an endpoint for clients of Cosmos DB, as its own emulator has it."""
ITEMS_MAX = 100
"""``max_items`` of one call that reads documents."""
COMPACT_KEEP_HOURS = 168.0
"""``keep_hours`` of a compaction: a week."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_seconds(settings: Any, *names: str, else_: str = "") -> None:
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise BadInput(f"{name} must be more than 0 seconds, not {value!r}{else_}")


def _check_from_0(settings: Any, name: str) -> None:
    value = getattr(settings, name)
    if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise BadInput(f"{name} must be 0 or more, not {value!r}")


def _require(holds: bool, setting: str, wanted: str, retry: Retry) -> None:
    if not holds:
        raise ValueError(f"Retry: {setting} must be {wanted}, but is {getattr(retry, setting)!r}")
