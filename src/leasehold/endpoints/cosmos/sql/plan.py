"""What a client must know to ask each range by itself and put the answers together."""

from __future__ import annotations

from typing import Any

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.tree import Aggregate, Query

FILTER = "{documentdb-formattableorderbyquery-filter}"
"""Where clients put a condition of their own, to go on behind what they have."""


def query_info(query: Query) -> dict[str, Any]:
    aggregates = query.aggregates
    if aggregates and not (query.is_value and isinstance(query.select, Aggregate)):
        raise Refusal(
            400,
            "Across partitions, only SELECT VALUE with one aggregate is supported by this "
            "endpoint; give a partition key for others.",
        )
    return {
        "distinctType": _distinct(query),
        "top": query.top,
        "offset": query.offset,
        "limit": query.limit,
        "orderBy": [_direction(each.descending) for each in query.order_by],
        "orderByExpressions": [each.text for each in query.order_by],
        "groupByExpressions": [],
        "groupByAliases": [],
        "aggregates": [_named(each) for each in aggregates],
        "groupByAliasToAggregateType": {},
        "rewrittenQuery": _rewritten(query),
        "hasSelectValue": query.is_value,
        "hasNonStreamingOrderBy": False,
        "dCountInfo": None,
    }


def _distinct(query: Query) -> str:
    if not query.is_distinct:
        return "None"
    return "Ordered" if query.order_by else "Unordered"


def _direction(descending: bool) -> str:
    return "Descending" if descending else "Ascending"


def _named(aggregate: Aggregate) -> str:
    return "Average" if aggregate.function == "AVG" else aggregate.function.capitalize()


def _rewritten(query: Query) -> str:
    """As each range is to be asked; empty: as the query is."""
    source = f"FROM {query.alias}"
    where = f" WHERE ({query.where_text})" if query.where_text else ""
    if query.aggregates:
        return f'SELECT VALUE [{{"item": {_partial(query)}}}] {source}{where}'
    if query.order_by:
        items = ", ".join(f'{{"item": {each.text}}}' for each in query.order_by)
        order = ", ".join(
            f"{each.text} {'DESC' if each.descending else 'ASC'}" for each in query.order_by
        )
        given = [query.where_text] if query.where_text else []
        if query.is_value:  # else clients miss the payload of a document that has no result
            given.append(f"IS_DEFINED({query.select_text})")
        condition = " AND ".join(f"({each})" for each in (*given, FILTER))
        top = "" if query.is_distinct else _top(query)
        return (
            f"SELECT {top}{query.alias}._rid, [{items}] AS orderByItems, "
            f"{query.select_text} AS payload {source} WHERE {condition} ORDER BY {order}"
        )
    if query.offset is not None:
        distinct = "DISTINCT " if query.is_distinct else ""
        return f"SELECT {distinct}{_top(query)}VALUE {query.select_text} {source}{where}"
    return ""


def _top(query: Query) -> str:
    """What one range has to give at most."""
    if query.offset is not None and query.limit is not None:
        return f"TOP {query.offset + query.limit} "
    return "" if query.top is None else f"TOP {query.top} "


def _partial(query: Query) -> str:
    (aggregate,) = query.aggregates
    if aggregate.function != "AVG":
        return query.select_text
    operand = query.select_text[query.select_text.index("(") :]
    return f'{{"sum": SUM{operand}, "count": COUNT{operand}}}'
