"""Ctrl-C and SIGTERM, for all processors of an event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

log = logging.getLogger("leasehold")
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


@contextmanager
def stop_on_signals(stop: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """The first signal calls ``stop``; the second ``end``, and ends the program at once, as the
    shell expects: with exit code 130 after Ctrl-C, 143 after SIGTERM. Only the main thread gets
    signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    watch = _watches.setdefault(loop, _Watch(loop))
    watch.add(stop, end)
    try:
        yield
    finally:
        if not watch.remove(stop, end):
            del _watches[loop]


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stops: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._before: dict[signal.Signals, Any] = {}
        self._asked = False

    def add(self, stop: Callable[[], None], end: Callable[[], None]) -> None:
        if not self._stops:
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                with suppress(NotImplementedError):  # not on every platform
                    self._loop.add_signal_handler(number, self._signalled, number)
                    self._before[number] = before
        self._stops.append((stop, end))

    def remove(self, stop: Callable[[], None], end: Callable[[], None]) -> bool:
        """Whether any are left; if not, signals go where they went before."""
        self._stops.remove((stop, end))
        if not self._stops and not self._loop.is_closed():  # which took them away
            for number, before in self._before.items():
                self._loop.remove_signal_handler(number)
                if before is not None:  # None: set by something that is not Python
                    signal.signal(number, before)
        return bool(self._stops)

    def _signalled(self, number: signal.Signals) -> None:
        if self._asked:
            log.warning("%s once more: ending at once; leases will expire", number.name)
            for _, end in self._stops:
                end()
            raise SystemExit(128 + number)
        self._asked = True
        log.info("%s: stopping in order; once more ends it at once", number.name)
        for stop, _ in self._stops:
            stop()
