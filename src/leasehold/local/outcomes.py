"""Many requests at once, where each has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from leasehold.errors import StoreUnavailable

R = TypeVar("R")


async def outcomes(tries: Iterable[Awaitable[R]], timeout_s: float) -> list[R | BaseException]:
    """The outcome of each, failures included: one bad record costs itself only, and so does one
    that is not answered in time. Raises only if all failed."""
    tasks = [asyncio.ensure_future(each) for each in tries]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        late = sum(task.cancel() for task in tasks)
    unanswered = StoreUnavailable(
        f"{late} of {len(tasks)} records gave no answer within {timeout_s:g} s; try again later, "
        "or with a larger timeout_s"
    )
    done = [
        unanswered if isinstance(outcome, asyncio.CancelledError) else outcome
        for outcome in await asyncio.gather(*tasks, return_exceptions=True)
    ]
    failures = [each for each in done if isinstance(each, BaseException)]
    if failures and len(failures) == len(done):
        raise worst(failures)
    return done


def worst(failures: Sequence[BaseException]) -> BaseException:
    """What is to fix before what passes."""
    return min(failures, key=lambda failure: isinstance(failure, StoreUnavailable))
