"""``leasehold rewind``: deliver a group's events again from an older position."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated

from rich.markup import escape
from rich.table import Table
from typer import Exit, Option, confirm, echo

from leasehold.cli.options import (
    START,
    AsJson,
    GroupName,
    HubPath,
    StoreUrl,
    counted,
    notes,
    open_hub,
)
from leasehold.core.model import Group
from leasehold.core.start import parse
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.feeds.hub import Hub
from leasehold.ports import LeaseStore
from leasehold.processor.rewind import Move, Outcome, alive_text, carry_out, owners, plan
from leasehold.stores import open_store


def rewind(
    hub: HubPath,
    *,
    group: GroupName,
    store: StoreUrl,
    to: Annotated[str, Option(metavar="START", help=START)],
    partition: Annotated[
        list[str] | None, Option(help="Only this partition; may be given several times.")
    ] = None,
    fence: Annotated[
        bool, Option("--fence", help="Take the leases from owners that are alive.")
    ] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a group to another position; its events are delivered (again) from there.

    Refuses while an owner is alive, unless told to fence it off. Exits with 1 if some partitions
    could not be moved.
    """
    try:
        parse(to)
    except ValueError as error:
        raise BadInput(f"--to: {error}") from error
    with open_hub(hub) as feed:
        key = Group(namespace=feed.namespace, feed=feed.name, name=group)
        moves, outcome = asyncio.run(
            _run(feed, open_store(store), key, to, partition, fence=fence, yes=yes)
        )
    if as_json:
        echo(json.dumps([_as_json(move, outcome) for move in moves]))
    elif not moves:
        echo("every partition is there already; nothing to do")
    else:
        echo(f"{group}: {counted(len(outcome.done), 'partition')} moved to {to}")
    if outcome.refused:
        for name, why in outcome.refused.items():
            notes.print(f"[red]not moved:[/] partition {escape(f'{name}: {why}')}", highlight=False)
        raise Exit(1)


async def _run(
    feed: Hub,
    store: LeaseStore,
    group: Group,
    to: str,
    partitions: Sequence[str] | None,
    *,
    fence: bool,
    yes: bool,
) -> tuple[tuple[Move, ...], Outcome]:
    try:
        moves = await plan(feed, store, group, to, partitions or None)
        if not moves:
            return moves, Outcome(done=(), refused={})
        notes.print(_table(moves))
        if not fence:
            _require_nobody(moves)
        if not yes:
            confirm(_question(moves, group, fence), abort=True, err=True)
        return moves, await carry_out(store, moves, fence=fence)
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


def _question(moves: Sequence[Move], group: Group, fence: bool) -> str:
    again, skipped = sum(move.again for move in moves), sum(move.skipped for move in moves)
    effects = [f"{counted(again, 'event')} will be delivered again"]
    if skipped:
        effects.append(f"{counted(skipped, 'event')} will be SKIPPED")
    if fence and (alive := owners(moves)):
        effects.append(f"{', '.join(alive)} will be fenced off")
    return f"Move {counted(len(moves), 'partition')} of {group}? {'; '.join(effects)}."


def _table(moves: Sequence[Move]) -> Table:
    table = Table("partition", "owner", "from", "", "to", "effect")
    for move in moves:
        effect = f"{counted(move.again, 'event')} again"
        if move.skipped:
            effect = f"[yellow]skips {counted(move.skipped, 'event')}[/]"
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
