"""A place in a query's tokens, and what may be asked about what comes next."""

from __future__ import annotations

from typing import NoReturn

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.tokens import Token, tokens


class TokenCursor:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._at = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    @property
    def _here(self) -> int:
        return self._token.at - 1

    def _since(self, begin: int) -> str:
        return self._text[begin : self._here].strip()

    def _took(self, word: str) -> bool:
        if word_of(self._token) != word:
            return False
        self._at += 1
        return True

    def _took_sign(self, sign: str) -> bool:
        if sign_of(self._token) != sign:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._took(word):
            self._fail(f"{word} is expected, not")

    def _expect_sign(self, sign: str) -> None:
        if not self._took_sign(sign):
            self._fail(f"{sign!r} is expected, not")

    def _next(self, kind: str) -> Token:
        token = self._token
        if token.kind != kind:
            self._fail(f"a {kind} is expected, not")
        self._at += 1
        return token

    def _fail(self, what: str) -> NoReturn:
        token = self._token
        raise Refusal(400, f"Syntax error, {what} {token} at character {token.at} of the query.")


def word_of(token: Token) -> str:
    return str(token.value).upper() if token.kind == "word" else ""


def sign_of(token: Token) -> str:
    return str(token.value) if token.kind == "sign" else ""
