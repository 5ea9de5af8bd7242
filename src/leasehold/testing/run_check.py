"""One rule of a conformance suite, on a subject of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar


class _Subject(Protocol):
    @property
    def close(self) -> Callable[[], Awaitable[None]] | None: ...


S = TypeVar("S", bound=_Subject)


async def run_check(rule: Callable[[S], Awaitable[None]], make: Callable[[], Awaitable[S]]) -> None:
    subject = await make()
    try:
        await rule(subject)
    finally:
        if subject.close is not None:
            await subject.close()
