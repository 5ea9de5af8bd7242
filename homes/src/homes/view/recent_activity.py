"""What the web page asks: a home's last readings, its last hour and its last day.

A thread follows the activity table and keeps the last day of all homes in memory (``window``), the
newest first. A request before all of it is loaded is answered from the table itself, unless the
search would take too long: then with what there is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from homes.domain.activity_row import HOUR_MINUTES
from homes.domain.kinds import KIND
from homes.domain.thresholds import ALARM_HOUR_S, ALARM_MINUTES, SILENT_AFTER_S
from homes.view.table import ActivityTable, File, Gone, TableListing
from homes.view.window import AHEAD_MINUTES, LastReading, Series, Window
from leasehold import LeaseholdError, partition_of

log = logging.getLogger("leasehold")
MINUTE_S = 60.0
POLL_S = 0.25
LOOK_S = 15.0
"""How long nothing new may come before the table is asked whether its log was tidied up."""
RETRY_S = 2.0
SAVE_S = 600.0
REMEMBERED = 256
SEARCH_ROWS_MAX = 2_000_000
"""More than a fraction of a second's worth of the table is not searched for one home."""

State = Literal["quiet", "open", "alarm", "silent", "loading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeState:
    home_id: str
    now_ms: int
    state: State
    why: tuple[str, ...]
    """Kinds of sensor that make it so."""
    readings: tuple[LastReading, ...]
    hour: Series
    """By minute."""
    loading: bool
    """Whether more of the last day is still to come."""


class RecentActivity:
    def __init__(
        self,
        table: ActivityTable,
        *,
        partitions: int | None = None,
        clock: Callable[[], float] = time.time,
        snapshot: Path | None = None,
    ) -> None:
        """``partitions``: of the hub, so that the table is searched where a home can be.
        ``clock``: the sensors' time. ``snapshot``: a file that keeps what is in memory, so that a
        new start need not read the whole day again."""
        self.table, self._partitions = table, partitions
        self._clock, self._snapshot = clock, snapshot
        self._saved_at = time.monotonic()
        self._fresh = True
        self.window = Window(self._now_minute())
        self._listing: TableListing | None = None
        self._waiting: list[File] = []
        """Files that are not in memory yet, those to be read first last."""
        self._partly: dict[str, int] = {}
        """How many pieces of a file are in memory, while not all are."""
        self._since_minute: int | None = None
        self._version = -1
        self._found: OrderedDict[str, tuple[int, Window]] = OrderedDict()
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failing = ""
        """Why the table cannot be followed right now."""

    @property
    def loaded(self) -> bool:
        """Whether all that is asked for is in memory."""
        return self._since_minute is not None and not self._waiting

    @property
    def version(self) -> int:
        """The table's version up to which everything is known; -1: none yet."""
        return self._version

    def home_state(self, home_id: str) -> HomeState:
        window = self._window_for(home_id, self._now_minute() - HOUR_MINUTES)
        readings, hour = tuple(window.readings(home_id)), window.last_hour(home_id)
        now_ms = int(self._clock() * 1000)
        state, why = _judged(readings, window.noticed_alarms(home_id, ALARM_MINUTES), now_ms)
        loading = bool(self._waiting) and window is self.window
        if loading and state == "silent":
            state = "loading"
        return HomeState(
            home_id=home_id,
            now_ms=now_ms,
            state=state,
            why=why,
            readings=readings,
            hour=hour,
            loading=loading,
        )

    def last_day(self, home_id: str) -> Series:
        """By half hour."""
        return self._window_for(home_id, self.window.since_minute).last_day(home_id)

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="recent-activity", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def catch_up(self) -> None:
        """Read all there is. For programs that want no thread."""
        while self._step():
            pass

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                busy, self.failing = self._step(), ""
                if not busy and time.monotonic() - self._saved_at > SAVE_S:
                    self.save()
            except LeaseholdError as error:
                if str(error) != self.failing:
                    log.warning("the activity table is not followed now: %s", error)
                busy, self.failing = False, str(error)
                self._stop.wait(RETRY_S)
            except Exception as error:  # a reader that dies unseen would show old news forever
                log.exception("following the activity table failed; it is read again")
                busy, self.failing, self._listing = False, repr(error), None
                self._stop.wait(RETRY_S)
            if not busy:
                self._stop.wait(POLL_S)
        self.save()

    def _step(self) -> bool:
        """What is new first, then one more file of what was. False: there is nothing to do."""
        if self._now_minute() < self.window.now_minute - AHEAD_MINUTES:
            log.warning("the clock was set back: the last day is read again")
            self._listing = None
        self.window.advance(self._now_minute())
        try:
            if self._listing is None:
                return self._begin()
            return self._follow() or self._load_one()
        except Gone as reason:
            log.info("%s: the last day is read again", reason)
            self._listing = None
            return True

    def _begin(self) -> bool:
        listing = self.table.listing()
        if listing is None:
            return False
        if self._fresh and self._restored(listing):
            return True
        self._fresh = False
        window = Window(self._now_minute(), homes=max(1024, len(self.window)))
        recent = [f for f in listing.files if _reaches(f, window.since_minute)]
        self._since_minute = self._now_minute() + 1
        self._waiting = sorted(recent, key=lambda file: file.hour)
        self._partly.clear()
        self._version, self._looked_at = listing.version, time.monotonic()
        self._forget()
        self._listing = listing
        self.window = window  # last, for others read it meanwhile
        self._note_progress()
        return True

    def _restored(self, listing: TableListing) -> bool:
        """Go on from what was kept, if it is of this table."""
        self._fresh = False
        if self._snapshot is None or not self._snapshot.exists():
            return False
        try:
            window, marks = Window.load(self._snapshot)
        except ValueError as error:
            log.warning("%s is not used: %s", self._snapshot, error)
            return False
        version = marks.get("version")
        if marks.get("table") != listing.identity or not isinstance(version, int):
            return False
        if version > listing.version or window.now_minute > self._now_minute():
            return False
        window.advance(self._now_minute())
        self.window, self._version, self._listing = window, version, listing
        self._waiting, self._looked_at = [], time.monotonic()
        self._note_progress()
        return True

    def save(self) -> None:
        """Keep what is in memory, if all of it is there."""
        listing = self._listing
        if self._snapshot is None or listing is None or not self.loaded or self._partly:
            return
        self._saved_at = time.monotonic()
        try:
            self.window.save(self._snapshot, table=listing.identity, version=self._version)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._snapshot, error)

    def _follow(self) -> bool:
        files = self.table.added_by(self._version + 1)
        if files is None:
            self._require_whole_log()
            return False
        near = [file for file in files if _reaches(file, self.window.since_minute)]
        for file in near:
            self._take(file)
        for file in near:
            del self._partly[file.path]
        self._version += 1
        self._looked_at = time.monotonic()
        return True

    def _require_whole_log(self) -> None:
        """A log that was tidied up has holes; waiting for what is in them would be forever."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        now = self.table.listing()
        assert self._listing is not None
        if now is None or now.identity != self._listing.identity or now.version > self._version:
            # It may have come between the two looks.
            if now is not None and self.table.added_by(self._version + 1) is not None:
                return
            raise Gone(f"the log of {self.table.url} was tidied up or recreated")

    def _load_one(self) -> bool:
        if not self._waiting:
            return False
        self._take(self._waiting[-1])
        del self._partly[self._waiting.pop().path]
        self._note_progress()
        return True

    def _note_progress(self) -> None:
        """From when on memory has everything."""
        if self._waiting:
            self._since_minute = (self._waiting[-1].hour + 1) * HOUR_MINUTES
        else:
            self._since_minute = self.window.since_minute
            self._forget()

    def _forget(self) -> None:
        with self._turn:
            self._found.clear()

    def _take(self, file: File) -> None:
        """Again after an error: what is in memory already is passed over."""
        done = self._partly.setdefault(file.path, 0)
        for piece, rows in enumerate(self.table.rows(file)):
            if piece >= done:
                self.window.add(rows)
                self._partly[file.path] = piece + 1

    def _window_for(self, home_id: str, since_minute: int) -> Window:
        known = self._since_minute
        if known is not None and (known <= since_minute or not self._waiting):
            return self.window
        return self._searched(home_id)

    def _searched(self, home_id: str) -> Window:
        """The last day of one home out of the table, while memory has not all of it yet."""
        listing, version = self._listing, self._version
        if listing is None:
            return self.window
        kept = self._found.get(home_id)
        if kept is not None and kept[0] == version:
            return kept[1]
        window = Window(self._now_minute(), homes=1)
        since, partition = window.since_minute, self._partition(home_id)

        def near(files: Sequence[File]) -> list[File]:
            return [file for file in files if file.may_reach(home_id, since, partition)]

        if sum(file.rows for file in near(listing.files)) > SEARCH_ROWS_MAX:
            return self.window
        window.add(self.table.rows_of(home_id, since, near(self._files_now(listing))))
        with self._turn:
            self._found[home_id] = (version, window)
            while len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return window

    def _files_now(self, listing: TableListing) -> Sequence[File]:
        if listing.version == self._version:
            return listing.files
        now = self.table.listing()
        return listing.files if now is None else now.files

    def _partition(self, home_id: str) -> str | None:
        return None if self._partitions is None else str(partition_of(home_id, self._partitions))

    def _now_minute(self) -> int:
        return int(self._clock() // MINUTE_S)


def _reaches(file: File, since_minute: int) -> bool:
    if (file.hour + 1) * HOUR_MINUTES <= since_minute:
        return False
    low, high = file.bounds.get("minute", (None, None))
    return low is None or high is None or high >= since_minute


def _judged(
    readings: Sequence[LastReading], noticed: Sequence[str], now_ms: int
) -> tuple[State, tuple[str, ...]]:
    alarms = tuple(_alarms(readings, noticed, now_ms))
    if alarms:
        return "alarm", alarms
    fresh = [r for r in readings if now_ms - r.ts_ms <= SILENT_AFTER_S * 1000]
    if not fresh:
        return "silent", ()
    opened = tuple(r.kind for r in fresh if KIND[r.kind].is_opening and r.value > 0)
    return ("open", opened) if opened else ("quiet", ())


def _alarms(readings: Sequence[LastReading], noticed: Sequence[str], now_ms: int) -> Iterator[str]:
    """What was noticed some minutes ago is still an alarm. What is measured is one until a reading
    says otherwise, for a detector that falls silent may have done so because of a fire."""
    yield from noticed
    since_ms = now_ms - ALARM_HOUR_S * 1000
    for reading in readings:
        kind = KIND[reading.kind]
        measured = bool(kind.alarm_text and kind.unit)
        if measured and kind.is_active(reading.value) and reading.ts_ms >= since_ms:
            yield kind.name
