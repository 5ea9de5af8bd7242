"""Parses a query. What is not supported is named, never guessed at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.cursor import TokenCursor, sign_of, word_of
from leasehold.endpoints.cosmos.sql.functions import FUNCTIONS
from leasehold.endpoints.cosmos.sql.tokens import Token
from leasehold.endpoints.cosmos.sql.tree import (
    Aggregate,
    Array,
    Binary,
    Call,
    Literal,
    Node,
    Object,
    OneOf,
    OrderBy,
    Path,
    Query,
    Unary,
    walk,
)
from leasehold.feeds.effective_keys import UNDEFINED

DEPTH_MAX = 60
COMPARISONS = ("=", "!=", "<>", "<", ">", "<=", ">=")
AGGREGATES = ("COUNT", "SUM", "MIN", "MAX", "AVG")
CLAUSES = ("WHERE", "ORDER", "OFFSET", "GROUP", "JOIN", "FROM")
UNSUPPORTED = ("GROUP", "JOIN", "EXISTS", "LIKE", "UDF", "RANK", "ARRAY", "ALL")
CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": UNDEFINED}


def parse(text: Any, parameters: Any = None) -> Query:
    if not isinstance(text, str):
        raise Refusal(400, "The query is missing, or is not text.")
    return _Parser(text, _values(parameters)).query()


def _values(parameters: Any) -> dict[str, Any]:
    try:
        return {each["name"]: each["value"] for each in parameters or ()}
    except (TypeError, KeyError):
        raise Refusal(
            400, "The parameters of a query are objects with a name and a value."
        ) from None


class _Parser(TokenCursor):
    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        super().__init__(text)
        self._values = values
        self._depth = 0
        self._alias: str | None = None
        self._in_select = False

    def query(self) -> Query:
        self._find_alias()
        self._expect("SELECT")
        is_distinct = self._took("DISTINCT")
        self._refuse_unsupported()
        top = self._count() if self._took("TOP") else None
        is_value = self._took("VALUE")
        begin = self._here
        select, is_everything, alone = self._select(is_value)
        select_text = self._since(begin)
        self._from()
        where, where_text = None, ""
        if self._took("WHERE"):
            begin = self._here
            where = self._expression()
            where_text = self._since(begin)
        order_by = self._order_by() if self._took("ORDER") else ()
        offset = limit = None
        if self._took("OFFSET"):
            offset = self._count()
            self._expect("LIMIT")
            limit = self._count()
        self._refuse_unsupported()
        if self._token.kind != "end":
            self._fail("unexpected")
        if any(isinstance(each, Aggregate) for each in walk(select)):
            if is_distinct:
                raise Refusal(400, "DISTINCT with an aggregate is not supported by this endpoint.")
            order_by = ()  # there is one result only
        return Query(
            is_distinct=is_distinct,
            select=select,
            is_value=is_value,
            is_everything=is_everything,
            alias=self._alias or "c",
            where=where,
            order_by=order_by,
            top=top,
            offset=offset,
            limit=limit,
            select_text=alone or select_text,
            where_text=where_text,
        )

    def _find_alias(self) -> None:
        """What follows FROM is needed to understand what comes before it."""
        for place, token in enumerate(self._tokens):
            if word_of(token) == "FROM":
                name, other = self._tokens[place + 1], self._tokens[place + 2 : place + 4]
                if other and word_of(other[0]) == "AS":
                    other = other[1:]
                given = other[0] if other else name
                named = given.kind == "word" and word_of(given) not in (*CLAUSES, *UNSUPPORTED)
                self._alias = str(given.value if named else name.value)
                return

    def _from(self) -> None:
        if not self._took("FROM"):
            return
        if self._token.kind != "word":
            self._fail("a container's name is expected, not")
        self._at += 1
        if sign_of(self._token) == "." or word_of(self._token) == "IN":
            raise Refusal(400, "FROM a part of documents is not supported by this endpoint.")
        self._took("AS")
        self._refuse_unsupported()
        if self._token.kind == "word" and word_of(self._token) not in CLAUSES:
            self._at += 1
        if self._took_sign(","):
            raise Refusal(400, "FROM more than one source is not supported by this endpoint.")

    def _select(self, is_value: bool) -> tuple[Node, bool, str]:
        """The projection, whether it is all of a document, and its text if that differs."""
        if self._took_sign("*"):
            return Path(()), True, self._alias or "c"
        self._in_select = True
        fields: list[tuple[str, Node]] = []
        pieces: list[str] = []
        unnamed = 0
        while True:
            begin, node = self._here, self._expression()
            text = self._since(begin)
            if is_value:
                self._in_select = False
                return node, False, ""
            if self._took("AS"):
                name = str(self._next("word").value)
            elif isinstance(node, Path):
                name = str(node.steps[-1]) if node.steps else (self._alias or "c")
            else:
                unnamed += 1
                name = f"${unnamed}"
            fields.append((name, node))
            pieces.append(f"{_quoted(name)}: {text}")
            if not self._took_sign(","):
                self._in_select = False
                return Object(tuple(fields)), False, "{" + ", ".join(pieces) + "}"

    def _order_by(self) -> tuple[OrderBy, ...]:
        self._expect("BY")
        found = []
        while True:
            begin, node = self._here, self._expression()
            text = self._since(begin)
            descending = self._took("DESC")
            if not descending:
                self._took("ASC")
            found.append(OrderBy(node, descending, text))
            if not self._took_sign(","):
                return tuple(found)

    def _count(self) -> int:
        node = self._primary()
        value = node.value if isinstance(node, Literal) else None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Refusal(400, "TOP, OFFSET and LIMIT take a whole number from 0 on.")
        return value

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Refusal(400, f"The query is nested more than {DEPTH_MAX} levels deep.")
        node = self._chain(self._conjunction, "OR")
        self._depth -= 1
        return node

    def _conjunction(self) -> Node:
        return self._chain(self._negation, "AND")

    def _chain(self, part: Callable[[], Node], word: str) -> Node:
        node = part()
        while self._took(word):
            node = Binary(word, node, part())
        return node

    def _negation(self) -> Node:
        if self._took("NOT"):
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise Refusal(400, f"The query is nested more than {DEPTH_MAX} levels deep.")
            node = Unary("NOT", self._negation())
            self._depth -= 1
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        node = self._sum()
        sign = sign_of(self._token)
        if sign in COMPARISONS:
            self._at += 1
            return Binary("!=" if sign == "<>" else sign, node, self._sum())
        negated = self._took("NOT")
        if self._took("IN"):
            node = OneOf(node, self._list("(", ")"))
        elif self._took("BETWEEN"):
            low = self._sum()
            self._expect("AND")
            node = Binary("AND", Binary(">=", node, low), Binary("<=", node, self._sum()))
        elif negated or word_of(self._token) == "LIKE":
            self._refuse_unsupported()
            self._fail("IN or BETWEEN is expected, not")
        return Unary("NOT", node) if negated else node

    def _sum(self) -> Node:
        node = self._product()
        while (sign := sign_of(self._token)) in ("+", "-", "||"):
            self._at += 1
            node = Binary(sign, node, self._product())
        if sign in ("??", "?"):
            raise Refusal(400, f"The operator {sign} is not supported by this endpoint.")
        return node

    def _product(self) -> Node:
        node = self._unary()
        while (sign := sign_of(self._token)) in ("*", "/", "%"):
            self._at += 1
            node = Binary(sign, node, self._unary())
        return node

    def _unary(self) -> Node:
        if self._took_sign("-"):
            node = self._postfix()
            value = node.value if isinstance(node, Literal) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                return Literal(-value)
            return Unary("-", node)
        self._took_sign("+")
        return self._postfix()

    def _postfix(self) -> Node:
        node = self._primary()
        steps: list[str | int] = []
        while (sign := sign_of(self._token)) in (".", "["):
            self._at += 1
            if sign == ".":
                steps.append(str(self._next("word").value))
                continue
            token = self._token
            if token.kind not in ("text", "number") or isinstance(token.value, float):
                self._fail("a name or a place is expected in [ ], not")
            self._at += 1
            steps.append(token.value)
            self._expect_sign("]")
        if not steps:
            return node
        if not isinstance(node, Path):
            raise Refusal(400, "Only parts of documents can be reached into with . and [ ].")
        return Path((*node.steps, *steps))

    def _primary(self) -> Node:
        token = self._token
        if token.kind in ("number", "text"):
            self._at += 1
            return Literal(token.value)
        if self._took_sign("("):
            self._refuse_subquery()
            node = self._expression()
            self._expect_sign(")")
            return node
        if sign_of(token) == "[":
            return Array(self._list("[", "]"))
        if sign_of(token) == "{":
            return self._object()
        if token.kind != "word":
            self._fail("a value is expected, not")
        return self._named(token)

    def _named(self, token: Token) -> Node:
        word = word_of(token)
        if sign_of(self._tokens[self._at + 1]) == "(":
            self._at += 1
            return self._call(word)
        self._at += 1
        if token.value.startswith("@"):
            if token.value not in self._values:
                raise Refusal(400, f"The query has no value for its parameter {token.value}.")
            return Literal(self._values[token.value])
        if word in CONSTANTS and token.value != self._alias:
            return Literal(CONSTANTS[word])
        if token.value == self._alias or (self._alias is None and word in ("C", "ROOT", "R")):
            return Path(())
        self._at -= 1
        self._refuse_unsupported()
        raise Refusal(
            400,
            f"Identifier {token.value!r} could not be resolved (character {token.at}); the "
            f"documents of this query are called {self._alias or 'c'}.",
        )

    def _call(self, name: str) -> Node:
        arguments = self._list("(", ")")
        if name in AGGREGATES:
            if not self._in_select:
                raise Refusal(400, f"{name} is only possible in SELECT.")
            if len(arguments) != 1:
                raise Refusal(400, f"{name} takes one argument.")
            return Aggregate(name, arguments[0])
        function = FUNCTIONS.get(name)
        if function is None:
            raise Refusal(400, f"The function {name} is not supported by this endpoint.")
        if not function.least <= len(arguments) <= function.most:
            raise Refusal(400, f"The function {name} was given {len(arguments)} arguments.")
        return Call(name, arguments)

    def _list(self, opening: str, closing: str) -> tuple[Node, ...]:
        self._expect_sign(opening)
        self._refuse_subquery()
        found: list[Node] = []
        while not self._took_sign(closing):
            if found:
                self._expect_sign(",")
            found.append(self._expression())
        return tuple(found)

    def _object(self) -> Node:
        self._expect_sign("{")
        fields: list[tuple[str, Node]] = []
        while not self._took_sign("}"):
            if fields:
                self._expect_sign(",")
            name = self._token
            if name.kind not in ("text", "word"):
                self._fail("a field's name is expected, not")
            self._at += 1
            self._expect_sign(":")
            fields.append((str(name.value), self._expression()))
        return Object(tuple(fields))

    def _refuse_subquery(self) -> None:
        if word_of(self._token) == "SELECT":
            raise Refusal(400, "Subqueries are not supported by this endpoint.")

    def _refuse_unsupported(self) -> None:
        word = word_of(self._token)
        if word in UNSUPPORTED:
            raise Refusal(400, f"{word} is not supported by this endpoint.")


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
