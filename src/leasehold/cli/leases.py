"""``leasehold leases``: who owns what."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from rich.markup import escape
from typer import Option

from leasehold.cli.options import AsJson, StoreUrl, console, existing_store
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.model import Group, Ownership, Snapshot, partition_order
from leasehold.ports import LeaseStore


def leases(
    store: StoreUrl,
    group: Annotated[str | None, Option(help="Only this group.")] = None,
    as_json: AsJson = False,
) -> None:
    """List who owns each partition, when it was last renewed, and its checkpoint."""
    looks = asyncio.run(_looks(existing_store(store), group))
    if as_json:
        console.print_json(json.dumps([_as_json(row) for _, look in looks for row in _rows(look)]))
        return
    if not looks:
        which = f"group {group!r} has" if group else "there are"
        console.print(f"{which} no leases in this store yet; they appear when an instance starts")
    for key, look in looks:
        console.print(_table(key, look))
        for member in look.members:
            state = "leaving" if member.leaving else "gone" if member.expired else "alive"
            console.print(f"  {escape(member.instance)}: {state}, seen {member.age_s:.1f} s ago")


async def _looks(store: LeaseStore, group: str | None) -> list[tuple[Group, Snapshot]]:
    try:
        keys = [key for key in await store.groups() if group in (None, key.name)]
        return [(key, await store.snapshot(key)) for key in keys]
    finally:
        await store.close()


def _rows(look: Snapshot) -> list[tuple[Ownership, dict[str, object]]]:
    return [
        (
            row,
            {
                "epoch": lease.epoch,
                "live": lease.live,
                "next_sequence": lease.checkpoint.next_sequence,
                "attempts": lease.attempts,
            },
        )
        for row, lease in sorted(
            zip(look.ownership(), look.leases, strict=True),
            key=lambda each: partition_order(each[0].partition),
        )
    ]


def _as_json(row: tuple[Ownership, dict[str, object]]) -> dict[str, object]:
    return asdict(row[0]) | row[1]


def _table(key: Group, look: Snapshot) -> FittedTable:
    left = ("partition", "owner", "last modified (UTC)")
    table = FittedTable(
        *(Column(name=name, justify="left") for name in left),
        Column(name="epoch"),
        Column(name="next sequence"),
        title=escape(str(key)),
    )
    for row, more in _rows(look):
        owner = escape(row.owner) or "[dim]nobody[/]"
        modified = datetime.fromtimestamp(row.last_modified, UTC)
        table.add_row(
            escape(row.partition),
            owner if more["live"] or not row.owner else f"[red]{owner} (expired)[/]",
            f"{modified:%Y-%m-%d %H:%M:%S}",
            str(more["epoch"]),
            f"{more['next_sequence']:,}",
        )
    return table
