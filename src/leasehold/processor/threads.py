"""Threads for the user's plain functions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
FEW = 16
"""Threads that are started as soon as there is a call for them."""
PATIENCE_S = 0.05
"""How long a call waits for one of them before there are more."""
IDLE_S = 5.0
TIDY_S = 1.0
_Job = tuple["Future[Any]", Callable[[], Any]]


class HandlerThreads(Executor):
    """Few threads for short calls. While calls have to wait there are ever more, so that one which
    never comes back keeps no other waiting; without calls they end. They are daemons, so that it
    does not keep the process from ending either."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = self._count = 0
        self._free = 0
        """Threads in no call; below 0: calls without a thread."""
        self._submitted = self._begun = 0
        self._watched = False
        self._between: set[Thread] = set()
        """Those that are in nobody's call."""
        self._over = Event()
        self._lock = Lock()

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._over.is_set():
                raise RuntimeError("these threads were shut down")
            self._free -= 1
            self._submitted += 1
            self._inbox.put((future, lambda: function(*arguments, **named)))
            if self._free < 0:
                if self._count < FEW:
                    self._start(1)
                elif not self._watched:
                    self._watched = True
                    Thread(target=self._watch, name=f"{self._name}-watch", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Idle threads end now, the others after their call, which nobody waits for. A thread that
        tidies up after its call is waited for: the process may end next, and one that lets go of
        Arrow's memory at that moment takes it down with an abort."""
        with self._lock:
            self._over.set()
            for future in self._drain():
                future.cancel()
            for _ in range(self._count):
                self._inbox.put(None)
            between = list(self._between)
        for thread in between:
            if thread is not current_thread():
                thread.join(TIDY_S)

    def _drain(self) -> list[Future[Any]]:
        """The calls that have not begun."""
        found = []
        with suppress(Empty):
            while (job := self._inbox.get_nowait()) is not None:
                found.append(job[0])
        return found

    def _start(self, more: int) -> None:
        for _ in range(more):
            self._started += 1
            self._count += 1
            self._free += 1
            name = f"{self._name}-{self._started}"
            Thread(target=self._serve, name=name, daemon=True).start()

    def _watch(self) -> None:
        """Twice as many threads whenever a call has waited for long, for it is not known what the
        others wait for."""
        submitted = self._submitted
        while not self._over.wait(PATIENCE_S):
            with self._lock:
                if self._free >= 0:
                    self._watched = False
                    return
                if self._begun < submitted:
                    self._start(min(-self._free, self._count))
                submitted = self._submitted

    def _serve(self) -> None:
        me = current_thread()
        while True:
            try:
                job = self._inbox.get(timeout=IDLE_S)
            except Empty:
                if self._may_end():
                    return
                continue
            if job is None:
                return
            with self._lock:
                self._begun += 1
            future, call = job
            if future.set_running_or_notify_cancel():
                self._between.discard(me)
                try:
                    result = call()
                except BaseException as error:  # its caller decides
                    self._between.add(me)
                    future.set_exception(error)
                else:
                    self._between.add(me)
                    future.set_result(result)
                    del result
            del job, future, call  # an idle thread keeps nobody's events alive
            with self._lock:
                self._free += 1
                if self._over.is_set():
                    return

    def _may_end(self) -> bool:
        with self._lock:
            if self._free <= 0:  # a call is on its way
                return False
            self._free -= 1
            self._count -= 1
            self._between.discard(current_thread())
            return True
