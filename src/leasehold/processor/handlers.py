"""The user's functions: plain or async, with or without a context, behind one async face.

Plain functions run in threads, so that a slow one holds up its own partition only; async ones on
the loop of whoever runs the processor. A whole run of events goes there at once; between two events
it asks whether to stop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

from leasehold.core import progress
from leasehold.core.lifecycle import Reason
from leasehold.core.model import Checkpoint, Lease
from leasehold.errors import BadInput, LeaseLost
from leasehold.processor.apart import call_on

T = TypeVar("T")

Stop = Callable[[int], bool]
"""Told how many events are done; True: no more for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    done: int
    """Events finished, from the front."""
    error: BaseException | None = None
    behind: Checkpoint | None = None
    """Where those end, if the handler can tell; else the last of them does, which may have to be
    read for that."""


class Once(Sequence[Any]):
    """Events that are made once, in the thread of whoever goes through them first, although
    checkpoints cut a run short and what is left of it is gone through again."""

    def __init__(self, events: Sequence[Any]) -> None:
        self._events, self._made = events, list[Sequence[Any]]()
        self._range = range(len(events))

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return (self._made[0] if self._made else self._events)[self._range[index]]
        part = Once(())
        part._events, part._made, part._range = self._events, self._made, self._range[index]
        return part

    def __iter__(self) -> Iterator[Any]:
        if not self._made:
            self._made.append(list(self._events))
        return map(self._made[0].__getitem__, self._range)


class NotHandled(Exception):
    """Of a handler that is not the user's own: no more than ``done`` events were done, and nothing
    is wrong. The others come again, here or wherever the lease is next."""

    def __init__(self, why: str, *, done: int = 0, behind: Checkpoint | None = None) -> None:
        super().__init__(why)
        self.done, self.behind = done, behind


