"""How values of a query compare. ``UNDEFINED`` is what a document does not have."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from leasehold.feeds.effective_keys import UNDEFINED


def type_of(value: Any) -> int:
    """The order of types, which is also how values of different types are sorted."""
    if value is UNDEFINED:
        return 0
    if value is None:
        return 1
    if isinstance(value, bool):
        return 2
    if isinstance(value, int | float):
        return 4
    if isinstance(value, str):
        return 5
    return 6 if isinstance(value, list | tuple) else 7


def equal(left: Any, right: Any) -> bool:
    kind = type_of(left)
    if kind != type_of(right):
        return False
    if kind == 6:
        return len(left) == len(right) and all(map(equal, left, right))
    if kind == 7:
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    return bool(left == right)


def calculated(calculate: Callable[..., Any], *values: Any) -> Any:
    """Undefined where the result is no number that JSON has a form for."""
    try:
        result = calculate(*values)
        return result if isfinite(result) else UNDEFINED
    except (ZeroDivisionError, OverflowError, ValueError):
        return UNDEFINED


def sort_key(value: Any) -> tuple[int, Any]:
    """Sorts any two values; arrays and objects count as equal among themselves."""
    kind = type_of(value)
    if kind in (2, 4):
        return kind, value
    # By code point, as Cosmos DB sorts text: not by UTF-16 unit.
    return kind, value if kind == 5 else 0


def compared(operator: str, left: Any, right: Any) -> Any:
    """True, false, or undefined where the two cannot be compared."""
    if left is UNDEFINED or right is UNDEFINED:
        return UNDEFINED
    if operator == "=":
        return equal(left, right)
    if operator == "!=":
        return not equal(left, right)
    kind = type_of(left)
    if kind != type_of(right) or kind in (6, 7):
        return UNDEFINED
    below, same = (False, True) if kind == 1 else (left < right, left == right)
    if operator == "<":
        return below
    if operator == "<=":
        return below or same
    return not below if operator == ">=" else not (below or same)
