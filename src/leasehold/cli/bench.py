"""``leasehold bench``: the measurements quoted in the docs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from leasehold.bench import container, failover, hub, overhead, plan, requests
from leasehold.bench.row import Row
from leasehold.cli.options import notes

console = Console(width=None if sys.stdout.isatty() else 120)


class Subject(Enum):
    PLAN = "plan"
    REQUESTS = "requests"
    HUB = "hub"
    CONTAINER = "container"
    OVERHEAD = "overhead"
    FAILOVER = "failover"
    SPARK = "spark"
    HOMES = "homes"
    READS = "reads"


LONG = (Subject.HOMES, Subject.READS)


def bench(
    subjects: Annotated[
        list[Subject] | None, Argument(help="What to measure; everything if not given.")
    ] = None,
    store: Annotated[
        list[str] | None, Option(help="More lease stores to measure on, by URL.")
    ] = None,
    report: Annotated[
        Path | None, Option(help="Of homes: a folder for plots of what was seen.")
    ] = None,
) -> None:
    """Measure Leasehold on this machine.

    Figures that compare are taken side by side in one run and given as ratios. Homes and reads,
    which take a quarter of an hour each, are measured only if named.
    """
    with tempfile.TemporaryDirectory() as folder:
        stores = ["memory://", f"sqlite:///{Path(folder) / 'leases.db'}", *(store or [])]
        runs: dict[Subject, Callable[[], Iterable[Row]]] = {
            Subject.PLAN: plan.run,
            Subject.REQUESTS: lambda: requests.run(stores),
            Subject.HUB: hub.run,
            Subject.CONTAINER: container.run,
            Subject.OVERHEAD: overhead.run,
            Subject.FAILOVER: lambda: failover.run(stores[1:]),
            Subject.SPARK: _spark,
            Subject.HOMES: lambda: _homes(report),
            Subject.READS: _reads,
        }
        for subject in subjects or [each for each in Subject if each not in LONG]:
            _show(subject.value, runs[subject]())


def _spark() -> Iterable[Row]:
    from leasehold.bench import spark  # noqa: PLC0415  # PySpark takes its time to load

    return spark.run()


def _homes(report: Path | None) -> Iterable[Row]:
    from leasehold.bench import homes  # noqa: PLC0415

    return homes.run(report=report)


def _reads() -> Iterable[Row]:
    from leasehold.bench import reads  # noqa: PLC0415

    return reads.run(said=notes.print)


def _show(title: str, rows: Iterable[Row]) -> None:
    table = Table("what", "measured", "beside the plain way", "target", title=title)
    with console.status(f"measuring {title}"):
        for row in rows:
            table.add_row(
                row.what,
                f"{row.value:,.1f} {row.unit}",
                "" if row.ratio is None else f"{row.ratio:.{1 if row.ratio >= 1 else 2}f} ×",
                "" if row.target is None else f"{row.target:,.0f} {row.unit}",
            )
    console.print(table)
