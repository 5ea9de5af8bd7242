"""``leasehold rewind``: deliver a group's events again from an older position."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from rich.markup import escape
from rich.table import Table
from typer import Exit, Option, confirm, echo

from leasehold.cli.options import (
    START,
    AsJson,
    FeedMode,
    FeedPath,
    GroupName,
    StoreUrl,
    counted,
    notes,
    opened_feed,
    unit_of,
)
from leasehold.core.model import Group
from leasehold.core.start import Start, parse
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.feeds.container_feed import ChangeFeed
from leasehold.feeds.hub import Hub
from leasehold.ports import Feed, LeaseStore
from leasehold.processor.changefeed import WORDS
from leasehold.processor.rewind import Move, Outcome, alive_text, carry_out, owners, plan
from leasehold.stores import open_store

if TYPE_CHECKING:
    from leasehold.spark.delta_rewind import DeltaRewind


def rewind(
    feed: FeedPath,
    *,
    group: GroupName,
    store: StoreUrl,
    to: Annotated[str, Option(metavar="START", help=f"{START}; or beginning, now")],
    mode: FeedMode = None,
    partition: Annotated[
        list[str] | None, Option(help="Only this partition; may be given several times.")
    ] = None,
    fence: Annotated[
        bool, Option("--fence", help="Take the leases from owners that are alive.")
    ] = False,
    sink: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="The Delta table that the group writes: its rows past the position are removed.",
        ),
    ] = None,
    sink_key: Annotated[
        str, Option(metavar="COLUMN", help="The table's column that names the partition.")
    ] = "partition",
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a group to another position; its events are delivered (again) from there.

    Refuses while an owner is alive, unless told to fence it off. Exits with 1 if some partitions
    could not be moved. A group that writes to a Delta table goes back together with it: rows that
    are partly made of events before the position go, too, and the position moves back to their
    first event.
    """
    start = _start(to)
    with opened_feed(feed, mode) as opened:
        key = Group(namespace=opened.namespace, feed=opened.name, name=group)
        table = None if sink is None else _table_of(sink, sink_key, opened, key)
        asking = _Asking(unit_of(opened), fence=fence, yes=yes, table=table)
        moves, outcome = asyncio.run(
            _run(opened, open_store(store), key, start, partition, asking=asking)
        )
    if as_json:
        echo(json.dumps([_as_json(move, outcome) for move in moves]))
    elif not moves:
        echo("every partition is there already; nothing to do")
    else:
        where = to if sink is None else f"{to}, or back to where the rows of the table begin"
        echo(f"{group}: {counted(len(outcome.done), 'partition')} moved to {where}")
    if outcome.refused:
        for name, why in outcome.refused.items():
            notes.print(f"[red]not moved:[/] partition {escape(f'{name}: {why}')}", highlight=False)
        raise Exit(1)


class _Asking(NamedTuple):
    unit: str
    fence: bool
    yes: bool
    table: DeltaRewind | None = None


def _table_of(url: str, column: str, feed: Hub | ChangeFeed, group: Group) -> DeltaRewind:
    # Only here, because PySpark takes its time to load.
    from leasehold.spark.delta import DeltaSink  # noqa: PLC0415
    from leasehold.spark.delta_rewind import DeltaRewind  # noqa: PLC0415

    of = feed.container if isinstance(feed, ChangeFeed) else feed
    return DeltaRewind(DeltaSink(url, key=column), group, of.identity)


def _start(text: str) -> Start:
    """The words of both kinds of feed mean the same."""
    try:
        return WORDS.get(text.strip().lower()) or parse(text)
    except ValueError as error:
        raise BadInput(f"--to: {error}") from error


async def _run(
    feed: Feed,
    store: LeaseStore,
    group: Group,
    to: Start,
    partitions: Sequence[str] | None,
    *,
    asking: _Asking,
) -> tuple[tuple[Move, ...], Outcome]:
    try:
        moves = await plan(feed, store, group, to, partitions or None)
        ends: Mapping[str, int] = {}
        if asking.table is not None:
            moves, ends = await asking.table.plan(feed, store, moves)
        if not moves and not ends:
            return moves, Outcome(done=(), refused={})
        notes.print(_table(moves, asking.unit))
        if not asking.fence:
            _require_nobody(moves)
        if not asking.yes:
            confirm(_question(moves, group, asking, ends), abort=True, err=True)
        if asking.table is None:
            return moves, await carry_out(store, moves, fence=asking.fence)
        outcome, rows = await asking.table.carry_out(store, moves, ends, fence=asking.fence)
        notes.print(f"{counted(rows, 'row')} removed from the table", highlight=False)
        return moves, outcome
    except StoreUnavailable:
        notes.print("some partitions may have been moved: look with leasehold lag", highlight=False)
        raise
    finally:
        await store.close()


def _require_nobody(moves: Sequence[Move]) -> None:
    if alive := owners(moves):
        ttl_s = max(move.lease.ttl_s for move in moves)
        raise BadInput(
            f"{alive_text(alive)}. Nothing was changed. Stop them and try again (one that was "
            f"killed is gone after {ttl_s:g} s), or take their leases away with --fence"
        )


def _question(moves: Sequence[Move], group: Group, asking: _Asking, ends: Mapping[str, int]) -> str:
    again, skipped = sum(move.again for move in moves), sum(move.skipped for move in moves)
    effects = [f"{counted(again, asking.unit)} will be delivered again"]
    if skipped:
        effects.append(f"{counted(skipped, asking.unit)} will be SKIPPED")
    if asking.table is not None and ends:
        effects.append(f"{counted(asking.table.rows_after(ends), 'row')} of the table will go")
    if asking.fence and (alive := owners(moves)):
        effects.append(f"{', '.join(alive)} will be fenced off")
    return f"Move {counted(len(moves), 'partition')} of {group}? {'; '.join(effects)}."


def _table(moves: Sequence[Move], unit: str) -> Table:
    table = Table("partition", "owner", "from", "", "to", "effect")
    for move in moves:
        effect = f"{counted(move.again, unit)} again"
        if move.skipped:
            effect = f"[yellow]skips {counted(move.skipped, unit)}[/]"
        table.add_row(
            escape(move.partition),
            escape(move.lease.owner or "nobody"),
            f"{move.lease.checkpoint.next_sequence:,}",
            "→",
            f"{move.to.next_sequence:,}",
            effect,
        )
    return table


def _as_json(move: Move, outcome: Outcome) -> dict[str, object]:
    return {
        "partition": move.partition,
        "owner": move.lease.owner,
        "from": move.lease.checkpoint.next_sequence,
        "to": move.to.next_sequence,
        "again": move.again,
        "skipped": move.skipped,
        "done": move.partition in outcome.done,
        "why_not": outcome.refused.get(move.partition),
    }
