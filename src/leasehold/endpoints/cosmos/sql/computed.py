"""Computed properties: expressions of a container that its queries use like fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.parser import parse
from leasehold.endpoints.cosmos.sql.tree import (
    Aggregate,
    Array,
    Binary,
    Call,
    Node,
    Object,
    OneOf,
    Path,
    Query,
    Unary,
)

PROPERTIES_MAX = 20
RESERVED = ("id", "_rid", "_self", "_etag", "_ts", "_attachments", "_lsn")
Computed = Mapping[str, Node]


def parse_computed(given: Any) -> Computed:
    """By name; as a container's ``computedProperties`` say."""
    if given is None:
        return {}
    if not isinstance(given, list) or len(given) > PROPERTIES_MAX:
        raise _invalid(f"computedProperties is an array of {PROPERTIES_MAX} at most")
    known: dict[str, Node] = {}
    for each in given:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name or name in known:
            raise _invalid("each computed property has a name of its own and a query")
        if name in RESERVED:
            raise _invalid(f"no computed property is called {name}")
        query = parse(each.get("query"))
        if not (query.is_plain and query.is_value and query.where is None):
            raise _invalid(f"the query of {name!r:.80} is SELECT VALUE of one expression")
        known[name] = query.select
    return known


def with_computed(query: Query, known: Computed) -> Query:
    if not known:
        return query
    return replace(
        query,
        select=_filled(query.select, known),
        where=None if query.where is None else _filled(query.where, known),
        order_by=tuple(replace(each, by=_filled(each.by, known)) for each in query.order_by),
    )


def _filled(node: Node, known: Computed) -> Node:
    match node:
        case Path((str() as name, *rest)) if name in known:
            if rest:
                raise Refusal(400, f"Parts of the computed property {name!r:.80} are no use here.")
            return known[name]
        case Unary(operator, operand):
            return Unary(operator, _filled(operand, known))
        case Binary(operator, left, right):
            return Binary(operator, _filled(left, known), _filled(right, known))
        case OneOf(operand, choices):
            return OneOf(_filled(operand, known), tuple(_filled(each, known) for each in choices))
        case Call(function, arguments):
            return Call(function, tuple(_filled(each, known) for each in arguments))
        case Aggregate(function, operand):
            return Aggregate(function, _filled(operand, known))
        case Array(items):
            return Array(tuple(_filled(each, known) for each in items))
        case Object(fields):
            return Object(tuple((name, _filled(value, known)) for name, value in fields))
    return node


def _invalid(what: str) -> Refusal:
    return Refusal(400, f"One of the specified inputs is invalid: {what}.")
