"""The value of an expression for one document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leasehold.endpoints.cosmos.sql.functions import FUNCTIONS
from leasehold.endpoints.cosmos.sql.tree import (
    Aggregate,
    Array,
    Binary,
    Call,
    Literal,
    Node,
    Object,
    OneOf,
    Path,
    Unary,
)
from leasehold.endpoints.cosmos.sql.values import calculated, compared, equal, type_of
from leasehold.feeds.effective_keys import UNDEFINED

Totals = Mapping[int, Any]
"""The value of each aggregate, by the identity of its node."""


def evaluate(node: Node, document: Any, totals: Totals | None = None) -> Any:
    """``totals``: the values of the aggregates, once they are known."""
    match node:
        case Literal(value):
            return value
        case Path(steps):
            return _reach(document, steps)
        case Aggregate():
            return UNDEFINED if totals is None else totals[id(node)]
        case Array(items):
            values = [evaluate(item, document, totals) for item in items]
            return [value for value in values if value is not UNDEFINED]
        case Object(fields):
            pairs = [(name, evaluate(each, document, totals)) for name, each in fields]
            return {name: value for name, value in pairs if value is not UNDEFINED}
        case Unary(operator, operand):
            return _unary(operator, evaluate(operand, document, totals))
        case Binary(("AND" | "OR") as operator, left, right):
            return _joined(operator, evaluate(left, document, totals), right, document, totals)
        case Binary(operator, left, right):
            return _binary(
                operator, evaluate(left, document, totals), evaluate(right, document, totals)
            )
        case OneOf(operand, choices):
            value = evaluate(operand, document, totals)
            if value is UNDEFINED:
                return UNDEFINED
            return any(equal(value, evaluate(each, document, totals)) for each in choices)
        case Call(name, arguments):
            function = FUNCTIONS[name]
            given = [evaluate(each, document, totals) for each in arguments]
            if not function.any_type and UNDEFINED in given:
                return UNDEFINED
            return function.call(*given)
    raise AssertionError(node)


def _reach(document: Any, steps: tuple[str | int, ...]) -> Any:
    value = document
    for step in steps:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step, UNDEFINED)
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return UNDEFINED
    return value


def _unary(operator: str, value: Any) -> Any:
    if operator == "NOT":
        return not value if isinstance(value, bool) else UNDEFINED
    return -value if type_of(value) == 4 else UNDEFINED


def _joined(operator: str, left: Any, right: Node, document: Any, totals: Totals | None) -> Any:
    """AND and OR in three values: what is undefined does not decide."""
    decides = operator == "OR"
    if left is decides:
        return decides
    other = evaluate(right, document, totals)
    if other is decides:
        return decides
    if isinstance(left, bool) and isinstance(other, bool):
        return not decides
    return UNDEFINED


def _binary(operator: str, left: Any, right: Any) -> Any:
    if operator in ARITHMETIC:
        if type_of(left) != 4 or type_of(right) != 4:
            return UNDEFINED
        return calculated(ARITHMETIC[operator], left, right)
    if operator == "||":
        if isinstance(left, str) and isinstance(right, str):
            return left + right
        return UNDEFINED
    return compared(operator, left, right)


def _remainder(left: Any, right: Any) -> Any:
    """With the sign of what is divided."""
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "%": _remainder,
}
