"""Offsets of a hub's events. They tell apart histories that have the same sequences.

An offset is ``ordinal << MARK_BITS | mark``. A *generation* is what one writer appended to a
partition with nobody in between: the ordinal rises by one with each event, and the mark stays. The
next generation leaves out some ordinals and has another mark, both drawn at random. So once an
older copy of the file was restored and written to, its offsets differ from those that readers
checkpointed before; and as ``ordinal - sequence`` never falls, a generation can be searched for.
"""

from __future__ import annotations

import random
from typing import NamedTuple

MARK_BITS = 20
STEP = 1 << MARK_BITS
SKIPPED_MAX = 16
_chance = random.SystemRandom()


class Generation(NamedTuple):
    lead: int
    """By how much its ordinals are ahead of its sequences: more than in any generation before."""
    mark: int


def first_offset(identity: str) -> int:
    """Where a hub's offsets begin: far from where another hub's do."""
    return (int(identity[:8], 16) + 1) * STEP + int(identity[8:13], 16)


def begin_generation(last_offset: int) -> int:
    """What a new generation counts from; its first event is one ``STEP`` further."""
    ordinal = (last_offset >> MARK_BITS) + _chance.randint(1, SKIPPED_MAX)
    return ordinal * STEP + _chance.getrandbits(MARK_BITS)


def generation_of(sequence: int, offset: int) -> Generation:
    """Of the event that has these two."""
    return Generation((offset >> MARK_BITS) - sequence, offset & (STEP - 1))


def number_of(token: str) -> int | None:
    """A token as the offset it is; None: no hub ever gave it out."""
    return int(token) if token.isascii() and token.isdigit() and len(token) < 20 else None
