"""Ctrl-C for commands that have something to finish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM, so that work in hand is finished; the second ends it."""
    stop, asked = threading.Event(), False

    def on_signal(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        # Not here: the signal may have come while this very thread holds the event's lock.
        threading.Thread(target=stop.set, daemon=True).start()

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
