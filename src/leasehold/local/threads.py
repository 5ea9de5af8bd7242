"""Threads of a client's own, for async methods over calls that block."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, Thread
from typing import Any, TypeVar

THREADS = 4
T = TypeVar("T")


class OwnThreads:
    """New ones after a fork. Not the loop's default threads: handlers may be occupying all of
    those."""

    def __init__(self, name: str, most: int = THREADS) -> None:
        self._name, self._most = name, most
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._resting: Future[None] | None = None
        self._start_afresh()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._pid != os.getpid():
            self._start_afresh()
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if self._closed:
                    break
                resting = self._resting
                if resting is None:
                    answer = loop.run_in_executor(self._threads(), call, *arguments)
            if resting is not None:
                await asyncio.shield(asyncio.wrap_future(resting))
                continue
            try:
                return await answer
            except asyncio.CancelledError:
                if not answer.cancelled() or is_cancelled() or not self._closed:
                    raise
        return call(*arguments)  # which says that it was closed

    async def rest(self, then: Callable[[], None]) -> None:
        """End these when they are done, and do ``then``, whether somebody still waits for it or
        not. Who comes meanwhile waits, and gets new ones."""
        if self._pid != os.getpid():
            self._start_afresh()
        with self._lock:
            resting = self._resting
            if resting is None:
                resting = self._resting = self._end(then)
        await asyncio.shield(asyncio.wrap_future(resting))

    def close(self, then: Callable[[], None] | None = None) -> None:
        """Whoever has no thread yet is told that it was closed. The others are waited for; given
        what is to be done ``then``, not here, but in a thread beside."""
        if self._pid != os.getpid():
            self._start_afresh()
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            ending = self._end(then or _nothing)
        if then is None:
            ending.result()

    def _end(self, then: Callable[[], None]) -> Future[None]:
        pool, before, over = self._pool, self._resting, Future[None]()
        self._pool = None

        def end() -> None:
            try:
                if pool is not None:
                    pool.shutdown(wait=True)
                if before is not None:
                    before.result()
                then()
            finally:
                with self._lock:
                    if self._resting is over:
                        self._resting = None
                over.set_result(None)

        Thread(target=end, name=self._name, daemon=True).start()
        return over

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, self._name)
        return self._pool

    def _start_afresh(self) -> None:
        """A child process has none of its parent's threads, and maybe a lock that one held."""
        self._pid, self._lock = os.getpid(), Lock()
        self._pool, self._resting = None, None


def _nothing() -> None:
    pass


def is_cancelled() -> bool:
    """Whether the one who awaits is, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
