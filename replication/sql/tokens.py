"""SQL text as tokens: words, quoted names, strings, numbers, signs; and `TokenReader`, which reads them one by one.

Comments are dropped; `our_note` finds the comment that Tidemark adds. The sql_mode of the session decides what double
quotes and backslashes mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from tidemark.engine.base.errors import Unsupported
from tidemark.replication.sql.session import Session

STATEMENT_CHARACTERS_MAX = 1 << 20
OURS = "/* tidemark "

WORD, NAME, STRING, HEX, NUMBER, SIGN, END = "word", "name", "string", "hex", "number", "sign", "end"
NULL, MAXVALUE_KIND = "null", "maxvalue"  # kinds of literals without text
BITS = "bits"  # kind of a literal b'…', whose text is its number
PLAIN = Session()

# Possessive quantifiers: a pattern that can backtrack would remember each character of a long string.
_PATTERN = r"""
    (?P<space>[ \t\n\r\f\v]+|--[ \t][^\n]*|--\n|\#[^\n]*)
  | (?P<executed>/\*M?!\d{0,6}|\*/)
  | (?P<comment>/\*(?:[^*]++|\*(?!/))*+\*/)
  | (?P<unended>/\*)
  | (?P<hex>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+\b)
  | (?P<word>[A-Za-z_\x80-\uffff][A-Za-z0-9_$\x80-\uffff]*)
  | (?P<name>`(?:[^`]++|``)++`QUOTED_NAME)
  | (?P<string>STRING)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<sign>[(),.;=+\-*/<>!%&|^~:@?\[\]{}])
    """


def _patterns(has_backslashes: bool, has_ansi_quotes: bool) -> re.Pattern[str]:
    inner = r"(?:[^QUOTE\\]++|QUOTEQUOTE|\\.)*+" if has_backslashes else r"(?:[^QUOTE]++|QUOTEQUOTE)*+"
    single, double = (f"{quote}{inner.replace('QUOTE', quote)}{quote}" for quote in "'\"")
    name, string = (r'|"(?:[^"]++|"")++"', single) if has_ansi_quotes else ("", f"{single}|{double}")
    return re.compile(_PATTERN.replace("QUOTED_NAME", name).replace("STRING", string), re.VERBOSE | re.DOTALL)


_PATTERNS = {(one, two): _patterns(one, two) for one in (False, True) for two in (False, True)}
# A backslash before % or _ stays: the two are special in LIKE.
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class Literal(NamedTuple):
    """A literal whose column is not known yet: its kind, and its text, sign included."""

    kind: str
    text: str


class Token(NamedTuple):
    """One token: its kind; its meaning (words in capitals, names and strings without quotes); where it begins."""

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The word or sign; "" for any other token: a quoted name and a string are never keywords."""
        return self.text if self.kind in (WORD, SIGN) else ""


def tokens(sql: str, session: Session = PLAIN) -> Iterator[Token]:
    """Yield the tokens of a statement, END last. Raises: Unsupported at text that is not a token."""
    if len(sql) > STATEMENT_CHARACTERS_MAX:
        raise Unsupported(f"a statement of {len(sql)} characters is longer than {STATEMENT_CHARACTERS_MAX}")
    at = 0
    has_backslashes = session.has_backslashes
    match = _PATTERNS[has_backslashes, session.has_ansi_quotes].match
    # Stop at the first text that is no token, and at a comment without an end: otherwise each later quote or `/*` would
    # also be searched for its end through the rest of the statement.
    while at < len(sql) and (found := match(sql, at)) is not None:
        kind = found.lastgroup
        if kind == "unended":
            break
        # A server executes the contents of a version comment, so they are read here, too.
        if kind == SIGN:
            yield Token(SIGN, found[0], at)
        elif kind not in ("space", "comment", "executed"):
            yield Token(str(kind), _meaning(str(kind), found[0], has_backslashes), at)
        at = found.end()
    if at < len(sql):
        raise Unsupported(f"SQL that is not understood at {sql[at : at + 40]!r}", statement=sql[:200])
    yield Token(END, "", at)


def _meaning(kind: str, text: str, has_backslashes: bool) -> str:
    if kind == WORD:
        return text.upper() if text.isascii() else text
    if kind == NAME or (kind == STRING and not has_backslashes):
        return text[1:-1].replace(2 * text[0], text[0])
    if kind == HEX:
        return text[2:-1] if text.endswith("'") else text[2:]
    if kind == STRING:
        return re.sub(r"\\(.)|''|\"\"", lambda each: _unescaped(each, text[0]), text[1:-1], flags=re.DOTALL)
    return text


def _unescaped(found: re.Match[str], quote: str) -> str:
    """Return the character for an escape, or for a doubled quote, in a string."""
    if found[1] is not None:
        return _ESCAPES.get(found[1], found[1])
    return quote if found[0] == 2 * quote else found[0]


def our_note(sql: str) -> str | None:
    """Return the text of Tidemark's comment at the end of a statement (see `emit`), None without one."""
    start = sql.rfind(OURS)
    return sql[start + len(OURS) : -3] if start >= 0 and sql.endswith(" */") else None


