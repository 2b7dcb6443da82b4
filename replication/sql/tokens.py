"""SQL text as tokens: words, quoted names, strings, numbers, signs; and `TokenReader`, which reads them one by one.

Comments are dropped; `our_note` finds the comment that Tidemark adds. The sql_mode of the session decides what double
quotes and backslashes mean.

A statement is text, or text in UTF-8 as it arrived. Its tokens are numbers that say where each is; what one means is
made when it is asked for. So a statement of a client takes little more memory than its bytes, whatever it says.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any, AnyStr, Final, NamedTuple, TypeAlias, TypeVar

from tidemark.engine.base.errors import Unsupported
from tidemark.replication.sql.session import Session

STATEMENT_CHARACTERS_MAX = 1 << 20
OURS = "/* tidemark "

WORD, NAME, STRING, HEX, NUMBER, SIGN, END = "word", "name", "string", "hex", "number", "sign", "end"
NULL, MAXVALUE_KIND = "null", "maxvalue"  # kinds of literals without text
BITS = "bits"  # kind of a literal b'…', whose text is its number
PLAIN = Session()
Text: TypeAlias = str | bytes | memoryview  # bytes: in UTF-8, though not all of them need be

# Possessive quantifiers: a pattern that can backtrack would remember each character of a long string.
_PATTERN = r"""
    (?P<space>[ \t\n\r\f\v]+|--[ \t][^\n]*|--\n|\#[^\n]*)
  | (?P<executed>/\*M?!\d{0,6}|\*/)
  | (?P<comment>/\*(?:[^*]++|\*(?!/))*+\*/)
  | (?P<unended>/\*)
  | (?P<hex>[xX]'[0-9a-fA-F]*'|0x[0-9a-fA-F]+WORD_ENDS)
  | (?P<word>(?:[A-Za-z_BEYOND]LONE)(?:[A-Za-z0-9_$BEYOND]++LONE)*+)
  | (?P<name>`(?:[^`]++|``)++`QUOTED_NAME)
  | (?P<string>STRING)
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<sign>[(),.;=+\-*/<>!%&|^~:@?\[\]{}])
    """


# What a word may have beyond ASCII: characters of the first plane, and bytes of no character. So the first byte of a
# character of another plane is none of a word.
_OF_TEXT = {"BEYOND": r"\x80-\uffff", "LONE": "", "WORD_ENDS": r"\b"}
_OTHER_PLANE = "\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
_OF_BYTES = {
    "BEYOND": "\x80-\xef\xf5-\xff",
    "LONE": f"|(?!{_OTHER_PLANE})[\xf0-\xf4]",
    "WORD_ENDS": "(?![0-9A-Za-z_\x80-\xff])",
}


def _patterns(has_backslashes: bool, has_ansi_quotes: bool, is_text: bool) -> re.Pattern[Any]:
    inner = r"(?:[^QUOTE\\]++|QUOTEQUOTE|\\.)*+" if has_backslashes else r"(?:[^QUOTE]++|QUOTEQUOTE)*+"
    single, double = (f"{quote}{inner.replace('QUOTE', quote)}{quote}" for quote in "'\"")
    name, string = (r'|"(?:[^"]++|"")++"', single) if has_ansi_quotes else ("", f"{single}|{double}")
    pattern = _PATTERN.replace("QUOTED_NAME", name).replace("STRING", string)
    for mark, meant in (_OF_TEXT if is_text else _OF_BYTES).items():
        pattern = pattern.replace(mark, meant)
    flags = re.VERBOSE | re.DOTALL
    return re.compile(pattern, flags) if is_text else re.compile(pattern.encode("latin-1"), flags)


_PATTERNS = {
    (one, two, three): _patterns(one, two, three)
    for one in (False, True)
    for two in (False, True)
    for three in (False, True)
}
# A backslash before % or _ stays: the two are special in LIKE.
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPES_OF_BYTES = {each.encode(): meant.encode() for each, meant in _ESCAPES.items()}
_ESCAPED = r"\\(.)|''|\"\""
# Text whose escapes are replaced at once: the places of all would take more memory than the text.
_PIECE = r"(?:\\.|''|\"\"|[^\\]){1,8192}+"


class Literal(NamedTuple):
    """A literal whose column is not known yet: its kind, and its text, sign included."""

    kind: str
    text: str


_NUMBERS: Final = {kind: number for number, kind in enumerate((WORD, NAME, STRING, HEX, NUMBER, SIGN, END))}
_KINDS: Final = tuple(_NUMBERS)


class Token:
    """One token: its kind, and where it begins and ends."""

    __slots__ = ("_has_backslashes", "_sql", "at", "end", "kind")

    def __init__(self, sql: Text, has_backslashes: bool, kind: str, at: int, end: int) -> None:
        self._sql = sql
        self._has_backslashes = has_backslashes
        self.kind = kind
        self.at = at
        self.end = end

    @property
    def word(self) -> str:
        """The word or sign; "" for any other token: a quoted name and a string are never keywords."""
        return self.text if self.kind in (WORD, SIGN) else ""

    @property
    def text(self) -> str:
        """The meaning: words in capitals, names and strings without quotes."""
        if self.kind == WORD:
            text = self.source
            return text.upper() if text.isascii() else text
        if self.kind not in (NAME, STRING):
            text = self.source
            return text if self.kind != HEX else text[2:-1] if text.endswith("'") else text[2:]
        sql = self._sql
        return self._unquoted(sql, _ESCAPES) if isinstance(sql, str) else _decoded(self.octets)

    @property
    def octets(self) -> bytes:
        """The meaning of a name or a string, of a statement in UTF-8."""
        assert not isinstance(self._sql, str)
        return self._unquoted(self._sql, _ESCAPES_OF_BYTES)

    @property
    def source(self) -> str:
        """What stands in the statement."""
        return _decoded(self._sql[self.at : self.end])

    def _unquoted(self, sql: Any, escapes: dict[AnyStr, AnyStr]) -> AnyStr:
        """Return the text between quotes. escapes: of the kind of text that the statement is."""
        empty = next(iter(escapes))[:0]
        made = type(empty)
        quote, at, end = made(sql[self.at : self.at + 1]), self.at + 1, self.end - 1
        is_text = isinstance(sql, str)
        if self.kind == NAME or not self._has_backslashes or _BACKSLASH[is_text].search(sql, at, end) is None:
            return made(sql[at:end]).replace(2 * quote, quote)
        found = []
        while at < end:
            piece = _PIECES[is_text].match(sql, at, end)
            assert piece is not None
            found.append(_ESCAPES_IN[is_text].sub(lambda each: _unescaped(each, quote, escapes), piece[0]))
            at = piece.end()
        return empty.join(found)


def _decoded(data: Text) -> str:
    return data if isinstance(data, str) else str(data, "utf-8", "surrogateescape")


def _of_both(pattern: str) -> dict[bool, re.Pattern[Any]]:
    """Return a pattern for text, and for bytes."""
    return {True: re.compile(pattern, re.DOTALL), False: re.compile(pattern.encode(), re.DOTALL)}


_BACKSLASH = _of_both(r"\\")
_PIECES = _of_both(_PIECE)
_ESCAPES_IN = _of_both(_ESCAPED)


def _unescaped(found: re.Match[AnyStr], quote: AnyStr, escapes: dict[AnyStr, AnyStr]) -> AnyStr:
    """Return the character for an escape, or for a doubled quote, in a string."""
    if found[1] is not None:
        return escapes.get(found[1], found[1])
    return quote if found[0] == 2 * quote else found[0]


class Tokens:
    """The tokens of a statement, END last: a sequence, which makes each when it is asked for."""

    def __init__(self, sql: Text, session: Session = PLAIN, most: int | None = None) -> None:
        """most: read no more tokens than this; END is missing then. Raises: Unsupported at text that is not a token."""
        if len(sql) > STATEMENT_CHARACTERS_MAX:
            raise Unsupported(f"a statement of {len(sql)} characters is longer than {STATEMENT_CHARACTERS_MAX}")
        self._sql = sql
        self._has_backslashes = session.has_backslashes
        self._numbers = array("I")  # of each token: its kind, its begin, its end
        self._last: tuple[int, Token] | None = None
        at, left = 0, len(sql) if most is None else most
        match = _PATTERNS[self._has_backslashes, session.has_ansi_quotes, isinstance(sql, str)].match
        # Stop at the first text that is no token, and at a comment without an end: otherwise each later quote or `/*`
        # would also be searched for its end through the rest of the statement.
        while at < len(sql) and left and (found := match(sql, at)) is not None:
            kind = found.lastgroup
            if kind == "unended":
                break
            begin, at = at, found.end()
            # A server executes the contents of a version comment, so they are read here, too.
            if kind not in ("space", "comment", "executed"):
                self._numbers.extend((_NUMBERS[str(kind)], begin, at))
                left -= 1
        if most is not None and not left:
            return
        if at < len(sql):
            shown, statement = _decoded(sql[at : at + 160])[:40], _decoded(sql[:800])[:200]
            raise Unsupported(f"SQL that is not understood at {shown!r}", statement=statement)
        self._numbers.extend((_NUMBERS[END], at, at))

    def __len__(self) -> int:
        return len(self._numbers) // 3

    def __getitem__(self, place: int) -> Token:
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        kind, at, end = self._numbers[3 * place : 3 * place + 3]
        found = Token(self._sql, self._has_backslashes, _KINDS[kind], at, end)
        self._last = place, found
        return found


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
        self.tokens = Tokens(sql, session)
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
            return self.readable(token.source)
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
