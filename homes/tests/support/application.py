"""The whole application as processes, as a user starts it, and what it has done so far.

``python application.py FOLDER`` prints the latter, for a folder that only some processes see.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from homes_command import PROGRAM
from support.blocking import result_of

import leasehold as lh
from homes.local.places import ACTIVITY, Places
from leasehold.spark.delta.marks import Ids

HOMES = 60
MARK = "LEASEHOLD_TEST_FOLDER"
"""In the environment of whatever a demo starts."""
PATIENCE_S = 180.0


class Running:
    """A command whose output is read as it comes."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def said(self, text: str) -> int:
        """How many lines have it."""
        return sum(text in line for line in self.lines)

    def until(self, text: str) -> str:
        """Wait for a line; the line."""
        wait_for(lambda: self.said(text) or self.process.poll() is not None, text)
        assert self.said(text), self.text
        return next(line for line in self.lines if text in line)

    def end(self, number: int | None = None) -> int:
        """Its exit code, after this signal or by itself."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def demo(
    folder: Path, *options: str, instances: int = 2, through: Sequence[str] = ()
) -> Iterator[Running]:
    """``through``: a command that runs another one."""
    command = [*through, *PROGRAM, "demo", "--folder", str(folder), "--homes", str(HOMES)]
    command += ["--instances", str(instances), "--port", "0", "--no-story", *options]
    running = Running(command, **{MARK: str(folder)})
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        try:
            wait_for(lambda: not processes(folder), "all parts to end")
        finally:
            for pid in processes(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes(folder: Path) -> dict[int, str]:
    """All processes that a demo of this folder has started, with Spark's: their commands by id."""
    found = {}
    mark = f"{MARK}={folder}\0".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may be gone, or not ours
            if mark in (each / "environ").read_bytes():
                command = (each / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(each.name)] = command.decode(errors="replace")
    return found


def parts(folder: Path, part: str) -> list[int]:
    """The process ids of one kind of part."""
    mine = f"homes.supervisor.run_part {part} "
    return [pid for pid, command in processes(folder).items() if mine in command]


def wait_for(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """By partition of the hub: how many events there are, how many of them the pipeline has done,
    and where those are. What is done is told by the table itself, in the version that is counted,
    so this holds to the event at any moment."""

    sent: dict[str, int]
    done: dict[str, int]
    aggregated: dict[str, int]
    dead: dict[str, int]
    lags: dict[str, int]
    """By group, all four of them."""
    letters: dict[str, int]
    """Dead letters by group."""

    @property
    def missing(self) -> dict[str, int]:
        """What is done and nowhere (or, below zero, there too often)."""
        left = {p: n - self.aggregated[p] - self.dead[p] for p, n in self.done.items()}
        return {partition: count for partition, count in left.items() if count}

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def reaches(self, earlier: Account) -> bool:
        """Whether all is done that was sent then."""
        return all(self.done[partition] >= end for partition, end in earlier.sent.items())


def account(folder: Path) -> Account:
    places = Places(folder)
    with lh.Hub.open(places.hub) as hub, lh.Container.open(places.alerts) as container:
        lags = dict(_lags(places, hub, container.feed()))
        done, aggregated = _table(places, hub)
        letters = asyncio.run(_letters(places))
        sent = {str(each.partition): each.end for each in result_of(hub.extents())}
    dead = Counter(
        letter.partition
        for letter in letters
        if letter.group.name == ACTIVITY and letter.sequence < done.get(letter.partition, 0)
    )
    return Account(
        sent=sent,
        done={p: done.get(p, 0) for p in sent},
        aggregated={p: aggregated[p] for p in sent},
        dead={p: dead[p] for p in sent},
        lags=lags,
        letters=dict(Counter(letter.group.name for letter in letters)),
    )


def _lags(places: Places, hub: lh.Hub, changes: Any) -> Iterator[tuple[str, int]]:
    for feed, group in (
        (hub, ACTIVITY),
        (hub, "alerts"),
        (changes, "notify"),
        (changes, "archive"),
    ):
        estimator = lh.Estimator(feed, group=group, store=lh.open_store(places.store))
        found = estimator.lag()
        yield group, found.lag_events if found.started else -1
        estimator.close()


def _table(places: Places, hub: lh.Hub) -> tuple[dict[str, int], Counter[str]]:
    try:
        table = DeltaTable(str(places.activity))
    except TableNotFoundError:
        return {}, Counter()
    group = lh.Group(namespace=hub.namespace, feed=hub.name, name=ACTIVITY)
    done = {
        partition: table.transaction_version(Ids.of(group, hub.identity, partition).done) or 0
        for partition in hub.properties().partition_ids
    }
    rows = table.to_pyarrow_table(columns=["partition", "events"])
    sums = rows.group_by("partition").aggregate([("events", "sum")]).to_pylist()
    return done, Counter({row["partition"]: row["events_sum"] for row in sums})


async def _letters(places: Places) -> list[lh.DeadLetter]:
    store = lh.open_dead_letters(places.dead_letters)
    found: list[lh.DeadLetter] = []
    while page := await store.list(
        lh.LetterFilter(), limit=5000, after=found[-1].number if found else None
    ):
        found += page
    await store.close()
    return found


def caught_up(folder: Path) -> Account:
    """Wait until all is done that has been sent by now, with nothing missing."""
    then = account(folder)
    wait_for(lambda: account(folder).reaches(then), f"all of {then.total} events")
    now = account(folder)
    assert now.missing == {}
    return now


if __name__ == "__main__":
    found = account(Path(sys.argv[1]))
    print(json.dumps(asdict(found)))
    sys.exit(os.EX_OK)
