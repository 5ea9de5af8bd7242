"""Threads for the user's plain functions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
TIDY_S = 1.0
_Job = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """As many threads as there are calls at once, so that a call which never comes back keeps no
    other waiting; and daemons, so that it does not keep the process from ending either."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._idle: list[SimpleQueue[_Job | None]] = []
        self._between: set[Thread] = set()
        """Those that are in nobody's call."""
        self._over = False
        self._lock = Lock()

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
    ) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._over:
                raise RuntimeError("these threads were shut down")
            inbox = self._idle.pop() if self._idle else self._new()
        inbox.put((future, lambda: function(*arguments, **named)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Idle threads end now, the others after their call, which nobody waits for. A thread that
        tidies up after its call is waited for: the process may end next, and one that lets go of
        Arrow's memory at that moment takes it down with an abort."""
        with self._lock:
            self._over = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            between = list(self._between)
        for thread in between:
            if thread is not current_thread():
                thread.join(TIDY_S)

    def _new(self) -> SimpleQueue[_Job | None]:
        inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self._count += 1
        Thread(
            target=self._serve, args=(inbox,), name=f"{self._name}-{self._count}", daemon=True
        ).start()
        return inbox

    def _serve(self, inbox: SimpleQueue[_Job | None]) -> None:
        me = current_thread()
        while (job := inbox.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                self._between.discard(me)
                try:
                    result = call()
                except BaseException as error:  # whoever waits for it decides
                    self._between.add(me)
                    future.set_exception(error)
                else:
                    self._between.add(me)
                    future.set_result(result)
                    del result
            del job, future, call  # an idle thread keeps nobody's events alive
            with self._lock:
                if self._over:
                    return
                self._idle.append(inbox)
