"""Dead letters in a SQLite file, for all processes of one machine."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.errors import StoreUnavailable
from leasehold.local.sql import load_queries
from leasehold.local.sqlite_tables import SqliteFile, Tables, parse_url
from leasehold.ports import Clock, DeadLetter, LetterFilter
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.dead_letters.rows import (
    PURGE_LETTERS,
    check_limit,
    filter_values,
    letter_of,
    row_of,
)

VERSION = 1
_texts = load_queries(__package__, "sqlite.sql")
QUERIES = {name: text.replace("{which}", _texts["which"]) for name, text in _texts.items()}
# Synchronous in full: the group's checkpoint moves on past what is put here, so the death of the
# machine must not undo it.
TABLES = Tables(VERSION, QUERIES, pragmas=("auto_vacuum = INCREMENTAL", "synchronous = FULL"))


class SqliteDeadLetters:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = STORE_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self.requests: Counter[str] = Counter()
        self._file = SqliteFile(
            path,
            TABLES,
            timeout_s=timeout_s,
            clock=clock or SystemClock(),
            requests=self.requests,
        )
        self.path = self._file.path
        self._timeout_s = timeout_s

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, such as a Spark executor, opens the file for itself."""
        return partial(type(self), self.path.absolute(), timeout_s=self._timeout_s), ()

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> SqliteDeadLetters:
        path, written = parse_url(url, example="data/dead.db", contents="dead letters")
        return cls(path, **{**written, **settings})

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        if letters:
            await self._file.run_many("put", QUERIES["put"], [row_of(letter) for letter in letters])

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        check_limit(limit)
        query = QUERIES["list_newest" if newest_first else "list_oldest"]
        page = {**_values(which), "limit": limit, "after": after}
        return tuple(map(letter_of, await self._file.run("list", query, page)))

    async def get(self, id: str) -> DeadLetter | None:
        rows = await self._file.run("get", QUERIES["get"], {"id": id})
        return letter_of(rows[0]) if rows else None

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        rows = await self._file.run("count", QUERIES["count"], _values(which))
        return {Group(namespace=row[0], feed=row[1], name=row[2]): row[3] for row in rows}

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        values = {"ids": json.dumps(list(ids))}
        return len(await self._file.run("mark_redriven", QUERIES["mark_redriven"], values))

    async def purge(self, which: LetterFilter) -> int:
        values = {**_values(which), "limit": PURGE_LETTERS, "after": -1}
        purged = 0
        while gone := await self._file.run("purge", QUERIES["purge"], values):
            purged += len(gone)
            values["after"] = max(number for (number,) in gone)
        with suppress(StoreUnavailable):  # they are gone; the room they took can wait
            await self._file.shrink()
        return purged

    async def close(self) -> None:
        await self._file.close()


def _values(which: LetterFilter) -> dict[str, Any]:
    values = filter_values(which)
    return {**values, "ids": None if values["ids"] is None else json.dumps(values["ids"])}
