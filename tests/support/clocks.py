"""A machine's clocks, set by a test."""

from collections.abc import Callable

from leasehold.local.own_clock import ClockReading, read_clocks
from leasehold.ports import Clock


class FakeClocks:
    def __init__(self, now: float = 1_000_000.0, *, ahead: float = 0.0, boot: str = "boot") -> None:
        self.now = now
        """The true time. Moving it on means that so much time passes."""
        self.ahead = ahead
        """By how much the wall clock is wrong."""
        self.boot = boot

    def __call__(self) -> ClockReading:
        return ClockReading(int((self.now + self.ahead) * 1e6), int(self.now * 1e6), self.boot)


def clocks_of(clock: Clock) -> Callable[[], ClockReading]:
    """As a machine has them whose time the clock tells."""
    return lambda: ClockReading(int(clock.wall() * 1e6), int(clock.monotonic() * 1e6), "boot")


class SteppedClocks:
    """This machine's clocks, with a wall clock that is set."""

    def __init__(self) -> None:
        self._set_us = 0

    async def step(self, seconds: float) -> None:
        self._set_us += int(seconds * 1e6)

    def __call__(self) -> ClockReading:
        now = read_clocks()
        return now._replace(wall_us=now.wall_us + self._set_us)
