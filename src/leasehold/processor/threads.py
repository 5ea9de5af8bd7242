"""Threads for the user's plain functions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """As many threads as there are calls at once, so that a call which never comes back keeps no
    other waiting; and daemons, so that it does not keep the process from ending either."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._idle: list[SimpleQueue[_Job | None]] = []
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
        """Idle threads end now, the others after their call. Nobody waits for them."""
        with self._lock:
            self._over = True
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()

    def _new(self) -> SimpleQueue[_Job | None]:
        inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self._count += 1
        Thread(
            target=self._serve, args=(inbox,), name=f"{self._name}-{self._count}", daemon=True
        ).start()
        return inbox

    def _serve(self, inbox: SimpleQueue[_Job | None]) -> None:
        while (job := inbox.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # whoever waits for it decides
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, call  # an idle thread keeps nobody's events alive
            with self._lock:
                if self._over:
                    return
                self._idle.append(inbox)
