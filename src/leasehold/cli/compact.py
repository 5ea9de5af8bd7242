"""``leasehold compact``: keep a Delta table quick to read."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Annotated, TypeVar

from rich.progress import BarColumn, DownloadColumn, TextColumn
from typer import Argument, Option, echo

from leasehold.cli.options import counted
from leasehold.cli.progress import bar
from leasehold.settings import COMPACT_KEEP_HOURS

T = TypeVar("T")
LOOK_S = 0.5


def compact(
    table: Annotated[str, Argument(metavar="TABLE", help="The table's folder or URL.")],
    keep_hours: Annotated[
        float, Option(help="Delete files that only versions older than this need; at least 1.")
    ] = COMPACT_KEEP_HOURS,
    target_mb: Annotated[
        int | None,
        Option(
            help="Target file size (default: the table's own setting).",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    sort_by: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="Sort rows by this column; may be repeated."),
    ] = None,
) -> None:
    """Merge a table's small files and delete unneeded ones. Writers can keep running."""
    # Only here, because the package takes its time to load.
    from leasehold.spark.delta.compact import compact as run  # noqa: PLC0415
    from leasehold.spark.delta.compact import written_bytes  # noqa: PLC0415

    done = _watched(
        lambda planned: run(
            table,
            keep_hours=keep_hours,
            target_bytes=None if target_mb is None else target_mb * 1_000_000,
            sort_by=tuple(sort_by or ()),
            on_plan=planned,
        ),
        lambda since: written_bytes(table, since),
    )
    echo(
        f"{counted(done.files_before, 'file')} before, {done.files_after:,} now; "
        f"{done.vacuumed:,} old ones removed"
    )


def _watched(run: Callable[[Callable[[int], None]], T], written: Callable[[float], int]) -> T:
    """The work itself says nothing before its end, so the bar goes by the bytes that appear."""
    total: list[int] = []
    began = time.time()
    columns = (TextColumn("compacting"), BarColumn(), DownloadColumn())
    with ThreadPoolExecutor(1) as pool, bar(*columns) as progress:
        task, running = progress.add_task("", total=None), pool.submit(run, total.append)
        while not running.done():
            wait([running], timeout=LOOK_S)
            if total and not progress.disable:
                shown = min(written(began), total[0])
                progress.update(task, completed=shown, total=total[0])
        return running.result()