T = TypeVar("T")
BITS_MAX = 64  # of a bit literal, as many as a BIT column can have


class TokenReader:
    """The tokens of a statement, and the reader's position in them. Every failure raises Unsupported, and its message
    shows the place.
    """

    def __init__(self, sql: str, database: str, session: Session = PLAIN) -> None:
        self.sql = sql
        self.database = database
        self.session = session
        self.tokens = list(tokens(sql, session))
        self.at = 0

    @property
    def next(self) -> Token:
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
        at = self.at
        for word in words:  # END is no word: the reader stops there at the latest
            if self.tokens[at].word != word:
                return False
            at += 1
        self.at = at
        return True

    def has_one(self, *words: str) -> str | None:
        """Take one of these words if it comes next; return it, or None."""
        word = self.next.word
        return word if word in words and self.has(word) else None

    def must(self, *words: str) -> None:
        """Take these words or signs. Raises: Unsupported."""
        if not self.has(*words):
            raise self.wrong()

    def must_end(self) -> None:
        """Check that nothing follows. Raises: Unsupported."""
        self.has(";")
        if self.next.kind != END:
            raise self.wrong()

    def name(self) -> str:
        """Take a name, quoted or not."""
        token = self.take()
        if token.kind == NAME:
            return self.readable(token.text)
        if token.kind == WORD:
            return self.readable(self.sql[token.at : token.at + len(token.text)])
        self.at -= 1
        raise self.wrong()

    def readable(self, text: str) -> str:
        """Return text that is used. Raises: Unsupported if it has characters that are not known here."""
        if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
            raise Unsupported(
                f"a name or value in the session's character set {self.session.charset}, which is not read here beyond"
                " ASCII"
            )
        return text

    def table(self) -> str:
        """Take a table's name; return `database.table`."""
        first = self.name()
        return f"{first}.{self.name()}" if self.has(".") else f"{self.database}.{first}"

    def string(self) -> str:
        """Take a string."""
        if self.next.kind != STRING:
            raise self.wrong()
        return self.readable(self.take().text)

    def skip_string(self) -> None:
        """Take a string that is not used, such as a comment."""
        if self.take().kind != STRING:
            self.at -= 1
            raise self.wrong()

    def in_parentheses(self, item: Callable[[], T]) -> list[T]:
        """Take a list in parentheses, each item by `item`."""
        self.must("(")
        if self.has(")"):
            return []
        items = self.listed(item)
        self.must(")")
        return items

    def listed(self, item: Callable[[], T]) -> list[T]:
        """Take a list of at least one item, each by `item`."""
        items = [item()]
        while self.has(","):
            items.append(item())
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

    def literal(self, is_octets: bool = False) -> Literal:
        """Take a literal with its sign. is_octets: a string may have bytes of no character."""
        if self.next.word == "B" and self.tokens[self.at + 1].kind == STRING:
            bits = self.tokens[self.at + 1].text
            if len(bits) > BITS_MAX or bits.strip("01"):
                raise self.wrong()
            self.at += 2
            return Literal(BITS, str(int(bits or "0", 2)))
        sign = self.has_one("-", "+")
        token = self.take()
        if token.kind == NUMBER:
            return Literal(NUMBER, ("-" if sign == "-" else "") + token.text)
        if sign is None and token.kind in (STRING, HEX):
            return Literal(token.kind, token.text if is_octets else self.readable(token.text))
        if sign is None and token.kind == WORD and token.text in ("NULL", "TRUE", "FALSE", "MAXVALUE"):
            kinds = {"NULL": Literal(NULL, ""), "MAXVALUE": Literal(MAXVALUE_KIND, "")}
            return kinds.get(token.text, Literal(NUMBER, str(int(token.text == "TRUE"))))
        self.at -= 1
        raise self.wrong()
