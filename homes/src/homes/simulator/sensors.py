"""Sends the readings of many homes to a hub: history, real time, faster, or as fast as it goes.

What was sent last is kept in a small file beside the hub, so that a stopped simulator goes on where
it was; of what is no file, such as a Kafka topic, beside a path that is named. After a crash at
most one batch is sent again, byte by byte the same.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa

from homes.domain.kinds import FITTED, KINDS
from homes.domain.reading import MINUTE_MS, body, home_id
from homes.local.lock import Lock
from homes.local.places import co_wanted
from homes.local.whole_file import whole_file
from homes.simulator.bodies import Writer
from homes.simulator.days import YEAR_MINUTES, IncidentRates, Town
from homes.simulator.flaws import Flaws, spoil
from leasehold import (
    BadInput,
    EventData,
    FeedUnavailable,
    FileBacked,
    Hub,
    Sender,
    strict_json,
)

log = logging.getLogger("leasehold")
HOMES = 100_000
BATCH_READINGS = 100_000
TICK_S = 1.0
CATCH_UP_MINUTES = 15.0
PAUSE_MS = 3 * MINUTE_MS
"""A pause is longer than this; a hub stores a batch, or says that it cannot, in less."""
RETRY_S, RETRY_MAX_S = 0.5, 5.0
HOUR_MS = 60 * MINUTE_MS
MINUTES_MAX = 10 * YEAR_MINUTES
HOURS_MAX = MINUTES_MAX // 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorState:
    """How far a simulator has come; ``hub`` tells whether it is still the same hub."""

    hub: str
    next_ms: int | None = None
    """All readings before this time of the sensors' clock are sent."""
    sent: int = 0
    co_since_ms: int | None = None
    history_until_ms: int | None = None
    """A history up to here was begun, and its end not reached yet."""
    history_from_ms: int | None = None
    """Where that history began."""


