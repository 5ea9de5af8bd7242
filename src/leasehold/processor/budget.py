"""How many bytes of events an instance has in memory, and whether there may be more of them."""

from __future__ import annotations


class Budget:
    """Shared by all pumps of an instance. A batch in hand is counted and never refused, so that
    every partition goes on; what is read ahead of it has to fit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def allows(self, more_bytes: int) -> bool:
        return self.held_bytes + more_bytes <= self._max_bytes

    def change(self, before_bytes: int, after_bytes: int) -> None:
        self.held_bytes += after_bytes - before_bytes
