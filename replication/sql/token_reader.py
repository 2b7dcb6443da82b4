"""Reads SQL tokens one by one: the base class of the parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidemark.engine.base.errors import Unsupported
from tidemark.replication.sql.literals import MOST, NULL, Literal
from tidemark.replication.sql.tokens import END, HEX, NAME, NUMBER, STRING, WORD, Token, tokens

T = TypeVar("T")
BITS_MAX = 64  # of a bit literal, as many as a BIT column can have


class TokenReader:
    """The tokens of a statement, and the reader's position in them. Every failure raises Unsupported, and its message
    shows the place.
    """

    def __init__(self, sql: str, database: str) -> None:
        self.sql = sql
        self.database = database
        self.tokens = list(tokens(sql))
        self.at = 0

    @property
    def next(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def wrong(self) -> Unsupported:
        """Return the error for a next token that is not understood here."""
        rest = self.sql[self.next.at : self.next.at + 60]
        return Unsupported(
            f"a schema change that is not replicated, at {rest!r}: make it at each site", sql=self.sql[:200]
        )

    def take(self) -> Token:
        """Take the next token; the reader never moves past END."""
        found = self.next
        self.at += 1 if found.kind != END else 0
        return found

    def has(self, *words: str) -> bool:
        """Take these words or signs if they come next; return whether they did."""
        following = self.tokens[self.at : self.at + len(words)]
        if len(following) == len(words) and all(
            token.word == word for token, word in zip(following, words, strict=True)
        ):
            self.at += len(words)
            return True
        return False

    def has_one(self, *words: str) -> str | None:
        """Take one of these words if it comes next; return it, or None."""
        return next((word for word in words if self.has(word)), None)

    def must(self, *words: str) -> None:
        """Take these words or signs. Raises: Unsupported."""
        if not self.has(*words):
            raise self.wrong()

    def name(self) -> str:
        """Take a name, quoted or not."""
        token = self.take()
        if token.kind == NAME:
            return token.text
        if token.kind == WORD:
            return self.sql[token.at : token.at + len(token.text)]
        self.at -= 1
        raise self.wrong()

    def table(self) -> str:
        """Take a table's name; return `database.table`."""
        first = self.name()
        return f"{first}.{self.name()}" if self.has(".") else f"{self.database}.{first}"

    def string(self) -> str:
        """Take a string."""
        token = self.take()
        if token.kind != STRING:
            self.at -= 1
            raise self.wrong()
        return token.text

    def in_parentheses(self, item: Callable[[], T]) -> list[T]:
        """Take a list in parentheses, each item by `item`."""
        self.must("(")
        items: list[T] = []
        if not self.has(")"):
            items.append(item())
            while self.has(","):
                items.append(item())
            self.must(")")
        return items

    def skip_parentheses(self) -> None:
        """Skip an expression in parentheses."""
        depth = 0
        while True:
            token = self.take()
            if token.kind == END:
                raise self.wrong()
            depth += (token.word == "(") - (token.word == ")")
            if depth == 0:
                return

    def literal(self) -> Literal:
        """Take a literal with its sign."""
        if self.next.word == "B" and self.tokens[self.at + 1].kind == STRING:
            bits = self.tokens[self.at + 1].text
            if len(bits) > BITS_MAX or bits.strip("01"):
                raise self.wrong()
            self.at += 2
            return Literal(NUMBER, str(int(bits or "0", 2)))
        sign = self.has_one("-", "+")
        token = self.take()
        if token.kind == NUMBER:
            return Literal(NUMBER, ("-" if sign == "-" else "") + token.text)
        if sign is None and token.kind in (STRING, HEX):
            return Literal(token.kind, token.text)
        if sign is None and token.kind == WORD and token.text in ("NULL", "TRUE", "FALSE", "MAXVALUE"):
            kinds = {"NULL": Literal(NULL, ""), "MAXVALUE": Literal(MOST, "")}
            return kinds.get(token.text, Literal(NUMBER, str(int(token.text == "TRUE"))))
        self.at -= 1
        raise self.wrong()
