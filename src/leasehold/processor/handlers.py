"""The user's functions: plain or async, with or without a context, behind one async face.

Plain functions run in threads, so that a slow one holds up its own partition only. A whole run of
events goes to a thread at once; between two events it asks whether to stop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Lease
from leasehold.errors import BadInput, LeaseLost

Stop = Callable[[int], bool]
"""Told how many events are done; True: no more for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    done: int
    """Events finished, from the front."""
    error: Exception | None = None


class Context:
    """What a handler may want to know about the partition it works on, and its checkpoint."""

    def __init__(
        self, lease: Lease, instance: str, save: Callable[[Checkpoint], Awaitable[bool]]
    ) -> None:
        self.group = lease.group
        self.partition = lease.partition
        self.epoch = lease.epoch
        self.instance = instance
        self.latest: Any = None
        """The last event given to the handler."""
        self._save = save
        self._loop = asyncio.get_running_loop()

    def checkpoint(self, event: Any = None) -> None:
        """For plain handlers: everything up to this event (or the latest) is done. Returns when it
        is stored; raises ``LeaseLost`` if another instance has the partition now."""
        asyncio.run_coroutine_threadsafe(self.checkpoint_async(event), self._loop).result()

    async def checkpoint_async(self, event: Any = None) -> None:
        """The same for async handlers."""
        event = self.latest if event is None else event
        if event is None:
            return
        if not await self._save(Checkpoint(next_sequence=event.sequence + 1, token=event.offset)):
            raise LeaseLost(
                f"partition {self.partition} of {self.group} has another owner now: stop working "
                f"on it; the checkpoint behind event {event.sequence} was not written"
            )


class Handlers:
    """All functions of one processor."""

    def __init__(
        self,
        *,
        on_event: Callable[..., Any] | None,
        on_batch: Callable[..., Any] | None,
        on_error: Callable[..., Any] | None,
        on_partition_open: Callable[..., Any] | None,
        on_partition_close: Callable[..., Any] | None,
        threads: Executor,
    ) -> None:
        if (on_event is None) == (on_batch is None):
            raise BadInput("give either on_event= (one event a call) or on_batch= (a list)")
        self.one_by_one = on_event is not None
        self._handle = _Function(on_event or on_batch, "on_event" if on_event else "on_batch", 1)
        self._error = on_error and _Function(on_error, "on_error", 1)
        self._open = on_partition_open and _Function(on_partition_open, "on_partition_open", 0)
        self._close = on_partition_close and _Function(on_partition_close, "on_partition_close", 1)
        self._threads = threads

    @property
    def is_async(self) -> bool:
        return self._handle.is_async

    async def handle(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        if self.one_by_one:
            if self._handle.is_async:
                return await self._each_async(events, context, stop)
            outcome: Outcome = await self._in_thread(self._each, events, context, stop)
            return outcome
        try:
            context.latest = events[-1]
            await self._call(self._handle, events, context)
        except Exception as error:
            return Outcome(done=0, error=error)
        return Outcome(done=len(events))

    async def error(self, error: BaseException, context: Context | None) -> None:
        if self._error:
            await self._call(self._error, error, context)

    async def open(self, context: Context) -> None:
        if self._open:
            await self._call(self._open, context)

    async def close(self, reason: Reason, context: Context) -> None:
        if self._close:
            await self._call(self._close, reason.value, context)

    def _each(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        call, done = self._handle.plain, 0
        for event in events:
            context.latest = event
            try:
                call(event, context)
            except Exception as error:
                return Outcome(done=done, error=error)
            done += 1
            if stop(done):
                break
        return Outcome(done=done)

    async def _each_async(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        done = 0
        for event in events:
            context.latest = event
            try:
                await self._handle.plain(event, context)
            except Exception as error:
                return Outcome(done=done, error=error)
            done += 1
            if stop(done):
                break
        return Outcome(done=done)

    async def _call(self, function: _Function, *arguments: Any) -> None:
        if function.is_async:
            await function.plain(*arguments)
        else:
            await self._in_thread(function.plain, *arguments)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class _Function:
    """A user's function that may or may not want a context after its own arguments."""

    def __init__(self, function: Callable[..., Any] | None, name: str, own: int) -> None:
        if not callable(function):
            raise BadInput(f"{name} must be a function, not {function!r}")
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        takes = _positional(function)
        if takes < own:
            raise BadInput(f"{name} must take {own} argument{'s' * (own > 1)}, or one more")
        self.plain: Callable[..., Any] = (
            function if takes > own else lambda *arguments: function(*arguments[:own])
        )


def _positional(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a builtin such as print: the event alone
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 1
    return sum(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
    )
