"""Dead letters in a PostgreSQL database, for instances on many machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from leasehold.core import strict_json
from leasehold.core.model import Group
from leasehold.local.postgres import PostgresDatabase, PostgresTables, parse_url
from leasehold.local.sql import load_queries
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.dead_letters.rows import (
    PURGE_LETTERS,
    check_limit,
    filter_values,
    letter_of,
    row_of,
)

VERSION = 1
LOCKED_TRIES = 2
_texts = load_queries(__package__, "postgres.sql")
QUERIES = {name: text.replace("{which}", _texts["which"]) for name, text in _texts.items()}
TABLES = PostgresTables(VERSION, QUERIES, LOCKED_TRIES)
_KEY = 8
"""Where a row has the partition key."""


class PostgresDeadLetters:
    def __init__(
        self, url: str, *, schema: str = "leasehold", timeout_s: float = STORE_TIMEOUT_S
    ) -> None:
        """``url`` holds no password: it may travel to Spark executors."""
        self.requests: Counter[str] = Counter()
        conninfo, _ = parse_url(url, {})
        self._database = PostgresDatabase(
            conninfo, TABLES, schema=schema, timeout_s=timeout_s, requests=self.requests
        )

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> PostgresDeadLetters:
        """A libpq URL; ``schema`` and ``timeout_s`` may stand among its query settings."""
        conninfo, settings = parse_url(url, settings)
        return cls(conninfo, **settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, such as a Spark executor, connects for itself, with its own secret."""
        database = self._database
        opened = partial(
            type(self), database.conninfo, schema=database.schema, timeout_s=database.timeout_s
        )
        return opened, ()

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        rows = list({letter.id: row_of(letter) for letter in letters}.values())
        if not rows:
            return
        for row in rows:
            row["partition_key"] = _key_text(row["partition_key"])
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        await self._database.run("put", "put", columns)

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        check_limit(limit)
        query = "list_newest" if newest_first else "list_oldest"
        page = {**filter_values(which), "limit": limit, "after": after}
        return tuple(map(_letter, await self._database.run("list", query, page)))

    async def get(self, id: str) -> DeadLetter | None:
        rows = await self._database.run("get", "get", {"id": id})
        return _letter(rows[0]) if rows else None

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        rows = await self._database.run("count", "count", filter_values(which))
        return {Group(namespace=row[0], feed=row[1], name=row[2]): row[3] for row in rows}

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        values = {"ids": list(ids)}
        return len(await self._database.run("mark_redriven", "mark_redriven", values))

    async def purge(self, which: LetterFilter) -> int:
        values = {**filter_values(which), "limit": PURGE_LETTERS, "after": -1}
        purged = 0
        while True:
            ((last, gone),) = await self._database.run("purge", "purge", values)
            if last is None:
                return purged
            purged += gone
            values["after"] = last

    async def close(self) -> None:
        await self._database.close()


def _key_text(key: str | None) -> str | None:
    return None if key is None else json.dumps(key, ensure_ascii=False)


def _letter(row: Sequence[Any]) -> DeadLetter:
    values = list(row)
    if values[_KEY] is not None:
        values[_KEY] = strict_json.loads(values[_KEY])
    return letter_of(values)
