"""The async verbs of feeds, for tests that have no loop or must not leave theirs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a fork has no thread of its parent's."""


def result_of(call: Coroutine[Any, Any, Any]) -> Any:
    """Block until it is there, on a loop of its own thread."""
    if (loop := _loops.get(os.getpid())) is None:
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="result_of", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(call, loop).result()
