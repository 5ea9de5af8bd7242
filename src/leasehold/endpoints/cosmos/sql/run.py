"""Runs a query over documents that come in the order of their places."""

from __future__ import annotations

import heapq
import json
import operator
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.evaluate import evaluate
from leasehold.endpoints.cosmos.sql.tree import Query
from leasehold.endpoints.cosmos.sql.values import calculated, sort_key, type_of
from leasehold.feeds.effective_keys import UNDEFINED

DISTINCT_MAX = 100_000
Place = tuple[Any, ...]
"""Sorts documents; told again, it says where to go on."""
Match = tuple[Place, list[list[Any]], dict[str, Any]]
"""Where a document is, what it is sorted by, and the document."""


class Result(NamedTuple):
    value: Any
    place: Place
    order: list[list[Any]]
    """By which it was sorted, so that the next page can begin behind it."""


class Resume(NamedTuple):
    """Where the page before ended."""

    place: Place
    order: list[list[Any]]
    given: int
    """How many results came on the pages before."""


class Running:
    def __init__(self, query: Query, resume: Resume | None, max_items: int) -> None:
        self._query = query
        self._resume = resume
        given = resume.given if resume else 0
        self._skip = (query.offset or 0) if resume is None else 0
        most = query.limit if query.limit is not None else query.top
        self._most = max_items if most is None else min(max_items, most - given)
        self.is_limited = most is not None and most - given <= max_items

    def page(self, documents: Iterable[tuple[Place, dict[str, Any]]]) -> Iterator[Result]:
        """At most one more than fit, which tells that there is a next page."""
        if self._query.aggregates:
            yield from islice(self._totals(documents), self._skip, self._skip + max(self._most, 0))
            return
        if self._query.is_distinct:
            results = self._distinct(self._matching(documents))
        else:
            results = self._values(self._matching(documents))
            results = iter(self._sorted(results)) if self._query.order_by else results
        most = self._most + (0 if self.is_limited else 1)
        yield from islice(results, self._skip, self._skip + max(most, 0))

    def _values(self, found: Iterable[Match]) -> Iterator[Result]:
        for place, order, document in found:
            value = evaluate(self._query.select, document)
            if value is not UNDEFINED:
                yield Result(value, place, order)

    def _distinct(self, found: Iterable[Match]) -> Iterator[Result]:
        """Each value once, the first time that it comes. What came on the pages before is looked at
        again, for only so it is known what came."""
        ordered = self._query.order_by
        if ordered:
            every = list(islice(found, DISTINCT_MAX + 1))
            _require_few(every)
            found = sorted(every, key=lambda each: self._key(each[1], each[0]))
        last = None
        if self._resume is not None:
            last = self._key(self._resume.order, self._resume.place)
        seen: set[str] = set()
        for result in self._values(found):
            form = json.dumps(_canonical(result.value), sort_keys=True)
            if form in seen:
                continue
            seen.add(form)
            _require_few(seen)
            if last is None or last < self._key(result.order, result.place):
                yield result

    def _matching(self, documents: Iterable[tuple[Place, dict[str, Any]]]) -> Iterator[Match]:
        where = self._query.where
        for place, document in documents:
            if where is None or evaluate(where, document) is True:
                yield place, self._order_of(document), document

    def _order_of(self, document: dict[str, Any]) -> list[list[Any]]:
        return [list(sort_key(evaluate(each.by, document))) for each in self._query.order_by]

    def _sorted(self, found: Iterable[Result]) -> list[Result]:
        """Keeps no more than a page, however many match. All of them are results: with documents
        that have none among them, a page would be short and taken for the last one."""
        if self._resume is not None:
            last = self._key(self._resume.order, self._resume.place)
            found = (each for each in found if last < self._key(each.order, each.place))
        most = self._skip + self._most + 1
        return heapq.nsmallest(most, found, key=lambda each: self._key(each.order, each.place))

    def _key(self, order: list[list[Any]], place: Place) -> tuple[Any, ...]:
        sides = zip(order, self._query.order_by, strict=True)
        return (
            *(_Falling(key) if each.descending else _Rising(key) for key, each in sides),
            (place[0], _typed(place[1]), place[2]),
        )

    def _totals(self, documents: Iterable[tuple[Place, dict[str, Any]]]) -> Iterator[Result]:
        sums = [(each, _Total(each.function)) for each in self._query.aggregates]
        for _, _, document in self._matching(documents):
            for aggregate, total in sums:
                total.add(evaluate(aggregate.operand, document))
        totals = {id(aggregate): total.value() for aggregate, total in sums}
        value = evaluate(self._query.select, {}, totals)
        if value is not UNDEFINED:
            yield Result(value, (), [])


def _require_few(values: Sized) -> None:
    if len(values) > DISTINCT_MAX:
        raise Refusal(400, f"DISTINCT is possible for {DISTINCT_MAX} values at most.")


def _canonical(value: Any) -> Any:
    """1 and 1.0 are the same; 1 and true are not."""
    if isinstance(value, dict):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _typed(key: Any) -> tuple[int, Any]:
    """As SQLite sorts a column of any type."""
    return (1 if isinstance(key, str) else 2 if isinstance(key, bytes) else 0), key


class _Rising:
    def __init__(self, key: list[Any]) -> None:
        self.key = key

    def __lt__(self, other: _Rising) -> bool:
        return bool(self.key < other.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rising) and bool(self.key == other.key)

    __hash__ = None  # type: ignore[assignment]


class _Falling(_Rising):
    def __lt__(self, other: _Rising) -> bool:
        return bool(other.key < self.key)


class _Total:
    def __init__(self, function: str) -> None:
        self._function = function
        self._count = 0
        self._value: Any = UNDEFINED
        self._is_void = False

    def add(self, value: Any) -> None:
        if value is UNDEFINED:
            return
        self._count += 1
        if self._function in ("SUM", "AVG"):
            # A single value that is no number voids the sum.
            self._is_void = self._is_void or type_of(value) != 4
            if not self._is_void:
                known = 0 if self._value is UNDEFINED else self._value
                self._value = calculated(operator.add, value, known)
                self._is_void = self._value is UNDEFINED
        elif self._function in ("MIN", "MAX"):
            known = self._value
            below = known is not UNDEFINED and sort_key(value) < sort_key(known)
            if known is UNDEFINED or below == (self._function == "MIN"):
                self._value = value

    def value(self) -> Any:
        if self._function == "COUNT":
            return self._count
        if self._is_void or (self._value is UNDEFINED and self._function != "SUM"):
            return UNDEFINED
        if self._function == "SUM":
            return 0 if self._value is UNDEFINED else self._value
        if self._function == "AVG":
            return calculated(operator.truediv, self._value, self._count)
        return self._value
