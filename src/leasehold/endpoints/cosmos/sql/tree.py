"""A query as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leasehold.feeds.effective_keys import UNDEFINED


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Path:
    """Of the document itself if there are no steps."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class OneOf:
    operand: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    function: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Array:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Object:
    fields: tuple[tuple[str, Node], ...]


Node = Literal | Path | Unary | Binary | OneOf | Call | Aggregate | Array | Object


@dataclass(frozen=True, slots=True)
class OrderBy:
    by: Node
    descending: bool
    text: str
    """As it was written, for a client that asks once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    select: Node
    is_value: bool
    """The result is the value itself, not an object with it."""
    is_everything: bool
    alias: str
    is_distinct: bool = False
    where: Node | None = None
    order_by: tuple[OrderBy, ...] = ()
    top: int | None = None
    offset: int | None = None
    limit: int | None = None
    select_text: str = ""
    where_text: str = ""

    @property
    def is_plain(self) -> bool:
        """The answers of all ranges, one after the other, are the answer."""
        limits = (self.top, self.offset)
        return not (self.aggregates or self.order_by or self.is_distinct) and limits == (None, None)

    @property
    def counts_all(self) -> bool:
        """It is about the number of documents, whatever is in them."""
        return (
            self.is_value
            and self.where is None
            and (self.top, self.offset) == (None, None)
            and isinstance(self.select, Aggregate)
            and self.select.function == "COUNT"
            and isinstance(self.select.operand, Literal)
            and self.select.operand.value is not UNDEFINED
        )

    @property
    def aggregates(self) -> list[Aggregate]:
        return [node for node in walk(self.select) if isinstance(node, Aggregate)]


def bound_values(where: Node) -> dict[tuple[str | int, ...], Any]:
    """By path: what a field must be for the condition to hold."""
    match where:
        case Binary("AND", left, right):
            return bound_values(left) | bound_values(right)
        case Binary("=", Path(steps), Literal(value)) | Binary("=", Literal(value), Path(steps)):
            return {steps: value}
    return {}


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in _children(node):
        yield from walk(child)


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Unary(_, operand) | Aggregate(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return left, right
        case OneOf(operand, choices):
            return operand, *choices
        case Call(_, arguments):
            return arguments
        case Array(items):
            return items
        case Object(fields):
            return tuple(value for _, value in fields)
    return ()
