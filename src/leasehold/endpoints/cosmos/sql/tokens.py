"""A query's text as tokens."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.refusals import Refusal

TOKENS_MAX = 10_000
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<word>[A-Za-z_@][A-Za-z0-9_]*)
    | (?P<sign><=|>=|!=|<>|\|\||\?\?|[=<>()\[\],.*{}:+\-/%?])
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_SPACE = re.compile(r"(?:\s|--[^\n]*)*")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Token(NamedTuple):
    kind: str
    """``number``, ``text``, ``word``, ``sign`` or ``end``."""
    value: Any
    at: int

    def __str__(self) -> str:
        return "the end of the query" if self.kind == "end" else repr(self.value)


def tokens(query: str) -> list[Token]:
    found: list[Token] = []
    at = _skipped(query, 0)
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None or len(found) == TOKENS_MAX:
            what = f"near {query[at : at + 20]!r}" if match is None else "too long"
            raise Refusal(400, f"Syntax error, {what} at character {at + 1} of the query.")
        kind = str(match.lastgroup)
        found.append(Token(kind, _value(kind, match[kind]), at + 1))
        at = _skipped(query, match.end())
    return [*found, Token("end", None, len(query) + 1)]


def _skipped(query: str, at: int) -> int:
    match = _SPACE.match(query, at)
    return match.end() if match else at


def _value(kind: str, text: str) -> Any:
    if kind == "number":
        if not isfinite(float(text)):
            raise Refusal(400, f"The number {text:.20}… in the query is too large.")
        return float(text) if any(mark in text for mark in ".eE") else int(text)
    return _unescaped(text) if kind == "text" else text


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2], match[2])

    plain = re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", one, text[1:-1], flags=re.DOTALL)
    try:
        # Halves of surrogate pairs that belong together come as two escapes.
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Refusal(400, "A text in the query is not Unicode.") from None
