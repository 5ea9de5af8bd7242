"""Upkeep runs apart from the user's code: on an event loop of its own, in a thread of its own.

An async handler may block the loop that it runs on. Were leases renewed on the same loop, they
would be lost meanwhile. So hosts, pumps and stores run on one loop for all processors of a process,
and the user's async functions on the loop that runs the processor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

from leasehold.errors import CallCancelled
from leasehold.ports import LeaseStore

log = logging.getLogger("leasehold")
T = TypeVar("T")
CLOSE_S = 5.0
LOOK_S = 1.0
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a forked one has inherited a loop that nobody runs."""
_users: Counter[tuple[int, asyncio.AbstractEventLoop]] = Counter()


def apart() -> asyncio.AbstractEventLoop:
    """One for all processors of the process, so that they share a store's connections, which belong
    to a loop. Its thread is a daemon: it ends with the process."""
    with _lock:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="leasehold", daemon=True).start()
        return _loops[os.getpid()]


async def run_on(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], stop: Callable[[], None]
) -> T:
    """The result of work on that loop. Cancelled, it is asked to ``stop``, and waited for;
    cancelled again, it ends at once."""
    here = asyncio.get_running_loop()
    if loop is here:
        running: asyncio.Future[T] = asyncio.ensure_future(work)
    else:
        running = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await running
        raise
    finally:
        if not here.is_closed():
            running.cancel()


async def call_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of work on that loop. Cancelled, it cancels the work and waits until that is over,
    for a loop that is blocked hears of it late; cancelled again, it does not wait. Nor does it for
    a loop that runs no more: nothing is at work there.

    Work that somebody else cancels there is no reason to end here, but an error."""
    if loop is asyncio.get_running_loop():
        return await work
    call = _Call(loop, work)
    try:
        loop.call_soon_threadsafe(call.begin)
    except RuntimeError:
        work.close()
        raise
    try:
        await call.waiter
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # closed
            loop.call_soon_threadsafe(call.end)
        while not call.over and loop.is_running():
            await call.look(LOOK_S)
        raise
    return call.result()


class _Call(Generic[T]):
    """Work on another loop, and the one who waits for it on this one. This is done for every call
    of a handler: futures that are made for threads would cost half as much again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop, self._work = loop, work
        self._here = asyncio.get_running_loop()
        self._task: asyncio.Task[T] | None = None
        self.waiter: asyncio.Future[None] = self._here.create_future()
        self.over = False

    # There

    def begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._tell)

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more
        with suppress(RuntimeError):  # closed
            self._here.call_soon_threadsafe(self._heard)

    # Here

    def _heard(self) -> None:
        self.over = True
        if not self.waiter.done():
            self.waiter.set_result(None)

    async def look(self, seconds: float) -> None:
        """Wait a little longer, although the one who waited was cancelled."""
        self.waiter = self._here.create_future()
        await asyncio.wait([self.waiter], timeout=seconds)

    def result(self) -> T:
        assert self._task is not None
        if self._task.cancelled():
            raise CallCancelled("it was cancelled with its event loop, or by a task there")
        return self._task.result()


@asynccontextmanager
async def using(store: LeaseStore) -> AsyncIterator[None]:
    """The last processor of this loop to be done with a store closes what it opened here: nobody
    else can. It reopens when it is used again."""
    user = (id(store), asyncio.get_running_loop())
    _users[user] += 1
    try:
        yield
    finally:
        _users[user] -= 1
        if not _users[user]:
            del _users[user]
            try:
                await asyncio.wait_for(store.close(), CLOSE_S)
            except Exception as error:
                log.warning("the store was not closed: %s: %s", type(error).__name__, error)
