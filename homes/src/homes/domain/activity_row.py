"""A row of the activity table: what one kind of sensor of one home did in one minute. Rows of the
same minute, home and kind are added up by readers."""

from __future__ import annotations

HOUR_MINUTES = 60
WRITTEN = {
    "partition": "string",
    "hour": "int64",
    "minute": "int64",
    "home_id": "string",
    "kind": "string",
    "events": "int64",
    "active": "int64",
    "highest": "double",
    "last_value": "double",
    "last_ts": "int64",
    "battery": "double",
}
"""Columns and their types, in order. ``home_id`` is null, and ``kind`` a reason, for readings that
were not believed. ``active``: how many readings noticed something."""
READ = {name: kind for name, kind in WRITTEN.items() if name not in ("partition", "hour")}
"""What a reader needs of it; the two others only say where rows are."""
