"""``leasehold dead-letters``: what could not be handled, and what becomes of it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer import Argument, Exit, Option, Typer, echo

from leasehold.cli.dead_letters_view import as_json as letter_as_json
from leasehold.cli.dead_letters_view import page, tables
from leasehold.cli.options import (
    AsJson,
    console,
    counted,
    looked_at,
    notes,
    opened_sender,
    printable,
)
from leasehold.cli.progress import bar
from leasehold.core.model import Group
from leasehold.errors import BadInput
from leasehold.operations.redrive import (
    Redriven,
    changes_text,
    is_change,
    redrive,
    to_hub,
)
from leasehold.ports import DeadLetter, DeadLetters, LetterFilter, Sender, error_text
from leasehold.stores import open_dead_letters

app = Typer(
    help="List, show, redrive and purge what a group could not handle.", no_args_is_help=True
)

LettersUrl = Annotated[
    str,
    Option("--store", metavar="URL", help="The dead-letter store, such as sqlite:///data/dead.db"),
]
OnlyGroup = Annotated[str | None, Option("--group", metavar="NAME", help="Only this group.")]
Ids = Annotated[list[str] | None, Argument(metavar="ID", help="Dead letters, by their id.")]
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
FAILURES_SHOWN = 10


@app.command("list")
def list_letters(
    store: LettersUrl,
    *,
    group: OnlyGroup = None,
    open_only: Annotated[
        bool, Option("--open-only", help="Only those that were not redriven.")
    ] = False,
    oldest_first: Annotated[bool, Option("--oldest-first", help="List the oldest first.")] = False,
    limit: Annotated[int, Option(help="At most this many.", min=0)] = 20,
    as_json: Annotated[bool, Option("--json", help="One JSON array, without bodies.")] = False,
) -> None:
    """List dead letters, the newest first."""
    which = LetterFilter(group=group, redriven=False if open_only else None)

    async def look() -> tuple[Sequence[DeadLetter], int]:
        async with _opened(store) as letters:
            found = await letters.list(which, limit=limit, newest_first=not oldest_first)
            return found, sum((await letters.count(which)).values())

    found, total = asyncio.run(look())
    if as_json:
        echo(json.dumps([letter_as_json(letter) for letter in found]))
        return
    for table in tables(found):
        console.print(table)
    if len(found) < total:
        notes.print(f"{len(found)} of {counted(total, 'dead letter')}; --limit {total} shows all")
    elif not found:
        echo("no dead letters")


@app.command()
def show(
    id: Annotated[str, Argument(help="The dead letter's id.")],
    *,
    store: LettersUrl,
    as_json: AsJson = False,
) -> None:
    """Show all of one dead letter: where it came from, what went wrong, and its body."""

    async def look() -> DeadLetter:
        async with _opened(store) as letters:
            return (await _by_id(letters, [id]))[0]

    letter = asyncio.run(look())
    echo(json.dumps(letter_as_json(letter, with_body=True)) if as_json else page(letter))


@app.command("redrive")
def redrive_letters(
    ids: Ids = None,
    *,
    store: LettersUrl,
    hub: Annotated[
        str,
        Option(metavar="URL", help="The hub's file, such as data/sensors.db, or a topic's URL."),
    ],
    everything: Annotated[bool, Option("--all", help="All that have not been redriven.")] = False,
    group: OnlyGroup = None,
    force: Annotated[
        bool,
        Option("--force", help="Also letters of another hub, and those redriven before."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the hub they came from.

    Each goes to the partition of its key, or to its own, and every group of the hub gets it. It is
    marked as redriven once the send returned; if this process dies in between, it will be sent
    again: twice at worst, never lost. Exits with 1 if any could not be sent.
    """
    if bool(ids) == everything:
        raise BadInput("say which dead letters: give their ids, or --all (of one --group)")
    if ids and group is not None:
        raise BadInput("--group goes with --all; ids need no group")
    which = LetterFilter(ids=ids or None, group=group)
    if not force:
        asyncio.run(_require_events(store, which))
    with opened_sender(hub) as opened:
        done = asyncio.run(_redrive(store, opened, which, force=force))
    if as_json:
        failed = [{"id": letter.id, "error": error_text(error)} for letter, error in done.failed]
        echo(json.dumps({"redriven": done.count, "failed": failed}))
    else:
        echo(f"sent {counted(done.count, 'dead letter')} back to {opened.namespace}/{opened.name}")
    for letter, error in done.failed[:FAILURES_SHOWN]:
        _note(f"{letter.id} stays: {error_text(error)}")
    if done.failed:
        _note(f"{counted(len(done.failed), 'dead letter')} could not be sent")
        raise Exit(1)


