"""Dead letters on their way back to a handler or to their hub."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from leasehold.core.change import Operation
from leasehold.core.event import EventData, Property
from leasehold.core.model import Group
from leasehold.errors import BadInput, FeedUnavailable, StoreUnavailable
from leasehold.ports import DeadLetter, DeadLetters, LetterFilter, Sender

REDRIVEN_FROM = "leasehold-redriven-from"
REDRIVES = "leasehold-redrives"
PAGE = 50
OPERATIONS = get_args(Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What came of it. Letters that failed are in the store as they were."""

    count: int
    failed: Sequence[tuple[DeadLetter, Exception]] = ()


async def redrive(
    store: DeadLetters,
    handler: Callable[[DeadLetter], Any],
    which: LetterFilter | None = None,
    *,
    again: bool = False,
    on_each: Callable[[DeadLetter, Exception | None], None] | None = None,
) -> Redriven:
    """Give each letter to the handler, oldest first, and mark it redriven once that returned.

    Letters redriven before are left out unless ``again``. One that fails stays as it was, and the
    next is tried. After a crash between the handler's return and the mark, the letter is delivered
    once more: twice at worst, never lost. Plain handlers run in a thread.
    """
    which = which or LetterFilter()
    if which.redriven is None and not again:
        which = replace(which, redriven=False)
    count, failed = 0, []
    async for letter in letters(store, which):
        error = await _deliver(handler, letter)
        if error is None:
            await store.mark_redriven([letter.id])
            count += 1
        else:
            failed.append((letter, error))
        if on_each is not None:
            on_each(letter, error)
    return Redriven(count=count, failed=tuple(failed))


async def letters(store: DeadLetters, which: LetterFilter) -> AsyncIterator[DeadLetter]:
    """Those that are there now, oldest first. What comes meanwhile is left out: a letter that is
    redriven may come back as a new one, and this would never end."""
    newest = await store.list(which, limit=1, newest_first=True)
    if not newest:
        return
    last = newest[0].number if which.up_to is None else min(newest[0].number, which.up_to)
    bound = replace(which, up_to=last)
    after: int | None = None
    while page := await store.list(bound, limit=PAGE, after=after):
        for letter in page:
            yield letter
        after = page[-1].number


def to_hub(hub: Sender, *, any_origin: bool = False) -> Callable[[DeadLetter], None]:
    """A handler that sends a letter back to its hub: to its key's partition, or to its own.

    Every group of the hub gets the event. Its properties say where it was dead and how often it
    has come back, so that a letter that runs in circles can be seen.
    """

    def send(letter: DeadLetter) -> None:
        group = letter.group
        if not any_origin and is_change(letter):
            raise BadInput(changes_text(group))
        if not any_origin and (group.namespace, group.feed) != (hub.namespace, hub.name):
            raise BadInput(
                f"dead letter {letter.id} comes from {group.namespace}/{group.feed}, not from "
                f"{hub.namespace}/{hub.name}"
            )
        before = _number(letter.properties.get(REDRIVES))
        properties: dict[str, Property] = {
            **letter.properties,
            REDRIVEN_FROM: letter.origin,
            REDRIVES: before + 1,
        }
        event = EventData(letter.body, properties)
        if letter.partition_key is None:
            hub.send(event, partition_id=letter.partition)
        else:
            hub.send(event, partition_key=letter.partition_key)

    return send


def _number(told: Property) -> int:
    """Where properties are text, as Kafka's headers are, numbers come back as text."""
    text = str(told)
    return int(text) if text.isascii() and text.isdigit() else 0


def is_change(letter: DeadLetter) -> bool:
    """Whether it was a document's change, as far as can be told from what was kept of it."""
    document = letter.body.startswith(b"{") or letter.body == b"null"
    kept = letter.properties.get("operation") in OPERATIONS
    return document and kept and not letter.token.isdigit()


def changes_text(group: Group) -> str:
    return (
        f"the dead letters of {group} are changes of a container, and no hub can take them back: "
        "give them to a function of yours with leasehold.redrive(letters, handler), where "
        "leasehold.Change.from_event(letter.event) is the change"
    )


async def _deliver(handler: Callable[[DeadLetter], Any], letter: DeadLetter) -> Exception | None:
    try:
        if inspect.iscoroutinefunction(handler):
            await handler(letter)
        else:
            answer = await asyncio.to_thread(handler, letter)
            if inspect.isawaitable(answer):  # a lambda around an async function
                await answer
    except (FeedUnavailable, StoreUnavailable):
        raise  # not this letter's fault, and the next would fare no better
    except Exception as error:  # whatever the user's code raises
        return error
    return None
