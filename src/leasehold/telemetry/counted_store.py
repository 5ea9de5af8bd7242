"""A lease store whose failures are counted by verb, for every caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, cast

from leasehold.ports import LeaseStore, Renewed

VERBS = (
    "create",
    "snapshot",
    "join",
    "heartbeat",
    "leave",
    "acquire",
    "renew",
    "release",
    "checkpoint",
    "rewind",
    "split",
)


def counted(store: LeaseStore, failed: Callable[[str], None]) -> LeaseStore:
    """``failed`` is told the verb of each request that raised, was given up or failed in part."""
    return cast(LeaseStore, _Counted(store, failed))


class _Counted:
    def __init__(self, store: LeaseStore, failed: Callable[[str], None]) -> None:
        self._store, self._failed = store, failed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in VERBS or not iscoroutinefunction(found):
            return found
        ask = self._counting(name, found)
        setattr(self, name, ask)  # found at once from now on
        return ask

    def _counting(
        self, name: str, found: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(found)
        async def ask(*arguments: Any, **more: Any) -> Any:
            try:
                answer = await getattr(self._store, name)(*arguments, **more)
            except BaseException:  # with a timeout it is cancelled
                self._failed(name)
                raise
            if isinstance(answer, Renewed) and answer.unknown:
                self._failed(name)
            return answer

        return ask