@app.command()
def purge(
    ids: Ids = None,
    *,
    store: LettersUrl,
    group: OnlyGroup = None,
    redriven_only: Annotated[
        bool, Option("--redriven-only", help="Only those that were redriven.")
    ] = False,
    older_than: Annotated[
        str | None, Option(metavar="AGE", help="Only those dead for longer: 90s, 15m, 12h, 7d, 2w")
    ] = None,
    everything: Annotated[bool, Option("--all", help="All dead letters in the store.")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters permanently: those that match all given options."""
    narrowed = bool(ids) or group is not None or redriven_only or older_than is not None
    if narrowed == everything:
        raise BadInput(
            "say which dead letters: ids, --group, --redriven-only, --older-than; or --all alone"
        )
    which = LetterFilter(
        ids=ids or None,
        group=group,
        redriven=True if redriven_only else None,
        older_than_s=None if older_than is None else _seconds(older_than),
    )
    which, question = asyncio.run(_to_purge(store, which))
    if question and not yes:
        _confirm(question)
    purged = asyncio.run(_purge(store, which)) if question else 0
    if as_json:
        echo(json.dumps({"purged": purged}))
    else:
        echo(f"purged {counted(purged, 'dead letter')}")


async def _redrive(store: str, hub: Sender, which: LetterFilter, *, force: bool) -> Redriven:
    async with _opened(store) as letters:
        if which.ids is not None:
            for letter in await _by_id(letters, which.ids):
                if letter.redriven_at is not None and not force:
                    raise BadInput(
                        f"{letter.id} was redriven before, at {letter.redriven_at:%Y-%m-%d %H:%M} "
                        "UTC. Nothing was sent; --force sends it again"
                    )
        waiting = await letters.count(replace(which, redriven=None if which.ids else False))
        if not force:
            _require_hub(waiting, hub)
        total, done = sum(waiting.values()), 0
        with _progress() as progress:
            task = progress.add_task("", total=total)

            def advance(letter: DeadLetter, error: Exception | None) -> None:
                nonlocal done
                done += error is None
                progress.advance(task)

            try:
                return await redrive(
                    letters,
                    to_hub(hub, any_origin=force),
                    which,
                    again=which.ids is not None,
                    on_each=advance,
                )
            except BaseException:
                _note(f"{done} of {counted(total, 'dead letter')} had been sent and marked")
                raise


async def _to_purge(store: str, which: LetterFilter) -> tuple[LetterFilter, str]:
    """What there is now, bounded, and how to ask about it; nothing if that is empty."""
    async with _opened(store) as letters:
        if which.ids is not None:
            await _by_id(letters, which.ids)
        newest = await letters.list(which, limit=1, newest_first=True)
        # Those that come while the question is open were not asked about.
        which = replace(which, up_to=newest[0].number if newest else 0)
        counts = await letters.count(which)
        total = sum(counts.values())
        waiting = total - sum((await letters.count(replace(which, redriven=True))).values())
    where = ", ".join(map(str, sorted(counts)))
    never = f", {waiting:,} of them not redriven" if waiting else ""
    return (
        which,
        f"purge {counted(total, 'dead letter')} of {where}{never}, for good?" if total else "",
    )


async def _purge(store: str, which: LetterFilter) -> int:
    async with _opened(store) as letters:
        return await letters.purge(which)


def _confirm(question: str) -> None:
    # Not typer's, which writes to the standard output, too.
    notes.print(printable(question), "[y/N]", end=" ", markup=False, highlight=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        _note("nothing was purged")
        raise Exit(1)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[DeadLetters]:
    made = "a processor makes it with its first dead letter"
    letters = looked_at(open_dead_letters(url), made)
    try:
        yield letters
    finally:
        await letters.close()


async def _by_id(letters: DeadLetters, ids: Sequence[str]) -> Sequence[DeadLetter]:
    found = []
    for id in ids:
        letter = await letters.get(id)
        if letter is None:
            raise BadInput(f"there is no dead letter {printable(id)} in this store")
        found.append(letter)
    return found


async def _require_events(store: str, which: LetterFilter) -> None:
    """Before the hub is asked for: a user with changes may well name their container."""
    async with _opened(store) as letters:
        for group in await letters.count(replace(which, redriven=None if which.ids else False)):
            of = replace(which, namespace=group.namespace, feed=group.feed, group=group.name)
            if any(is_change(letter) for letter in await letters.list(of, limit=1)):
                raise BadInput(f"{changes_text(group)}. Nothing was sent")


def _require_hub(waiting: Mapping[Group, int], hub: Sender) -> None:
    others = {
        group: count
        for group, count in waiting.items()
        if (group.namespace, group.feed) != (hub.namespace, hub.name)
    }
    if others:
        first = min(others)
        raise BadInput(
            f"{counted(sum(others.values()), 'dead letter')} came from elsewhere, such as "
            f"{first.namespace}/{first.feed}, and {hub!r} is {hub.namespace}/{hub.name}. "
            "Nothing was sent; choose others, give their --hub, or --force"
        )


def _progress() -> Progress:
    return bar(TextColumn("redriving"), BarColumn(), MofNCompleteColumn())


def _seconds(age: str) -> float:
    written = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if not written:
        raise BadInput(f"--older-than {age!r}: give a number and a unit, such as 90s, 15m, 12h, 7d")
    return float(written[1]) * SECONDS[written[2]]


def _note(text: str) -> None:
    notes.print(printable(text), highlight=False, markup=False, soft_wrap=True)
