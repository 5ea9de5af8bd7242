"""Suspects of one process take turns, so that one that kills it does not have others blamed."""

from __future__ import annotations

from threading import Lock

TURN_S = 30.0
"""How long one has the turn to itself where handlers have no time limit."""


class Turns:
    """First come, first served, and no turn is forever: one that hangs keeps the others waiting
    for its share and no longer. Shared by all processors of a process, in whatever thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._line: dict[object, float] = {}
        """Who waits, in the order they came, and until when that counts without a new word."""
        self._holder: object | None = None
        self._until = 0.0

    def take(self, who: object, *, now: float, share_s: float, again_s: float) -> bool:
        """Whether it is their turn. If not they ask again, within ``again_s``, and keep their place
        in the line until then."""
        with self._lock:
            self._line[who] = now + again_s
            if self._holder is not None and now < self._until:
                return False
            first = next(each for each, until in self._line.items() if until >= now)
            if first is not who:
                return False
            del self._line[who]
            self._holder, self._until = who, now + share_s
            return True

    def end(self, who: object) -> None:
        """Theirs is over, or they want none any more."""
        with self._lock:
            self._line.pop(who, None)
            if self._holder is who:
                self._holder = None
