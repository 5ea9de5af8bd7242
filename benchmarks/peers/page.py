"""Fills ``peers.md`` with what one run found, and draws its plots beside it."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import contenders
from benchmarks.peers.contenders import Contender
from benchmarks.plot import Line, plot

if TYPE_CHECKING:
    from benchmarks.peers.bench import Found
    from benchmarks.peers.scenes import GroupChange

BEGIN, END = "<!-- measured: peers -->", "<!-- end -->"
JOIN, LEAVE, UP, DOWN = range(4)


def write(
    folder: Path, compared: Sequence[Contender], found: Found, *, alone: Sequence[Contender] = ()
) -> None:
    _fill(folder / "peers.md", tables(compared, found, alone))
    _fill(folder.parent / "README.md", summary(compared, found))
    drawn = [each for each in compared if not each.name.endswith("PostgreSQL")]  # as with SQLite
    plot(
        folder / "peers-kill.svg",
        "Partitions that wait: a member of three is killed",
        [Line(each.short, found.killed[each.name].waiting) for each in drawn],
        mark=(1.0, "SIGKILL"),
    )
    for place, what, mark in (
        (JOIN, "join", "process started"),
        (LEAVE, "leave", "SIGTERM"),
    ):
        counts = f"{found.sizes.members[place]} → {found.sizes.members[place + 1]}"
        plot(
            folder / f"peers-{what}.svg",
            f"Partitions that wait: {counts} members",
            [Line(each.short, found.planned[each.name].changes[place].waiting) for each in drawn],
            mark=(1.0, mark),
        )


def _fill(path: Path, text: str) -> None:
    """Everything outside the marks stays as somebody wrote it."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def summary(compared: Sequence[Contender], found: Found) -> str:
    """The few figures that people ask for first."""
    head = ["", "failover after SIGKILL", "a member joins: longest pause (partitions)"]
    head += ["a member leaves: longest pause (partitions)", "delay, p95", "events per CPU-second"]
    speeds = {
        each.program: found.events_per_cpu_s[each.name]
        for each in compared
        if each.name in found.events_per_cpu_s
    }
    rows = []
    for each in compared:
        planned, killed = found.planned[each.name], found.killed[each.name]
        pauses = [
            f"{change.pause_s:.1f} s ({change.paused})"
            for change in (planned.changes[JOIN], planned.changes[LEAVE])
        ]
        delay, speed = planned.delay_ms(0.95), speeds[each.program]
        rows.append(
            [each.name, f"{killed.median_s:.1f} s", *pauses, f"{delay:,.0f} ms", f"{speed:,.0f}"]
        )
    return _table(head, rows)


def tables(compared: Sequence[Contender], found: Found, alone: Sequence[Contender] = ()) -> str:
    everybody = [*compared, *alone]
    sizes = found.sizes
    parts = [
        _conditions(found),
        _table(
            ["", "versions", "settings"],
            ([each.name, contenders.versions(each), each.said] for each in everybody),
        ),
        "### A member is killed",
        _table(
            [
                "",
                "failover, median (longest)",
                f"events twice per kill, at a commit every {sizes.commit_s:g} s",
                "kills",
                "events lost, here and below",
            ],
            (_kill_row(each, found) for each in compared),
        ),
        "### A member joins, a member leaves",
        _table(
            [
                "",
                f"{_step(found, JOIN)}: longest pause",
                "partitions that paused ≥ 1 s",
                "events twice",
                f"{_step(found, LEAVE)}: longest pause",
                "partitions that paused ≥ 1 s",
                "events twice",
            ],
            (_each(each, found, (JOIN, LEAVE), _pauses) for each in compared),
        ),
        "### Scaling",
        _table(
            [
                "",
                f"{_step(found, UP)}: even after",
                "moves (fewest possible)",
                "spread",
                "longest pause",
                "events twice",
                f"{_step(found, DOWN)}: even after",
                "moves (fewest possible)",
                "spread",
                "longest pause",
                "events twice",
            ],
            (_each(each, found, (UP, DOWN), _scaling) for each in compared),
        ),
        "### While nothing changes",
        _table(
            ["", "from sending to handling, p50", "p95"],
            (
                [name, *(f"{planned.delay_ms(part):,.0f} ms" for part in (0.5, 0.95))]
                for name, planned in found.planned.items()
            ),
        ),
        "### JSON to aggregates",
        _table(
            ["one process", "events per CPU-second, event by event", "by column (polars)"],
            (_speed_row(each, found) for each in everybody if each.name in found.events_per_cpu_s),
        ),
    ]
    return "\n\n".join(parts)


def _conditions(found: Found) -> str:
    sizes = found.sizes
    load = os.getloadavg()[1]
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench ARGS="peers --report docs"` on '
        f"{os.cpu_count()} cores (load at the end: {load:.1f} over five minutes), Python "
        f"{platform.python_version()}, one Apache Kafka broker on the same machine, a topic of "
        f"{sizes.partitions} partitions with {1 / sizes.send_s:g} events/s each, commits or "
        f"checkpoints every {sizes.commit_s:g} s; aggregates of {sizes.events:,} readings."
    )


def _step(found: Found, place: int) -> str:
    return f"{found.sizes.members[place]} → {found.sizes.members[place + 1]}"


def _kill_row(each: Contender, found: Found) -> list[str]:
    killed, planned = found.killed[each.name], found.planned[each.name]
    return [
        each.name,
        f"{killed.median_s:.1f} s ({max(killed.waits_s):.1f} s)",
        f"{statistics.mean(killed.twice):,.0f} ({min(killed.twice)} to {max(killed.twice)})",
        str(len(killed.twice)),
        str(killed.never + planned.never),
    ]


def _each(
    each: Contender,
    found: Found,
    places: Sequence[int],
    cells: Callable[[GroupChange], list[str]],
) -> list[str]:
    changes = found.planned[each.name].changes
    return [each.name, *(cell for place in places for cell in cells(changes[place]))]


def _pauses(change: GroupChange) -> list[str]:
    return [f"{change.pause_s:.1f} s", str(change.paused), str(change.twice)]


def _scaling(change: GroupChange) -> list[str]:
    return [
        f"{change.settled_s:.1f} s",
        f"{change.moves} ({change.fewest})",
        str(change.spread),
        f"{change.pause_s:.1f} s",
        str(change.twice),
    ]


def _speed_row(each: Contender, found: Found) -> list[str]:
    columns = found.columns_per_cpu_s.get(each.name)
    return [
        each.name.partition(",")[0],
        f"{found.events_per_cpu_s[each.name]:,.0f}",
        "" if columns is None else f"{columns:,.0f}",
    ]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
