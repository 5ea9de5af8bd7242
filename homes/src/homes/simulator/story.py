"""What happens in one home of the demo by itself, so that its page has something to show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from homes.simulator.days import Scene


def play(
    send: Callable[[str, float], object],
    stop: threading.Event,
    story: Sequence[Scene],
) -> None:
    """Until the story is told, or ``stop`` is set."""
    for scene in story:
        if stop.wait(scene.after_s):
            return
        send(scene.kind, scene.value)
