"""Fewer, larger files in a Delta table, and the old ones removed; writers need not stop.

Compaction changes no row, so a writer's commit does not mind it. Vacuum removes what no version
within the retention names; files of a commit under way are younger than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from leasehold.errors import BadInput, SinkUnavailable
from leasehold.settings import COMPACT_KEEP_HOURS

TRIES = 5
KEEP_HOURS_MIN = 1.0
"""A job that runs longer than this between its first file and its commit is out of bounds."""
KEEP_HOURS_MAX = 1_000_000
"""More than a century."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    files_before: int
    files_after: int
    vacuumed: int


def compact(
    url: str,
    *,
    keep_hours: float = COMPACT_KEEP_HOURS,
    target_bytes: int | None = None,
    sort_by: tuple[str, ...] = (),
    storage_options: Mapping[str, str] | None = None,
    on_plan: Callable[[int], None] = lambda size_bytes: None,
) -> Compacted:
    """Put small files together, remove those that nobody needs any more, and tidy the log.

    ``on_plan`` is told how many bytes may be written, at most."""
    if not KEEP_HOURS_MIN <= keep_hours <= KEEP_HOURS_MAX:
        raise BadInput(
            f"keep_hours is {keep_hours:g}; give {KEEP_HOURS_MIN:g} or more (younger files may "
            f"belong to a commit that is under way) and at most {KEEP_HOURS_MAX:,}"
        )
    if target_bytes is not None and not 1 <= target_bytes < 1 << 63:
        raise BadInput(f"target_bytes is {target_bytes}; give 1 or more, in 63 bits")
    try:
        table = DeltaTable(url, storage_options=dict(storage_options or {}))
    except TableNotFoundError as error:
        raise BadInput(f"there is no Delta table at {url}") from error
    except (DeltaError, OSError) as error:
        raise SinkUnavailable(f"{url} cannot be read now: {_first_line(error)}") from error
    _require_columns(table, sort_by)
    try:
        before = len(table.file_uris())
        on_plan(sum(table.get_add_actions()["size_bytes"].to_pylist()))
        _merged(table, target_bytes, sort_by)
        table.update_incremental()
        removed = table.vacuum(
            retention_hours=ceil(keep_hours),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        table.create_checkpoint()
        return Compacted(
            files_before=before, files_after=len(table.file_uris()), vacuumed=len(removed)
        )
    except (DeltaError, OSError) as error:
        raise SinkUnavailable(f"{url} cannot be compacted now: {_first_line(error)}") from error


def written_bytes(url: str, since: float) -> int:
    """What was written into a table's folder since then; 0 where that cannot be seen."""
    folder, total = Path(url.removeprefix("file://")), 0
    for path in folder.rglob("*.parquet*"):
        with suppress(OSError):  # it was removed in between
            found = path.stat()
            total += found.st_size if found.st_mtime >= since else 0
    return total


def _first_line(error: Exception) -> str:
    """Without the trace of calls that some bring along."""
    return str(error).partition("\n")[0]


def _require_columns(table: DeltaTable, wanted: tuple[str, ...]) -> None:
    """Rows of a partition are alike in its column already."""
    held = table.metadata().partition_columns
    known = [field.name for field in table.schema().fields if field.name not in held]
    for column in wanted:
        if column not in known:
            raise BadInput(
                f"sort_by: the table has no column {column!r} to sort by; it has {', '.join(known)}"
            )


def _merged(table: DeltaTable, target_bytes: int | None, sort_by: tuple[str, ...]) -> Any:
    for _ in range(TRIES - 1):
        try:
            return _once(table, target_bytes, sort_by)
        except CommitFailedError:  # a rewind removed rows meanwhile
            table.update_incremental()
    return _once(table, target_bytes, sort_by)


def _once(table: DeltaTable, target_bytes: int | None, sort_by: tuple[str, ...]) -> Any:
    if sort_by:
        return table.optimize.z_order(list(sort_by), target_size=target_bytes)
    return table.optimize.compact(target_size=target_bytes)
