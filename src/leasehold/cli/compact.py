"""``leasehold compact``: keep a Delta table quick to read."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option, echo

from leasehold.cli.options import counted, notes


def compact(
    table: Annotated[str, Argument(metavar="TABLE", help="The table's folder or URL.")],
    keep_hours: Annotated[
        float, Option(help="Remove files that no version younger than this needs; 1 or more.")
    ] = 168.0,
    target_mb: Annotated[
        int | None,
        Option(
            help="How large files should become; the table's own setting if not.",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    sort_by: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="Put rows alike in this column together; may be repeated."),
    ] = None,
) -> None:
    """Put a table's small files together and remove what nobody needs. Writers need not stop."""
    # Only here, because the package takes its time to load.
    from leasehold.spark.delta_compact import compact as run  # noqa: PLC0415

    with notes.status(f"compacting {table}"):
        done = run(
            table,
            keep_hours=keep_hours,
            target_bytes=None if target_mb is None else target_mb * 1_000_000,
            sort_by=tuple(sort_by or ()),
        )
    echo(
        f"{counted(done.files_before, 'file')} before, {done.files_after:,} now; "
        f"{done.vacuumed:,} old ones removed"
    )
