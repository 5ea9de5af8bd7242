"""Try a handler: the real processor over given events, on virtual time.

Retries and their pauses take no time, and nothing is written anywhere. Plain handlers are called
on the loop: what they ask of their context is done when they return.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from leasehold.clock import within
from leasehold.core.event import Event, EventData
from leasehold.core.lag import Extent
from leasehold.core.model import Checkpoint, Partition
from leasehold.core.start import AtSequence, Latest, parse
from leasehold.errors import BadInput
from leasehold.feeds.arrow_events import EVENT_SCHEMA, ArrowEvents
from leasehold.feeds.hub.hub import Sendable, event_data
from leasehold.ports import Batch, DeadLetter, LeaseStore, LetterFilter
from leasehold.processor.processor import Processor
from leasehold.stores.dead_letters.memory import MemoryDeadLetters
from leasehold.stores.memory import MemoryStore
from leasehold.testing.faulty_store import Faults, FaultyStore
from leasehold.testing.sim_time import SimClock, run_virtual

Given = Sendable | Event
ENQUEUED_AT = datetime(2027, 1, 15, 8, tzinfo=UTC)
"""When virtual time begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of given events."""

    handled: Sequence[Event]
    """Those for which the handler returned, in its order; one that came twice is here twice."""
    errors: Sequence[BaseException]
    """What the processor reported: failures of the handler and of the store, tries included."""
    dead_letters: Sequence[DeadLetter]
    checkpoints: Mapping[str, int]
    """By partition: the next sequence."""
    virtual_s: float
    """How long it would have taken, without the handler's own time."""


class GivenEvents:
    """A feed in memory. Text, bytes, mappings and ``EventData`` are dealt out over the partitions
    in turn; an ``Event`` keeps its partition, key and properties."""

    namespace, name, unit = "trial", "given", "event"

    def __init__(self, events: Iterable[Given], partitions: int = 1) -> None:
        self.requests: Counter[str] = Counter()
        self._events: dict[str, list[Event]] = {str(n): [] for n in range(partitions)}
        for number, given in enumerate(events):
            self._add(given, str(number % partitions))

    def _add(self, given: Given, partition: str) -> None:
        if isinstance(given, Event):
            if given.partition not in self._events:
                known = ", ".join(self._events)
                raise BadInput(f"there is no partition {given.partition!r} here, only {known}")
            event = given
        else:
            data: EventData = event_data(given)
            body = data.body.encode() if isinstance(data.body, str) else data.body
            event = Event(body, 0, "", ENQUEUED_AT, partition, None, data.properties)
        held = self._events[event.partition]
        held.append(event._replace(sequence=len(held), offset=str(len(held))))

    async def partitions(self) -> Sequence[Partition]:
        return [Partition(id=partition) for partition in self._events]

    async def locate(self, partition: str, start: Any) -> Checkpoint:
        match parse(start):
            case Latest():
                return Checkpoint(next_sequence=len(self._events[partition]))
            case AtSequence(sequence=sequence):
                return Checkpoint(next_sequence=sequence)
        return Checkpoint(next_sequence=0)

    async def read(self, partition: str, position: Checkpoint, max_events: int) -> Batch:
        first = position.next_sequence
        events = self._events[partition][first : first + max_events]
        rows = [event._asdict() | {"offset": event.sequence} for event in events]
        for row in rows:
            row["properties"] = json.dumps(dict(row["properties"])) if row["properties"] else None
        arrow = pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)
        behind = Checkpoint(next_sequence=first + len(events))
        return Batch(events=ArrowEvents(arrow, partition), next=behind)

    async def extents(self) -> Sequence[Extent]:
        return [Extent(partition=p, first=0, end=len(held)) for p, held in self._events.items()]

    async def event_times(self, positions: Mapping[str, Checkpoint]) -> Mapping[str, float]:
        return {
            partition: self._events[partition][at.next_sequence].enqueued_at.timestamp()
            for partition, at in positions.items()
            if at.next_sequence < len(self._events[partition])
        }

    def close(self) -> None:
        pass


