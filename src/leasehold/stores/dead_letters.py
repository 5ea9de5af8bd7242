"""Dead letters in a SQLite file, for all processes of one machine."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.ports import Clock, DeadLetter, Which
from leasehold.stores.sql import TIMEOUT_S, load_queries
from leasehold.stores.sqlite_file import SqliteFile, Tables, parse_url

VERSION = 1
PURGE_LETTERS = 1_000
"""Removed per transaction."""
AGE_MAX_S = 1e11
_texts = load_queries("dead_letters.sql")
QUERIES = {name: text.replace("{which}", _texts["which"]) for name, text in _texts.items()}
# Synchronous in full: the group's checkpoint moves on past what is put here, so the death of the
# machine must not undo it.
TABLES = Tables(VERSION, QUERIES, pragmas=("auto_vacuum = INCREMENTAL", "synchronous = FULL"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SqliteDeadLetters:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = TIMEOUT_S,
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
            await self._file.run_many("put", QUERIES["put"], [_row(letter) for letter in letters])

    async def list(
        self,
        which: Which,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        if limit < 0:
            raise BadInput(f"limit is {limit}; give 0 or more")
        query = QUERIES["list_newest" if newest_first else "list_oldest"]
        page = {**_values(which), "limit": limit, "after": after}
        return tuple(map(_letter, await self._file.run("list", query, page)))

    async def get(self, id: str) -> DeadLetter | None:
        rows = await self._file.run("get", QUERIES["get"], {"id": id})
        return _letter(rows[0]) if rows else None

    async def count(self, which: Which) -> Mapping[Group, int]:
        rows = await self._file.run("count", QUERIES["count"], _values(which))
        return {Group(namespace=row[0], feed=row[1], name=row[2]): row[3] for row in rows}

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        values = {"ids": json.dumps(list(ids))}
        return len(await self._file.run("mark_redriven", QUERIES["mark_redriven"], values))

    async def purge(self, which: Which) -> int:
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


def _row(letter: DeadLetter) -> dict[str, Any]:
    group = letter.group
    try:
        properties = json.dumps(dict(letter.properties))
        enqueued_us = (letter.enqueued_at - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"dead letter of {letter.origin}: properties must be plain values under text names, "
            f"and enqueued_at must have a time zone: {error}"
        ) from error
    return {
        "id": letter.id,
        "namespace": group.namespace,
        "feed": group.feed,
        "group_name": group.name,
        "partition": letter.partition,
        "sequence": letter.sequence,
        "token": letter.token,
        "attempts": letter.attempts,
        "enqueued_us": enqueued_us,
        "partition_key": letter.partition_key,
        "error": letter.error,
        "properties": properties,
        "body": letter.body,
    }


def _letter(row: Sequence[Any]) -> DeadLetter:
    namespace, feed, name, partition, sequence, token, body, properties, key, *rest = row
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives = rest
    return DeadLetter(
        group=Group(namespace=namespace, feed=feed, name=name),
        partition=partition,
        sequence=sequence,
        token=token,
        body=body,
        properties=json.loads(properties),
        partition_key=key,
        enqueued_at=_time(enqueued_us),
        error=error,
        attempts=attempts,
        number=number,
        dead_at=_time(dead_us),
        redriven_at=None if redriven_us is None else _time(redriven_us),
        redrives=redrives,
    )


def _values(which: Which) -> dict[str, Any]:
    older_than_s = which.older_than_s
    if older_than_s is not None and not 0 <= older_than_s <= AGE_MAX_S:
        raise BadInput(f"older_than_s is {older_than_s}; give 0 to {AGE_MAX_S:.0f} seconds")
    return {
        "namespace": which.namespace,
        "feed": which.feed,
        "group_name": which.group,
        "partition": which.partition,
        "ids": None if which.ids is None else json.dumps(list(which.ids)),
        "redriven": which.redriven,
        "older_than_us": None if older_than_s is None else int(older_than_s * 1e6),
        "up_to": which.up_to,
    }


def _time(unix_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=unix_us)
