"""Where dead letters are kept."""

from leasehold.stores.dead_letters.memory import MemoryDeadLetters
from leasehold.stores.dead_letters.sqlite import SqliteDeadLetters

__all__ = ["MemoryDeadLetters", "SqliteDeadLetters"]