def try_handler(
    events: Iterable[Given],
    *,
    on_event: Callable[..., Any] | None = None,
    on_batch: Callable[..., Any] | None = None,
    partitions: int = 1,
    faults: Faults | None = None,
    seed: int = 0,
    give_up_s: float = 3600.0,
    **settings: Any,
) -> Trial:
    """Run a processor with this handler until it has done these events.

    ``faults`` make its lease store fail, where ``seed`` decides. ``settings`` are those
    of ``Processor``. Raises ``TimeoutError`` after ``give_up_s`` of virtual time, as a handler that
    always fails is tried for ever unless ``retry`` says otherwise.
    """
    seen: list[Event] = []
    handlers = {"on_event": on_event, "on_batch": on_batch}
    given = {name: _noted(handler, seen) for name, handler in handlers.items() if handler}
    feed = GivenEvents(events, partitions)
    return run_virtual(
        _try(
            feed,
            given | settings,
            seen,
            faults=faults,
            chance=random.Random(seed),
            give_up_s=give_up_s,
        )
    )


async def _try(
    feed: GivenEvents,
    settings: dict[str, Any],
    seen: list[Event],
    *,
    faults: Faults | None,
    chance: random.Random,
    give_up_s: float,
) -> Trial:
    clock = SimClock()
    memory = MemoryStore(clock)
    store: LeaseStore = memory if faults is None else FaultyStore(memory, faults, chance, clock)
    errors: list[BaseException] = []
    letters = settings.pop("dead_letters", None)
    retry = settings.get("retry")
    if letters is None and retry is not None and retry.then == "dead-letter":
        letters = MemoryDeadLetters()

    async def on_error(error: BaseException) -> None:
        errors.append(error)

    named: dict[str, Any] = {"group": "trial", "instance": "trial", "on_error": on_error}
    processor = Processor(
        feed,
        **named | settings,
        store=store,
        dead_letters=letters,
        clock=clock,
    )
    running = asyncio.ensure_future(processor.run_async(until_drained=True))
    try:
        await within(clock, give_up_s, asyncio.shield(running))
    except TimeoutError as late:
        running.cancel()
        last = f"; the last error was {errors[-1]!r}" if errors else ""
        raise TimeoutError(f"not done after {give_up_s:g} s of virtual time{last}") from late
    leases = (await memory.snapshot(processor.group)).leases
    return Trial(
        handled=tuple(seen),
        errors=tuple(errors),
        dead_letters=() if letters is None else tuple(await letters.list(LetterFilter())),
        checkpoints={lease.partition: lease.checkpoint.next_sequence for lease in leases},
        virtual_s=clock.monotonic(),
    )


def _noted(
    handler: Callable[..., Any], seen: list[Event]
) -> Callable[..., Coroutine[Any, Any, None]]:
    """As an async handler that notes what was handled."""

    @functools.wraps(handler)
    async def noted(events: Any, *context: Any) -> None:
        asked = [_Asked(each) for each in context]
        plain = not inspect.iscoroutinefunction(handler)
        answer = handler(events, *(asked if plain else context))
        if inspect.isawaitable(answer):
            await answer
        for each in asked:
            await each.carry_out()
        seen.extend([events] if isinstance(events, Event) else events)

    return noted


class _Asked:
    """A context for plain handlers, which cannot wait on the loop that they are called on."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._todo: list[tuple[Callable[..., Coroutine[Any, Any, None]], tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def checkpoint(self, event: Any = None) -> None:
        event = self._context.latest if event is None else event
        self._todo.append((self._context.checkpoint_async, (event,)))

    def dead_letter(self, event: Any, error: BaseException | str) -> None:
        self._todo.append((self._context.dead_letter_async, (event, error)))

    async def carry_out(self) -> None:
        for ask, arguments in self._todo:
            await ask(*arguments)
