"""``leasehold rewind``: deliver a group's events again from an older position."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from rich.markup import escape
from typer import Exit, Option, confirm, echo

from leasehold.cli.options import (
    START,
    AsJson,
    FeedMode,
    FeedUrl,
    GroupName,
    StoreUrl,
    counted,
    existing_store,
    notes,
    opened_feed,
)
from leasehold.cli.program import typeable
from leasehold.cli.progress import steps
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.model import Group
from leasehold.core.start import Start, parse
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.operations.rewind import Move, RewindOutcome, alive_text, carry_out, owners, plan
from leasehold.operations.sink_rewind import RewindWithSink
from leasehold.ports import ColumnarFeed, Feed, LeaseStore
from leasehold.processor.changefeed import WORDS
from leasehold.sinks import History, open_sink


def rewind(
    feed: FeedUrl,
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
            help="What the group writes to, such as a Delta table: its rows past the position go.",
        ),
    ] = None,
    sink_key: Annotated[
        str | None,
        Option(metavar="COLUMN", help="The sink's column that names the partition."),
    ] = None,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a group to another position; its events are delivered (again) from there.

    Refused while an owner is alive, unless --fence is given. Exits with 1 if some partitions could
    not be moved. With --sink, the group and its sink go back together: rows that also contain
    events before the position are removed, too, and the position moves back to their first event.
    """
    start = _start(to)
    with opened_feed(feed, mode) as opened:
        key = Group(namespace=opened.namespace, feed=opened.name, name=group)
        rewinding = None if sink is None else _sink_of(sink, sink_key, opened, key)
        asking = _Asking(opened.unit, fence=fence, yes=yes, sink=rewinding)
        moves, outcome = asyncio.run(
            _run(opened, existing_store(store), key, start, partition, asking=asking)
        )
    if as_json:
        echo(json.dumps([_as_json(move, outcome) for move in moves]))
    elif not moves:
        echo("every partition is there already; nothing to do")
    else:
        where = to if sink is None else f"{to}, or back to where the rows of the sink begin"
        echo(f"{group}: {counted(len(outcome.done), 'partition')} moved to {where}")
    if outcome.refused:
        for name, why in outcome.refused.items():
            notes.print(f"[red]not moved:[/] partition {escape(f'{name}: {why}')}", highlight=False)
        raise Exit(1)


class _Asking(NamedTuple):
    unit: str
    fence: bool
    yes: bool
    sink: RewindWithSink | None = None


def _sink_of(url: str, column: str | None, feed: Feed, group: Group) -> RewindWithSink:
    if not isinstance(feed, ColumnarFeed):
        raise BadInput(f"--sink: {feed!r} cannot be read by Spark, so no sink is written from it")
    settings = {} if column is None else {"key": column}
    rewinding = open_sink(url, **settings).rewinding(group, feed.identity)
    return RewindWithSink(rewinding, group, History(feed))


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
) -> tuple[tuple[Move, ...], RewindOutcome]:
    try:
        with_sink = asking.sink is not None
        with steps("looking") as step:
            moves = await plan(
                feed, store, group, to, partitions or None, all_chosen=with_sink, step=step
            )
        ends: Mapping[str, int] = {}
        if asking.sink is not None:
            moves, ends = await asking.sink.plan(feed, store, moves)
        if not moves and not ends:
            return moves, RewindOutcome(done=(), refused={})
        notes.print(_table(moves, asking.unit))
        if not asking.fence:
            _require_nobody(moves)
        if not asking.yes:
            confirm(_question(moves, group, asking, ends), abort=True, err=True)
        if asking.sink is None:
            return moves, await carry_out(store, moves, fence=asking.fence)
        with steps("removing rows of the sink"):
            outcome, rows = await asking.sink.carry_out(store, moves, ends, fence=asking.fence)
        notes.print(f"{counted(rows, 'row')} removed from the sink", highlight=False)
        return moves, outcome
    except StoreUnavailable:
        text = "some partitions may have been moved: look with leasehold lag"
        notes.print(typeable(text), highlight=False)
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
    if asking.sink is not None and ends:
        effects.append(
            f"{counted(asking.sink.rows_after(ends), 'row')} of the sink will be removed"
        )
    if asking.fence and (alive := owners(moves)):
        effects.append(f"{', '.join(alive)} will be fenced off")
    return f"Move {counted(len(moves), 'partition')} of {group}? {'; '.join(effects)}."


def _table(moves: Sequence[Move], unit: str) -> FittedTable:
    left = ("partition", "owner", "effect")
    table = FittedTable(
        *(
            Column(name=name, justify="left" if name in left else "right")
            for name in ("partition", "owner", "from", "to", "effect")
        )
    )
    for move in moves:
        effect = f"{counted(move.again, unit)} again"
        if move.skipped:
            effect = f"[yellow]skips {counted(move.skipped, unit)}[/]"
        table.add_row(
            escape(move.partition),
            escape(move.lease.owner or "nobody"),
            f"{move.lease.checkpoint.next_sequence:,}",
            f"{move.to.next_sequence:,}",
            effect,
        )
    return table


def _as_json(move: Move, outcome: RewindOutcome) -> dict[str, object]:
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
