"""What happens in the demo's home by itself."""

from __future__ import annotations

import threading

from homes.domain.kinds import KINDS
from homes.simulator.days import STORY, Scene
from homes.simulator.story import play


class Moments(threading.Event):
    """Time passes at once."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._stop_after = stop_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self._stop_after is not None and len(self.waited) > self._stop_after


def test_somebody_comes_home_and_a_window_breaks_within_two_minutes() -> None:
    sent: list[tuple[str, float]] = []
    stop = Moments()
    play(lambda kind, value: sent.append((kind, value)), stop, STORY)
    assert sent[0] == ("door", 1)
    assert ("glass", 1) in sent
    assert {kind for kind, _ in sent} <= set(KINDS)
    assert sum(stop.waited) < 120
    assert len(sent) == len(STORY)


def test_a_story_ends_when_the_demo_does() -> None:
    sent: list[str] = []
    play(
        lambda kind, _: sent.append(kind), Moments(1), (Scene(1, "door", 1), Scene(1, "motion", 1))
    )
    assert sent == ["door"]