class Sensors:
    """The sensors of all homes. One at a time may send to a hub; ``close`` lets the next one.

    ``speed`` is 1 for real time, a number for so many times faster (or slower), or ``"max"``.
    The time in the readings is the sensors' own clock: real time follows the wall clock, any other
    speed goes on from the last reading and may run ahead of the wall clock.
    """

    def __init__(
        self,
        hub: Sender,
        *,
        beside: Path | None = None,
        homes: int = HOMES,
        seed: int = 1,
        speed: float | Literal["max"] = 1.0,
        rates: IncidentRates | None = None,
        flaws: Flaws | None = None,
        catch_up_minutes: float = CATCH_UP_MINUTES,
        on_sent: Callable[[Sensors], None] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``catch_up_minutes``: how much is backfilled after a pause at most; the rest is left out.
        ``on_sent`` is called after every batch. ``beside``: a path for its small files, if not the
        hub's own."""
        self.speed = parse_speed(speed)
        self.hub, self.town = hub, Town(homes, seed, rates)
        self.beside = _place(hub, beside)
        self.flaws = flaws or Flaws()
        if not 0 <= catch_up_minutes < inf:
            raise BadInput(f"catch_up_minutes is {catch_up_minutes}; give 0 or more")
        self._catch_up_ms = int(catch_up_minutes * MINUTE_MS)
        self.on_sent, self._wall = on_sent, wall
        self._writers: dict[int, Writer] = {}
        self._lock = Lock(
            _beside(self.beside, "sensors.lock"), "another simulator is sending to this hub"
        )
        try:
            self._state = _load(_beside(self.beside, "sensors.json"), hub.identity)
        except BaseException:
            self._lock.release()
            raise

    @property
    def sent(self) -> int:
        """Readings sent to this hub so far, by earlier simulators, too."""
        return self._state.sent

    @property
    def next_ms(self) -> int | None:
        """All readings before this time are sent; None: nothing was sent yet."""
        return self._state.next_ms

    @property
    def history_until_ms(self) -> int | None:
        """Where a history ends that was cut short; see ``finish_backfill``."""
        return self._state.history_until_ms

    @property
    def co_since_ms(self) -> int | None:
        """Since when homes have a carbon monoxide detector, by the sensors' clock."""
        return self._state.co_since_ms

    def backfill(
        self, hours: float, until: float | None = None, *, stop: threading.Event | None = None
    ) -> int:
        """Send the history of so many hours up to ``until`` (a Unix time), as fast as it goes. What
        was sent before is not sent again. How many readings there were.

        Without ``until`` it ends now: not when it was begun, or ``run`` would leave out some of
        what became due during a long history.
        """
        require_length("hours", hours, HOURS_MAX)
        stop, sent = stop or threading.Event(), 0
        while True:
            until_ms = int((self._wall() if until is None else until) * 1000)
            begin_ms = until_ms - int(hours * HOUR_MS)
            self._move(max(begin_ms, self.next_ms or begin_ms))
            self._state = replace(
                self._state,
                history_from_ms=self._state.history_from_ms or self._next,
                history_until_ms=until_ms,
            )
            sent += self.finish_backfill(stop)
            late_ms = self._wall() * 1000 - until_ms
            if until is not None or stop.is_set() or late_ms < MINUTE_MS:
                return sent

    def finish_backfill(self, stop: threading.Event | None = None) -> int:
        """Send what is missing of a history that was cut short, if one was: ``run`` would leave
        out what is older than ``catch_up_minutes``. How many readings there were."""
        stop, before, until_ms = stop or threading.Event(), self.sent, self._state.history_until_ms
        while until_ms is not None and self._next < until_ms:
            if stop.is_set():
                return self.sent - before
            self._send(until_ms, stop)
        if until_ms is not None:
            self._keep(replace(self._state, history_from_ms=None, history_until_ms=None))
        return self.sent - before

    def run(self, stop: threading.Event | None = None, *, minutes: float | None = None) -> int:
        """Send until stopped, or for so many minutes of the sensors' clock. How many there were."""
        if minutes is not None:
            require_length("minutes", minutes, MINUTES_MAX)
        stop, before = stop or threading.Event(), self.sent
        origin_ms, began = self._begin(minutes), self._wall()
        end_ms = inf if minutes is None else origin_ms + max(1, int(minutes * MINUTE_MS))
        tick_ms = max(1.0, TICK_S * 1000 * self.speed)

        def clock_ms() -> float:
            return origin_ms + self._elapsed_ms(began)

        pauses = _Pauses(clock_ms, self._catch_up_ms if self.speed == 1 else inf)
        while not stop.is_set() and self._next < end_ms:
            until_ms = min(end_ms, pauses.next_ms)
            due_ms, tick_at_ms = min(clock_ms(), until_ms), min(self._next + tick_ms, until_ms)
            if due_ms < tick_at_ms:
                wait_ms = (tick_at_ms - due_ms) / self.speed
                # No longer than a tick: a clock that was set back may be set right at any time.
                stop.wait(min(max(wait_ms / 1000, 0.001), TICK_S))
            else:
                self._send(due_ms, stop, pauses.look)
            pauses.look()
            self._move(pauses.passed(self._next))
        return self.sent - before

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _next(self) -> int:
        assert self._state.next_ms is not None
        return self._state.next_ms

    def _elapsed_ms(self, began: float) -> float:
        return inf if self.speed == inf else (self._wall() - began) * 1000 * self.speed

    def _begin(self, minutes: float | None) -> int:
        """Where the sensors' clock stands at the beginning."""
        now_ms = int(self._wall() * 1000)
        if self.speed != 1:
            # So that a first run of known length ends now, and not in the future.
            first_ms = now_ms - int((minutes or 0) * MINUTE_MS)
            self._move(first_ms if self.next_ms is None else self.next_ms)
            return self._next
        next_ms = now_ms if self.next_ms is None else self.next_ms
        if next_ms < now_ms - self._catch_up_ms:
            _say_pause(now_ms - next_ms, self._catch_up_ms)
            next_ms = now_ms - self._catch_up_ms
        self._move(next_ms)
        return max(now_ms, next_ms)

    def _send(
        self, until_ms: float, stop: threading.Event, look: Callable[[], None] = lambda: None
    ) -> None:
        """One batch. A hub in trouble is tried again until it takes it, or ``stop`` is set;
        ``look`` is called every time."""
        self._notice_co()
        keys, bodies, end_ms = self._batch(until_ms)
        delay_s = RETRY_S
        while len(bodies):
            try:
                self.hub.send_columns(keys, bodies)
                break
            except FeedUnavailable as error:
                log.warning("%s readings not sent: %s: it is tried again", len(bodies), error)
                if stop.wait(delay_s):
                    return
                look()
                delay_s = min(2 * delay_s, RETRY_MAX_S)
        self._keep(replace(self._state, next_ms=end_ms, sent=self._state.sent + len(bodies)))
        if self.on_sent is not None:
            self.on_sent(self)

    def _batch(self, until_ms: float) -> tuple[pa.StringArray, pa.BinaryArray, int]:
        """The next readings, of as many minutes as fit, and up to where they go."""
        pieces, count, at = [], 0, self._next
        while at + 1 <= until_ms and count < BATCH_READINGS:  # whole milliseconds only
            keys, bodies, at = self._piece(at, until_ms, BATCH_READINGS - count)
            pieces.append((keys, bodies))
            count += len(bodies)
        if len(pieces) == 1:
            return *pieces[0], at
        return *(pa.concat_arrays(column) for column in zip(*pieces, strict=True)), at

    def _piece(
        self, from_ms: int, until_ms: float, most: int
    ) -> tuple[pa.StringArray, pa.BinaryArray, int]:
        """Readings from within one minute, of either all homes with or all without detectors."""
        minute = from_ms // MINUTE_MS
        base = minute * MINUTE_MS
        end_ms = int(min(until_ms, base + MINUTE_MS))
        since = self._state.co_since_ms
        kinds = len(KINDS) if since is not None and since <= from_ms else FITTED
        if since is not None and from_ms < since:
            end_ms = min(end_ms, since)
        part = self.town.places(from_ms - base, end_ms - base)
        homes = max(1, most // kinds)
        if part.stop - part.start > homes:
            end_ms = max(base + int(self.town.moments[part.start + homes]), from_ms + 1)
            part = self.town.places(from_ms - base, end_ms - base)
        readings = self.town.readings(minute, part, kinds)
        if kinds not in self._writers:
            self._writers[kinds] = Writer(self.town.numbers, kinds)
        keys, bodies = self._writers[kinds].columns(part, readings)
        if self.flaws:
            dice = self.town.dice(minute, part, kinds)[~readings.silent]
            keys, bodies = spoil(keys, bodies, self.flaws, dice, self.town.homes)
        return keys, bodies, end_ms

    def _notice_co(self) -> None:
        if self._state.co_since_ms is None and co_wanted(self.beside, self.hub.identity):
            log.info("every home has a carbon monoxide detector now")
            self._keep(replace(self._state, co_since_ms=self._next))

    def _move(self, next_ms: int) -> None:
        self._state = replace(self._state, next_ms=next_ms)

    def _keep(self, state: SimulatorState) -> None:
        self._state = state
        try:
            _write(_beside(self.beside, "sensors.json"), asdict(state))
        except OSError as error:
            log.warning("%s: how far the sensors are is not written: it is tried again", error)


def parse_speed(speed: Any) -> float:
    """``"max"`` or a number above 0."""
    if speed == "max":
        return inf
    try:
        number = float(speed)
    except (TypeError, ValueError):
        number = 0.0
    if not number > 0:
        raise BadInput(f"speed is {speed!r}; give a number such as 1 (real time) or 10, or max")
    return number


def require_length(name: str, value: float, most: int) -> None:
    if not 0 < value <= most:
        raise BadInput(f"{name} is {value:g}; give more than 0 and at most {most:,}")


def add_co_detectors(path: str | os.PathLike[str], identity: str | None = None) -> None:
    """Give every home a carbon monoxide detector (requirement H4). ``path`` is the hub's file; of
    what is no file, the path that a simulator was given, and the identity besides. A running
    simulator notices with its next batch, one that starts later at once."""
    if identity is None:
        with Hub.open(path) as hub:
            identity = hub.identity
    path = _beside(Path(path), "sensors.co")
    try:
        _write(path, {"hub": identity})
    except OSError as error:
        raise FeedUnavailable(f"{path} cannot be written: {error.strerror}") from error


def send_reading(
    hub: Sender, home: int | str, kind: str, value: float, *, ts_ms: int | None = None
) -> bytes:
    """One more reading, now: break a window, for example. The body that was sent."""
    if kind not in KINDS:
        raise BadInput(f"there is no sensor of kind {kind!r}; there are {', '.join(KINDS)}")
    name = home_id(home) if isinstance(home, int) else home
    text = body(name, kind, value, 50, int(time.time() * 1000) if ts_ms is None else ts_ms)
    hub.send(EventData(text), partition_key=name)
    return text


class _Pauses:
    """Times at which this process did not run: it was suspended, or the machine was asleep. Waiting
    for a hub in trouble is none: sensors go on meanwhile, and none of their readings is left out.

    Of each pause, the last ``made_up_for_ms`` are no part.
    """

    def __init__(self, clock_ms: Callable[[], float], made_up_for_ms: float) -> None:
        self._clock_ms, self._made_up_for_ms = clock_ms, made_up_for_ms
        self._awake_ms = clock_ms()
        self._found: deque[tuple[int, int]] = deque()

    def look(self) -> None:
        """To be called often: a pause is what lies between two calls that are far apart."""
        now_ms, since_ms = self._clock_ms(), self._awake_ms
        self._awake_ms = now_ms
        if now_ms - since_ms > max(self._made_up_for_ms, PAUSE_MS):
            _say_pause(now_ms - since_ms, self._made_up_for_ms)
            self._found.append((int(since_ms), int(now_ms - self._made_up_for_ms)))

    @property
    def next_ms(self) -> float:
        """Where the next one begins."""
        return self._found[0][0] if self._found else inf

    def passed(self, at_ms: int) -> int:
        """The same time, or the end of the pause it is in."""
        while self.next_ms <= at_ms:
            at_ms = max(at_ms, self._found.popleft()[1])
        return at_ms


def _say_pause(ms: float, made_up_for_ms: float) -> None:
    log.warning(
        "the sensors were off for %.0f minutes; readings of the last %.0f are sent",
        ms / MINUTE_MS,
        made_up_for_ms / MINUTE_MS,
    )


def _place(hub: Sender, beside: Path | None) -> Path:
    if beside is None:
        if not isinstance(hub, FileBacked):
            raise BadInput(f"say beside which path to keep how far the sensors of {hub!r} are")
        return hub.path
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{beside.parent} cannot be made: {error.strerror}") from error
    return beside


def _beside(hub: Path, name: str) -> Path:
    return hub.with_name(f"{hub.name}.{name}")


def _load(path: Path, identity: str) -> SimulatorState:
    try:
        state = SimulatorState(**strict_json.loads(path.read_bytes()))
        numbers = [number for name, number in asdict(state).items() if name != "hub"]
        if not all(number is None or isinstance(number, int) for number in numbers):
            raise ValueError(f"{numbers} are not all numbers")
    except FileNotFoundError:
        return SimulatorState(hub=identity)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{path} is damaged ({error}); remove it, and the sensors start over"
        ) from error
    # The hub may have been recreated since.
    return state if state.hub == identity else SimulatorState(hub=identity)


def _write(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(content).encode())
