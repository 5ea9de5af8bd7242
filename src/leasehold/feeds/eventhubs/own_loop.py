"""An event loop in a thread of its own: the SDK's connections belong to one loop, and a feed is
used from several, and from threads that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from leasehold.errors import BadInput
from leasehold.local.threads import is_cancelled

T = TypeVar("T")
CLOSE_BOUND_S = 5.0


class OwnLoop:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.closed = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result, wherever this is awaited. Cancelled here, it is cancelled there."""
        try:
            return await asyncio.wrap_future(self._submit(work))
        except asyncio.CancelledError:
            if not is_cancelled():
                self.require_open()
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a caller without a loop; blocks."""
        if self._thread is threading.current_thread():
            work.close()
            raise RuntimeError("this loop cannot wait for itself")
        try:
            return self._submit(work).result()
        except concurrent.futures.CancelledError:
            self.require_open()
            raise

    def require_open(self) -> None:
        if self.closed:
            raise BadInput(f"{self._name} was closed; open it again")
        if self._pid != os.getpid():
            raise BadInput(f"{self._name} was opened before a fork; open it again in each process")

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Do one last thing, end all else, and the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self.closed, self._loop, self._thread = True, None, None
        if self._pid != os.getpid():  # nobody runs it here
            loop = None
        if loop is None or thread is None:
            if last is not None:
                last.close()
            return
        asyncio.run_coroutine_threadsafe(_end(last), loop).add_done_callback(
            lambda _: loop.call_soon_threadsafe(loop.stop)
        )
        if thread is not threading.current_thread():
            thread.join(2 * CLOSE_BOUND_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            try:
                self.require_open()
            except BadInput:
                work.close()
                raise
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(last: Coroutine[Any, Any, None] | None) -> None:
    if last is not None:
        with suppress(Exception):  # it was to be tidy; what matters ends below
            await asyncio.wait_for(last, CLOSE_BOUND_S)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_BOUND_S)
