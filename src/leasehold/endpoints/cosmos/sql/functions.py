"""The functions of queries. One that is given what it cannot take gives ``UNDEFINED``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.sql.values import calculated, equal, type_of
from leasehold.feeds.effective_keys import UNDEFINED

WHOLE_MAX = 1 << 53
"""Up to which floating point numbers have all whole ones."""


class Function(NamedTuple):
    call: Callable[..., Any]
    least: int
    most: int
    any_type: bool = False
    """It is called with undefined values, too."""


def _of_texts(test: Callable[[str, str], bool]) -> Callable[..., Any]:
    def call(text: Any, part: Any, ignore_case: Any = False) -> Any:
        if not (isinstance(text, str) and isinstance(part, str) and isinstance(ignore_case, bool)):
            return UNDEFINED
        return test(text.lower(), part.lower()) if ignore_case else test(text, part)

    return call


def _of_text(change: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda text: change(text) if isinstance(text, str) else UNDEFINED


def _of_number(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: change(value) if type_of(value) == 4 else UNDEFINED


def _calculated(function: Callable[..., float]) -> Callable[..., Any]:
    """Of numbers, with a whole number where the result is one."""

    def call(*values: Any) -> Any:
        if any(type_of(value) != 4 for value in values):
            return UNDEFINED
        result = calculated(function, *values)
        is_whole = result is not UNDEFINED and result.is_integer() and abs(result) < WHOLE_MAX
        return int(result) if is_whole else result

    return call


def _is(*types: int) -> Callable[[Any], bool]:
    return lambda value: type_of(value) in types


def _array_contains(array: Any, wanted: Any, partial: Any = False) -> Any:
    if not isinstance(array, list):
        return UNDEFINED
    if isinstance(wanted, str):
        return wanted in array  # thousands of ids are looked up like this
    if partial is True and isinstance(wanted, dict):
        return any(
            isinstance(each, dict)
            and all(name in each and equal(each[name], wanted[name]) for name in wanted)
            for each in array
        )
    return any(equal(each, wanted) for each in array)


def _concat(*texts: Any) -> Any:
    return "".join(texts) if all(isinstance(text, str) for text in texts) else UNDEFINED


FUNCTIONS = {
    "STARTSWITH": Function(_of_texts(str.startswith), 2, 3),
    "ENDSWITH": Function(_of_texts(str.endswith), 2, 3),
    "CONTAINS": Function(_of_texts(str.__contains__), 2, 3),
    "STRINGEQUALS": Function(_of_texts(str.__eq__), 2, 3),
    "LOWER": Function(_of_text(str.lower), 1, 1),
    "UPPER": Function(_of_text(str.upper), 1, 1),
    "TRIM": Function(_of_text(str.strip), 1, 1),
    "LENGTH": Function(_of_text(len), 1, 1),
    "CONCAT": Function(_concat, 2, 20),
    "ABS": Function(_of_number(abs), 1, 1),
    "FLOOR": Function(_of_number(math.floor), 1, 1),
    "CEILING": Function(_of_number(math.ceil), 1, 1),
    "POWER": Function(_calculated(math.pow), 2, 2),
    "SQUARE": Function(_calculated(lambda value: math.pow(value, 2)), 1, 1),
    "SQRT": Function(_calculated(math.sqrt), 1, 1),
    "ARRAY_CONTAINS": Function(_array_contains, 2, 3),
    "ARRAY_LENGTH": Function(lambda a: len(a) if isinstance(a, list) else UNDEFINED, 1, 1),
    "IS_DEFINED": Function(lambda value: value is not UNDEFINED, 1, 1, any_type=True),
    "IS_NULL": Function(_is(1), 1, 1, any_type=True),
    "IS_BOOL": Function(_is(2), 1, 1, any_type=True),
    "IS_NUMBER": Function(_is(4), 1, 1, any_type=True),
    "IS_STRING": Function(_is(5), 1, 1, any_type=True),
    "IS_ARRAY": Function(_is(6), 1, 1, any_type=True),
    "IS_OBJECT": Function(_is(7), 1, 1, any_type=True),
    "IS_PRIMITIVE": Function(_is(1, 2, 4, 5), 1, 1, any_type=True),
}
