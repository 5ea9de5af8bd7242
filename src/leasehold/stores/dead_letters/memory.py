"""Dead letters in this process: for tests, and where losing them with the process does no harm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.ports import Clock, DeadLetter, LetterFilter
from leasehold.stores.dead_letters.rows import check_limit


class MemoryDeadLetters:
    def __init__(self, clock: Clock | None = None) -> None:
        self.requests: Counter[str] = Counter()
        self._clock = clock or SystemClock()
        self._numbers = count(1)
        self._letters: dict[str, DeadLetter] = {}  # in order of arrival

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        self.requests["put"] += 1
        for letter in letters:
            before = self._letters.get(letter.id)
            self._letters[letter.id] = replace(
                letter,
                number=before.number if before else next(self._numbers),
                dead_at=self._now(),
                redriven_at=None,
                redrives=before.redrives if before else 0,
            )

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        self.requests["list"] += 1
        check_limit(limit)
        found = self._find(which)
        if newest_first:
            found = [each for each in found[::-1] if after is None or each.number < after]
        else:
            found = [each for each in found if after is None or each.number > after]
        return tuple(found[:limit])

    async def get(self, id: str) -> DeadLetter | None:
        self.requests["get"] += 1
        return self._letters.get(id)

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        self.requests["count"] += 1
        return dict(Counter(letter.group for letter in self._find(which)))

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        self.requests["mark_redriven"] += 1
        known = [self._letters[id] for id in dict.fromkeys(ids) if id in self._letters]
        for letter in known:
            self._letters[letter.id] = replace(
                letter, redriven_at=self._now(), redrives=letter.redrives + 1
            )
        return len(known)

    async def purge(self, which: LetterFilter) -> int:
        self.requests["purge"] += 1
        found = self._find(which)
        for letter in found:
            del self._letters[letter.id]
        return len(found)

    async def close(self) -> None:
        pass

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    def _find(self, which: LetterFilter) -> Sequence[DeadLetter]:
        now = self._now()
        return [letter for letter in self._letters.values() if _fits(letter, which, now)]


def _fits(letter: DeadLetter, which: LetterFilter, now: datetime) -> bool:
    assert letter.dead_at is not None
    group, age_s = letter.group, (now - letter.dead_at).total_seconds()
    return (
        which.namespace in (None, group.namespace)
        and which.feed in (None, group.feed)
        and which.group in (None, group.name)
        and which.partition in (None, letter.partition)
        and (which.ids is None or letter.id in which.ids)
        and which.redriven in (None, letter.redriven_at is not None)
        and (which.older_than_s is None or age_s > which.older_than_s)
        and (which.up_to is None or letter.number <= which.up_to)
    )
