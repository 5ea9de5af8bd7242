"""Dead letters in Azure Cosmos DB: one document each, put in transactions of a group's letters.

Numbers come from a document that counts: one that was given out and not used leaves a gap. What
changes a letter is conditional on its etag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.errors import BadInput
from leasehold.local.cosmos import TIMEOUT_S, CosmosConnection, CosmosSettings
from leasehold.local.cosmos_documents import FOR_GOOD, CosmosDocuments, Document
from leasehold.local.threads import OwnThreads
from leasehold.ports import Clock, DeadLetter, LetterFilter
from leasehold.stores.dead_letters.cosmos_letters import (
    Condition,
    condition_of,
    document_of,
    group_of,
    key_named_by,
    letter_in,
    parts_of,
)
from leasehold.stores.dead_letters.rows import check_limit, row_of, store_time_us

COUNTER = "number of dead letters"
"""Key and id of the document that counts."""
Step = Callable[[Document, int], tuple[Any, ...]]
"""From a letter and the time: an operation of a transaction."""


class CosmosDeadLetters:
    def __init__(
        self,
        settings: CosmosSettings,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise BadInput("timeout_s is a number of seconds above 0")
        self._settings, self._timeout_s = settings, timeout_s
        self._connection = CosmosConnection(settings, timeout_s)
        self._documents = CosmosDocuments(self._connection)
        self.requests = self._connection.requests
        self.request_units = self._connection.request_units
        self._clock = clock or SystemClock()
        self._threads = OwnThreads(f"cosmos-{settings.container}")

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> CosmosDeadLetters:
        """``cosmos://ACCOUNT.documents.azure.com/DATABASE/CONTAINER?timeout_s=…``. The secret comes
        from the environment; the container is made when it is first used."""
        said = CosmosSettings.from_url(url, more=["timeout_s"])
        return cls(said, **({"timeout_s": said.timeout_s(TIMEOUT_S)} | settings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, such as a Spark executor, connects for itself, with its own secret."""
        return partial(type(self), self._settings, timeout_s=self._timeout_s), ()

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await self._threads.run(self._put, {letter.id: row_of(letter) for letter in letters})

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        check_limit(limit)
        if not limit:
            return ()
        where, values = await self._condition("list", which)
        if after is not None:
            where += " AND c.number < @after" if newest_first else " AND c.number > @after"
            values["after"] = after
        order = "DESC" if newest_first else "ASC"
        text = f"SELECT TOP {limit} * FROM c WHERE {where} ORDER BY c.number {order}"
        return tuple(map(letter_in, await self._query("list", text, key_named_by(which), values)))

    async def get(self, id: str) -> DeadLetter | None:
        where, values = condition_of(LetterFilter(ids=[id]))
        found = await self._query("get", f"SELECT * FROM c WHERE {where}", None, values)
        return letter_in(found[0]) if found else None

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        where, values = await self._condition("count", which)
        key = key_named_by(which)
        groups = f"SELECT DISTINCT VALUE c.group FROM c WHERE {where}"
        keys = [key] if key else await self._query("count", groups, None, values)
        counts = {}
        for each in keys:
            text = f"SELECT VALUE COUNT(1) FROM c WHERE {where}"
            (counts[group_of(each)],) = await self._query("count", text, each, values)
        return {group: number for group, number in counts.items() if number}

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        which = condition_of(LetterFilter(ids=list(set(ids))))
        return await self._threads.run(self._change, "mark_redriven", which, None, _marked)

    async def purge(self, which: LetterFilter) -> int:
        where = await self._condition("purge", which)
        return await self._threads.run(self._change, "purge", where, key_named_by(which), _removed)

    async def close(self) -> None:
        """It may be used again."""
        await self._threads.rest(then=self._connection.close)

    async def _query(
        self, verb: str, text: str, key: str | None, values: Mapping[str, Any]
    ) -> Sequence[Any]:
        found, _ = await self._threads.run(
            partial(self._documents.query, verb, text, key, **values)
        )
        return found

    async def _condition(self, verb: str, which: LetterFilter) -> Condition:
        """An age is told by Cosmos DB's clock, so that is asked for first."""
        if which.older_than_s is None:
            return condition_of(which)
        ask = partial(self._documents.query, verb, "SELECT VALUE c.last FROM c", COUNTER)
        _, date_s = await self._threads.run(ask)
        return condition_of(which, self._now_us(date_s))

    def _put(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        wanted = {id: document_of(row) for id, row in rows.items()}
        while wanted:
            known = self._known(wanted)
            new = [each for id, each in wanted.items() if id not in known]
            first = self._numbers(len(new)) if new else 0
            for number, document in enumerate(new, first):
                document["number"] = number
            for id, before in known.items():
                wanted[id] |= {"number": before["number"], "redrives": before["redrives"]}
            for part in parts_of(wanted.values()):
                steps = [_stored(each, known.get(each["id"])) for each in part]
                if self._documents.together("put", part[0]["group"], steps):
                    for each in part:
                        del wanted[each["id"]]

    def _known(self, wanted: Mapping[str, Document]) -> dict[str, Document]:
        """Those that were put before, by id. All get the time of this look."""
        text = "SELECT c.id, c.number, c.redrives, c._etag FROM c WHERE ARRAY_CONTAINS(@ids, c.id)"
        found: dict[str, Document] = {}
        for key in {each["group"] for each in wanted.values()}:
            mine = {id: each for id, each in wanted.items() if each["group"] == key}
            rows, date_s = self._documents.query("put", text, key, ids=list(mine))
            found |= {row["id"]: row for row in rows}
            for each in mine.values():
                each["dead_us"] = self._now_us(date_s)
        return found

    def _numbers(self, amount: int) -> int:
        """The first of that many that nobody else has."""
        while True:
            counted = self._documents.add("put", COUNTER, COUNTER, "last", amount)
            if counted is not None:
                return int(counted["last"]) - amount + 1
            self._documents.create("put", {"id": COUNTER, "group": COUNTER, "last": 0} | FOR_GOOD)

    def _change(self, verb: str, which: Condition, key: str | None, step: Step) -> int:
        """Of all that fit. What somebody else changed meanwhile is looked at again."""
        where, values = which
        text = f"SELECT c.id, c.group, c._etag FROM c WHERE {where}"
        done: set[str] = set()
        while True:
            found, date_s = self._documents.query(verb, text, key, **values)
            left = [each for each in found if each["id"] not in done]
            now_us = self._now_us(date_s)
            for part in parts_of(left):
                steps = [step(each, now_us) for each in part]
                if self._documents.together(verb, part[0]["group"], steps):
                    done.update(each["id"] for each in part)
            if all(each["id"] in done for each in left):
                return len(done)

    def _now_us(self, date_s: float) -> int:
        return store_time_us(date_s, self._clock.wall())


def _stored(document: Document, before: Document | None) -> tuple[Any, ...]:
    if before is None:
        return "create", (document,)
    return "replace", (document["id"], document), {"if_match_etag": before["_etag"]}


def _marked(found: Document, now_us: int) -> tuple[Any, ...]:
    changes = [
        {"op": "set", "path": "/redriven_us", "value": now_us},
        {"op": "incr", "path": "/redrives", "value": 1},
    ]
    return "patch", (found["id"], changes), {"if_match_etag": found["_etag"]}


def _removed(found: Document, now_us: int) -> tuple[Any, ...]:
    return "delete", (found["id"],), {"if_match_etag": found["_etag"]}
