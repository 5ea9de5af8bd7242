"""One instance of a group as a process of its own: ``python instance.py '{"feed": …}'``.

It writes down all that it does, so that a judge can tell afterwards what became of every event.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

REPLACED = 3
"""The exit code of an instance whose name was given to another."""


def end_with_parent() -> None:
    """Nothing that a test starts outlives it, however it ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))
        if os.getppid() == 1:
            sys.exit("the test is gone")


class Log:
    """One write to a file opened for appending per entry: what a kill cuts off is only the end."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *entry: Any) -> None:
        os.write(self._file, json.dumps(entry, separators=(",", ":")).encode() + b"\n")


class Recorder:
    """The handlers: some work, then a line that says which events are done."""

    def __init__(self, said: dict[str, Any]) -> None:
        self._log, self._work_s = Log(said["log"]), said["work_s"]
        self._chance = random.Random(said["seed"])
        self._deadly: int | None = said.get("deadly")

    def handlers(self, kind: str) -> dict[str, Any]:
        handlers: dict[str, Any] = {
            "on_partition_open": self.opened,
            "on_partition_close": self.closed,
        }
        on, _, way = kind.partition("-")
        handlers[f"on_{on}"] = getattr(self, f"{on}_{way}")
        return handlers

    def opened(self, context: Any) -> None:
        self._log.write("open", context.partition, context.epoch, time.monotonic())

    def closed(self, reason: str, context: Any) -> None:
        self._log.write("close", context.partition, context.epoch, time.monotonic(), reason)

    def batch_plain(self, events: Sequence[Any], context: Any) -> None:
        began = time.monotonic()
        if self._deadly in _numbers(events):
            time.sleep(min(self._work_s) / 2)  # while others are at work
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._chance.uniform(*self._work_s))
        self._handled(events, context, began)

    async def batch_async(self, events: Sequence[Any], context: Any) -> None:
        began = time.monotonic()
        await asyncio.sleep(self._chance.uniform(*self._work_s))
        self._handled(events, context, began)

    def event_plain(self, event: Any, context: Any) -> None:
        began = time.monotonic()
        time.sleep(self._chance.uniform(*self._work_s) / 100)
        self._handled([event], context, began)

    async def event_async(self, event: Any, context: Any) -> None:
        began = time.monotonic()
        await asyncio.sleep(self._chance.uniform(*self._work_s) / 100)
        self._handled([event], context, began)

    def _handled(self, events: Sequence[Any], context: Any, began: float) -> None:
        sequences = [event.sequence for event in events]
        entry = (context.partition, context.epoch, began, time.monotonic(), sequences)
        self._log.write("handled", *entry, _numbers(events))


def _numbers(events: Sequence[Any]) -> list[int]:
    return [json.loads(event.body)["number"] for event in events]


def opened(url: str) -> Any:
    """A feed that is away just now is waited for, as a supervisor would by starting it again."""
    import leasehold as lh  # noqa: PLC0415

    while True:
        try:
            return lh.open_feed(url)
        except lh.FeedUnavailable as error:
            logging.getLogger("leasehold").warning("not opened yet: %s", error)
            time.sleep(0.5)


def main(said: dict[str, Any]) -> int:
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as long as there is nothing to hand on
    # A second in which the signals above already count.
    import leasehold as lh  # noqa: PLC0415
    from leasehold.stores import open_dead_letters  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    letters = said.get("dead_letters")
    processor = lh.Processor(
        opened(said["feed"]),
        group=said["group"],
        store=lh.open_store(said["store"]),
        instance=said["instance"],
        checkpoint=lh.every(**said["checkpoint"]),
        retry=lh.Retry(**said.get("retry", {})),
        dead_letters=open_dead_letters(letters) if letters else None,
        **Recorder(said).handlers(said["handler"]),
        **said["settings"],
    )
    try:
        processor.run()
    except lh.InstanceReplaced:
        return REPLACED
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
