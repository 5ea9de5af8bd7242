"""Where events go that a group could not handle."""

from __future__ import annotations

import json
import traceback
from base64 import b32encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Protocol, runtime_checkable

from leasehold.core.event import Event, Properties
from leasehold.core.model import Group

ERROR_CHARS_MAX = 4_000
TRACE_CHARS_MAX = 4_000
CAUSES_MAX = 4
TRACE = "\nTraceback (most recent call last):\n"
"""In the text of an error, what divides it from how it came about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event or a document that a group could not handle, with all that it takes to try again.

    The fields from ``number`` on are the store's; what they hold when a letter is put is ignored.
    """

    group: Group
    partition: str
    sequence: int
    token: str = ""
    """The feed's own name for the position (an event's offset). It tells apart what shares a
    sequence: documents of one transaction, or the events of a hub and of its successor."""
    body: bytes
    properties: Properties = field(default_factory=dict)
    partition_key: str | None = None
    enqueued_at: datetime
    error: str
    """What went wrong, with the traceback if there was one; ``reason`` leaves that out."""
    attempts: int
    number: int = 0
    """Its place in the order of arrival; never used again for another."""
    dead_at: datetime | None = None
    """By the store's clock."""
    redriven_at: datetime | None = None
    redrives: int = 0

    @property
    def id(self) -> str:
        """The same whenever an event dies in a group, so that it may be put again after a crash."""
        group = self.group
        names = [group.namespace, group.feed, group.name, self.partition, self.sequence, self.token]
        digest = sha256(json.dumps(names).encode()).digest()
        return b32encode(digest[:10]).decode().lower()

    @property
    def reason(self) -> str:
        """Type and message of the error."""
        return reason_of(self.error)

    @property
    def origin(self) -> str:
        return f"{self.group}/{self.partition}/{self.sequence}"

    @property
    def event(self) -> Event:
        """As the handler was given it."""
        return Event(
            body=self.body,
            sequence=self.sequence,
            offset=self.token,
            enqueued_at=self.enqueued_at,
            partition=self.partition,
            partition_key=self.partition_key,
            properties=self.properties,
        )


def error_text(error: BaseException | str) -> str:
    """Type and message of any error, cut to ``ERROR_CHARS_MAX`` and fit for every store."""
    text = error if isinstance(error, str) else _typed(error)
    if len(text) > ERROR_CHARS_MAX:
        text = text[: ERROR_CHARS_MAX - 2] + " …"
    return _storable(text)


def reason_of(text: str) -> str:
    """What ``error_text`` gave, of what ``traced_text`` gave."""
    return text.partition(TRACE)[0]


def traced_text(error: BaseException | str) -> str:
    """The same with the traceback, from the user's code on, and with what it was raised from."""
    if isinstance(error, str):
        reason, trace, frames = error.partition(TRACE)
        return error_text(reason) + _storable((trace + frames)[: CAUSES_MAX * TRACE_CHARS_MAX])
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < CAUSES_MAX:  # which may go round in a circle
        frames = _frames(cause)
        parts.append(error_text(cause) + (TRACE + frames if frames else ""))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\nbecause of ".join(parts)


def _frames(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and str(trace.tb_frame.f_globals.get("__name__")).startswith("leasehold."):
        trace = trace.tb_next
    lines = _storable("".join(traceback.format_tb(trace))).rstrip("\n")
    if len(lines) <= TRACE_CHARS_MAX:
        return lines
    return "  …\n" + lines[-TRACE_CHARS_MAX:].partition("\n")[2]  # the end is where it failed


def _storable(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _typed(error: BaseException) -> str:
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # the letter matters more than its label
        message = "(its message cannot be shown)"
    return f"{name}: {message}" if message else name


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters: those for which all that is given holds. Nothing given: all of them."""

    namespace: str | None = None
    feed: str | None = None
    group: str | None = None
    partition: str | None = None
    ids: Sequence[str] | None = None
    redriven: bool | None = None
    older_than_s: float | None = None
    """Dead for more seconds than this, by the store's clock."""
    up_to: int | None = None
    """No letter with a higher ``number``: none that came after a look."""


@runtime_checkable
class DeadLetters(Protocol):
    """Where a group puts what it could not handle, so that it can go on and nothing is lost.

    Every verb may raise ``StoreUnavailable``, after which the write may or may not have happened;
    every verb may be repeated.
    """

    @property
    def requests(self) -> Counter[str]:
        """Requests sent to the outside system so far, by verb."""

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """Keep them, all or none; once this returned, they survive a crash. (A store without
        transactions may keep a large put in parts; to put it again completes it.)

        A letter put again takes the place of its former self, and has not been redriven any more:
        it was put again because it failed again.
        """

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        """In order of arrival. ``after`` is the ``number`` of the last letter before this page."""

    async def get(self, id: str) -> DeadLetter | None: ...

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        """How many there are, for each group that has any."""

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        """Say that they were delivered again; how many of them there are."""

    async def purge(self, which: LetterFilter) -> int:
        """Remove them for good; how many there were."""

    async def close(self) -> None: ...
