"""Lines as they come: from a pipe that may pause, until its end or Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

PAUSE_S = 0.2
READ_BYTES = 1 << 20


class Interrupt:
    """Ctrl-C as a question that is asked between two reads, so that nothing read is lost. A second
    one ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self.wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Self:
        self._former: Any = None
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
        os.close(self.wakes)
        os.close(self._wake)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        os.write(self._wake, b"!")


def live_lines(source: int, longest: int, interrupt: Interrupt) -> Iterator[bytes | None]:
    """Lines, and None once when no more have come for a moment. What has no line end yet is kept
    back until the input ends; a line that is too long is given as it is."""
    rest, patience_s, last = b"", None, False
    while not last:
        last = interrupt.asked  # then what lies ready is still taken
        wakes = [] if last else [interrupt.wakes]
        ready, _, _ = select.select([source, *wakes], [], [], 0 if last else patience_s)
        if not ready:
            yield None
            patience_s = None
        if source not in ready:
            continue
        data = os.read(source, READ_BYTES)
        if not data:
            if rest and not interrupt.asked:
                yield rest
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > longest + 2:
            yield rest
        patience_s = PAUSE_S