class Quit(Exception):
    """A callback wants the program to end (``sys.exit``), or was cancelled from within."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class Context:
    """What a handler may want to know about the partition it works on, and its checkpoint."""

    def __init__(
        self,
        lease: Lease,
        instance: str,
        save: Callable[[Checkpoint], Coroutine[Any, Any, bool]],
        bury: Callable[[Any, BaseException | str], Coroutine[Any, Any, None]] | None = None,
        *,
        over: Callable[[], bool] = lambda: False,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.group = lease.group
        self.partition = lease.partition
        self.epoch = lease.epoch
        self.instance = instance
        self._event: Any = None
        self._events: Sequence[Any] = ()
        self._save, self._bury, self._over = save, bury, over
        self._loop = asyncio.get_running_loop()
        self._home = home

    @property
    def latest(self) -> Any:
        """The last event given to the handler; None before the first."""
        return self._events[-1] if len(self._events) else self._event

    def _let_go(self) -> None:
        """Keep the latest event and not the batch that it came in, which may be large."""
        self._event, self._events = self.latest, ()

    def _forget(self) -> None:
        """Nobody will ask for the latest event."""
        self._event, self._events = None, ()

    def checkpoint(self, event: Any = None) -> None:
        """For plain handlers: everything up to this event (or the latest) is done. Returns when it
        is stored; raises ``LeaseLost`` if another instance has the partition now."""
        self._from_thread("checkpoint_async", self.checkpoint_async, event)

    async def checkpoint_async(self, event: Any = None) -> None:
        """The same for async handlers."""
        event = self.latest if event is None else event
        if event is None:
            return
        if event.partition != self.partition:
            raise BadInput(
                f"event {event.sequence} is of partition {event.partition}, and this context of "
                f"partition {self.partition}: each has checkpoints of its own"
            )
        if not await self._apart(self._save(progress.behind(event))):
            raise self._lost(f"the checkpoint behind event {event.sequence} was not written")

    def dead_letter(self, event: Any, error: BaseException | str) -> None:
        """For plain handlers: put this event into the dead-letter store and go on without it.
        Returns when it is stored there."""
        self._from_thread("dead_letter_async", self.dead_letter_async, event, error)

    async def dead_letter_async(self, event: Any, error: BaseException | str) -> None:
        """The same for async handlers."""
        if self._bury is None:
            raise BadInput("there is no dead-letter store: give the processor dead_letters=")
        await self._apart(self._bury(event, error))

    def _from_thread(
        self, instead: str, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> None:
        here = _running_loop()
        if here is not None and here in (self._loop, self._home):
            raise BadInput(f"an async handler does this with: await context.{instead}(…)")
        self._require_running()
        asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result()

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Where the store and its connections are, which is not where handlers run."""
        try:
            self._require_running()
        except LeaseLost:
            work.close()
            raise
        return await call_on(self._loop, work)

    def _require_running(self) -> None:
        if self._over() or not self._loop.is_running():
            raise self._lost("the processor has stopped")

    def _lost(self, what: str) -> LeaseLost:
        return LeaseLost(
            f"partition {self.partition} of {self.group} is no longer held in epoch {self.epoch}: "
            f"stop working on it; {what}"
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
        handles_here: bool = False,
    ) -> None:
        if (on_event is None) == (on_batch is None):
            raise BadInput("give either on_event= (one event a call) or on_batch= (a list)")
        self.one_by_one = on_event is not None
        if self.one_by_one:
            self._handle = _Function(on_event, "on_event", 1)
        else:
            self._handle = _Function(on_batch, "on_batch", 1)
        self._error = _optional(on_error, "on_error", 1)
        functions = (self._handle, self._error)
        self.takes_context = any(each is not None and each.takes_context for each in functions)
        self._open = _optional(on_partition_open, "on_partition_open", 0)
        self._close = _optional(on_partition_close, "on_partition_close", 1)
        shown = (self._open, self._close)
        self._shows_context = self.takes_context or any(
            each is not None and each.takes_context for each in shown
        )
        self._threads = threads
        self._handles_here = handles_here
        self.home: asyncio.AbstractEventLoop | None = None
        """The loop that the user's async functions run on; None: the one that they are called on.
        """
        self.left_behind: set[Future[Any]] = set()
        """Calls of plain functions that nobody waits for any more, and that are still running."""

    @property
    def is_async(self) -> bool:
        return self._handle.is_async

    async def handle(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        if self._handle.is_async:
            each = self._each_async if self.one_by_one else self._whole_async
            whole_run = each(events, context, stop)
            return await (whole_run if self._handles_here else call_on(self._at(), whole_run))
        run = self._each if self.one_by_one else self._whole
        outcome: Outcome = await self._in_thread(run, events, context, stop, self._at())
        return outcome

    async def error(self, error: BaseException, context: Context | None) -> None:
        await self._call(self._error, error, context)

    async def open(self, context: Context) -> None:
        await self._call(self._open, context)

    async def close(self, reason: Reason, context: Context) -> None:
        await self._call(self._close, reason.value, context)

    def _each(
        self,
        events: Sequence[Any],
        context: Context,
        stop: Stop,
        loop: asyncio.AbstractEventLoop,
    ) -> Outcome:
        call, extra, done = self._handle.function, self._handle.extra(context), 0
        for event in events:
            context._event = event
            try:
                answer = call(event, *extra)
                if answer is not None:
                    _finish(answer, loop)
            except BaseException as error:
                return Outcome(done=done, error=error)
            done += 1
            if stop(done):
                break
        return Outcome(done=done)

    async def _each_async(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        call, extra, done = self._handle.function, self._handle.extra(context), 0
        for event in events:
            context._event = event
            try:
                await call(event, *extra)
            except BaseException as error:
                if _ours(error):
                    raise
                return Outcome(done=done, error=error)
            done += 1
            if stop(done):
                break
        return Outcome(done=done)

    def _whole(
        self,
        events: Sequence[Any],
        context: Context,
        stop: Stop,
        loop: asyncio.AbstractEventLoop,
    ) -> Outcome:
        context._events = events
        try:
            _finish(self._handle.call(events, context), loop)
        except BaseException as error:
            return Outcome(done=0, error=error)
        finally:
            self._over(context)
        return Outcome(done=len(events))

    async def _whole_async(self, events: Sequence[Any], context: Context, stop: Stop) -> Outcome:
        context._events = events
        try:
            await self._handle.call(events, context)
            if not _cancelled():  # it is done, although nobody may be waiting for it any more
                stop(len(events))
        except NotHandled as left:
            return Outcome(done=left.done, behind=left.behind)
        except BaseException as error:
            if _ours(error):
                raise
            return Outcome(done=0, error=error)
        finally:
            self._over(context)
        return Outcome(done=len(events))

    def _over(self, context: Context) -> None:
        """Keep its latest event, which a feed may have to make, if any function can ask for it."""
        if self._shows_context:
            context._let_go()
        else:
            context._forget()

    async def _call(self, function: _Function | None, *arguments: Any) -> None:
        if function is None:
            return
        if function.is_async:
            error = await call_on(self._at(), _attempt_async(function.call, arguments))
        else:
            error = await self._in_thread(_attempt, function.call, arguments, self._at())
        if isinstance(error, Exception):
            raise error
        if error is not None:
            raise Quit(error) from error

    def _at(self) -> asyncio.AbstractEventLoop:
        return self.home or asyncio.get_running_loop()

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future = self._threads.submit(function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.left_behind.add(future)
            future.add_done_callback(self.left_behind.discard)
            raise


class _Function:
    """A user's function that may or may not want a context after its own arguments."""

    def __init__(self, function: Callable[..., Any] | None, name: str, own: int) -> None:
        if not callable(function):
            raise BadInput(f"{name} must be a function, not {function!r}")
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        takes = _takes(function, name)
        if takes not in (own, own + 1):
            wanted = f"{own or 'no'} argument{'s' * (own != 1)}, or a context after that"
            raise BadInput(f"{name} must take {wanted}; {function!r} takes {takes}")
        self.function: Callable[..., Any] = function
        self._own, self.takes_context = own, takes > own

    def call(self, *arguments: Any) -> Any:
        """With the context last, which is left out if the function does not want it."""
        return self.function(*(arguments if self.takes_context else arguments[: self._own]))

    def extra(self, context: Context) -> tuple[Context, ...]:
        """What to give the function behind its own arguments."""
        return (context,) if self.takes_context else ()


def _optional(function: Callable[..., Any] | None, name: str, own: int) -> _Function | None:
    return None if function is None else _Function(function, name, own)


def _takes(function: Callable[..., Any], name: str) -> int:
    """How many arguments to give. One with a default is the user's own affair, unless it is called
    ``context``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a builtin that does not tell: the event alone
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            raise BadInput(f"{name} wants {each.name}=, which nobody will give it: add a default")
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 1
    return sum(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and (each.default is each.empty or each.name == "context")
        for each in parameters
    )


def _attempt(
    call: Callable[..., Any], arguments: Sequence[Any], loop: asyncio.AbstractEventLoop
) -> BaseException | None:
    """What it raised, as a value: not every exception may cross over to a loop as one."""
    try:
        _finish(call(*arguments), loop)
    except BaseException as error:
        return error
    return None


async def _attempt_async(
    call: Callable[..., Awaitable[Any]], arguments: Sequence[Any]
) -> BaseException | None:
    try:
        await call(*arguments)
    except BaseException as error:
        if _ours(error):
            raise
        return error
    return None


def _finish(answer: Any, loop: asyncio.AbstractEventLoop) -> None:
    """A plain function may give back work to await: a lambda around an async one does."""
    if inspect.isawaitable(answer):
        asyncio.run_coroutine_threadsafe(_await(answer), loop).result()


async def _await(answer: Awaitable[Any]) -> None:
    await answer


def _ours(error: BaseException) -> bool:
    """Whether it was this call that somebody cancelled, rather than something within it."""
    if isinstance(error, asyncio.CancelledError):
        return _cancelled()
    return isinstance(error, GeneratorExit)


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
