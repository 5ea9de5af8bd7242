"""``python -m benchmarks``: the measurements quoted in the docs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer import Argument, Option, run

from benchmarks import container, failover, hub, many, outage, overhead, plan, requests, scale
from benchmarks.row import Row

notes = Console(stderr=True)
console = Console(width=None if sys.stdout.isatty() else 120)


class Subject(Enum):
    PLAN = "plan"
    REQUESTS = "requests"
    HUB = "hub"
    EVENTHUBS = "eventhubs"
    CONTAINER = "container"
    COSMOS = "cosmos"
    OVERHEAD = "overhead"
    MANY = "many"
    FAILOVER = "failover"
    OUTAGE = "outage"
    SCALE = "scale"
    DECODE = "decode"
    FOLDERS = "folders"
    SPARK = "spark"
    CYCLES = "cycles"
    BACKLOG = "backlog"
    START = "start"
    HOMES = "homes"
    READS = "reads"
    PEERS = "peers"


LONG = (
    Subject.SCALE,
    Subject.CYCLES,
    Subject.BACKLOG,
    Subject.START,
    Subject.HOMES,
    Subject.READS,
    Subject.PEERS,
)


def bench(
    subjects: Annotated[
        list[Subject] | None,
        Argument(
            metavar="SUBJECT",
            help=f"What to measure, of {', '.join(each.value for each in Subject)}.",
        ),
    ] = None,
    store: Annotated[
        list[str] | None, Option(help="More lease stores to measure on, by URL.")
    ] = None,
    report: Annotated[
        Path | None, Option(help="Of homes, backlog, scale and peers: a folder for what was seen.")
    ] = None,
) -> None:
    """Measure Leasehold on this machine.

    Figures that compare are taken side by side in one run and given as ratios. Those that
    take a quarter of an hour each are measured only if named: scale, cycles, backlog, start,
    homes, reads and peers.
    """
    with tempfile.TemporaryDirectory() as folder:
        stores = ["memory://", f"sqlite:///{Path(folder) / 'leases.db'}", *(store or [])]
        runs: dict[Subject, Callable[[], Iterable[Row]]] = {
            Subject.PLAN: plan.run,
            Subject.REQUESTS: lambda: requests.run(stores),
            Subject.HUB: hub.run,
            Subject.EVENTHUBS: _eventhubs,
            Subject.CONTAINER: container.run,
            Subject.COSMOS: _cosmos,
            Subject.OVERHEAD: overhead.run,
            Subject.MANY: many.run,
            Subject.FAILOVER: lambda: failover.run(stores[1:]),
            Subject.OUTAGE: outage.run,
            Subject.SCALE: lambda: scale.run(stores[2:], report=report),
            Subject.DECODE: _decode,
            Subject.FOLDERS: _folders,
            Subject.SPARK: _spark,
            Subject.CYCLES: _cycles,
            Subject.BACKLOG: lambda: _backlog(report),
            Subject.START: _start,
            Subject.HOMES: lambda: _homes(report),
            Subject.READS: _reads,
            Subject.PEERS: lambda: _peers(stores, report),
        }
        chosen = subjects or [each for each in Subject if each not in LONG]
        columns = (
            TextColumn("measuring {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        quiet = not notes.is_terminal
        with Progress(*columns, console=notes, transient=True, disable=quiet) as progress:
            task = progress.add_task("", total=len(chosen))
            for subject in chosen:
                progress.update(task, description=subject.value)
                _show(subject.value, runs[subject]())
                progress.advance(task)


def _eventhubs() -> Iterable[Row]:
    from benchmarks import eventhubs  # noqa: PLC0415  # needs the extra "eventhubs"

    return eventhubs.run()


def _cosmos() -> Iterable[Row]:
    from benchmarks import cosmos  # noqa: PLC0415  # needs the extras "cosmos" and "endpoints"

    return cosmos.run()


def _decode() -> Iterable[Row]:
    from benchmarks import decode  # noqa: PLC0415  # needs the extra "spark"

    return decode.run()


def _folders() -> Iterable[Row]:
    from benchmarks import folders  # noqa: PLC0415

    return folders.run()


def _spark() -> Iterable[Row]:
    from benchmarks import spark  # noqa: PLC0415  # PySpark takes its time to load

    return spark.run()


def _cycles() -> Iterable[Row]:
    from benchmarks import cycles  # noqa: PLC0415

    return cycles.run()


def _backlog(report: Path | None) -> Iterable[Row]:
    from benchmarks import backlog  # noqa: PLC0415

    return backlog.run(report=report)


def _start() -> Iterable[Row]:
    from benchmarks import start  # noqa: PLC0415

    return start.run(said=notes.print)


def _homes(report: Path | None) -> Iterable[Row]:
    from benchmarks import homes  # noqa: PLC0415

    return homes.run(report=report)


def _reads() -> Iterable[Row]:
    from benchmarks import reads  # noqa: PLC0415

    return reads.run(said=notes.print)


def _peers(stores: Sequence[str], report: Path | None) -> Iterable[Row]:
    from benchmarks.peers import bench as peers  # noqa: PLC0415  # needs the extra "kafka"

    return peers.run(stores, report=report, said=notes.print)


def _show(title: str, rows: Iterable[Row]) -> None:
    table = Table("what", "measured", "beside the plain way", "former", "target", title=title)
    for row in rows:
        table.add_row(
            row.what,
            f"{row.value:,.1f} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.{1 if row.ratio >= 1 else 2}f} ×",
            "" if row.former is None else f"{row.former:,.4g} {row.unit}",
            "" if row.target is None else f"{row.target:,.0f} {row.unit}",
        )
    console.print(table)


if __name__ == "__main__":
    run(bench)
