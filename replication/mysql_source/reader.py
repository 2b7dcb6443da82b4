"""Reads a client's statement token by token: values, variables, functions, and conditions on columns.

Whatever is not read here is refused by its first words (1235). Tokens and the depth of parentheses are bounded, so a
statement cannot take more stack than a short one. A string stays in UTF-8, as it came: as text it could take four times
its memory. Names, and strings that are compared, are text, and have a limit.
"""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.engine.base.errors import Unsupported, ValueOutOfRange
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.session import plain_text, size_of, text_of
from tidemark.replication.mysql_source.variables import (
    STATEMENT_BYTES_MAX,
    offset_of,
    sql_mode_of,
    variable_value,
)
from tidemark.replication.settings.match import matches
from tidemark.replication.sql.session import Session as SqlSession
from tidemark.replication.sql.tokens import END, NULL, NUMBER, STRING, WORD, Token, TokenReader, Tokens

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.packets import Buffer
    from tidemark.replication.mysql_source.session import Session, Value

TOKENS_MAX = 20_000
DEPTH_MAX = 40
PATTERN_CHARACTERS_MAX = 256  # of LIKE, which is compared with each name
COMPARISONS_MAX = 256  # of a condition, which each row meets
ARGUMENT_BYTES_MAX = 2 << 20  # of all functions of a statement
NAME_BYTES_MAX = 1 << 10  # 256 characters, as many as an alias has at a server
TEXT_BYTES_MAX = 2 << 20  # of all names and compared strings, which a statement has as text
_TEXT_BYTES = 80  # of a text, beside its characters
_CHARACTER_BYTES = 4  # in UTF-8, and as text
_FILE_BYTES_MAX = 512
_PIECE_BYTES = 64 << 10
DIGITS_MAX = 65  # of a number, as in DECIMAL
_FIRST_WORDS = 4
_NEAR_CHARACTERS = 60
_LITERAL_WORDS = ("NULL", "TRUE", "FALSE")
_SHOWN_BEGINNINGS = ("SELECT", "SHOW")  # of statements that have no secrets
SCOPES: Final = ("GLOBAL", "SESSION", "LOCAL")


class StatementReader(TokenReader):
    """The tokens of a statement of a session. Every failure of its methods is a Refused or an Unsupported, which
    `refusal` turns into a Refused.
    """

    def __init__(self, statement: Buffer, session: Session) -> None:
        self.connection = session
        self.statement = statement
        self.database = session.database
        self.session = SqlSession(sql_mode=sql_mode_of(session))
        self.at = 0
        self._depth = self._work = self._comparisons = self._text_bytes = 0
        self.tokens = Tokens(statement, self.session, TOKENS_MAX)
        if self.tokens[-1].kind != END:
            raise Refused(p.ER_NOT_SUPPORTED, f"A statement has at most {TOKENS_MAX} tokens")

    def refusal(self) -> Refused:
        """Return the error for a statement that has no answer."""
        return refusal_of(self.connection, self.statement, self.tokens, self.next)

    def wrong(self) -> Unsupported:
        return Unsupported("a statement that has no answer")

    def source(self, start: int, end: int) -> bytes:
        """Return the statement's own text from one token to the one before another."""
        return bytes(self.statement[self.tokens[start].at : self.tokens[end - 1].end])

    # --- names and strings ------------------------------------------------------------------------
    def name(self) -> str:
        self._check_short(self.next)
        return super().name()

    def string(self) -> str:
        self._check_short(self.next)
        return super().string()

    def octets(self) -> bytes:
        """Take a string, in UTF-8. Raises: Unsupported if it is no text."""
        found = self.take().octets
        if not _is_utf8(found):
            raise self.wrong()
        return found

    def _check_short(self, token: Token) -> None:
        """Raises: Unsupported if a name is longer than at a server, or if there are too many."""
        if token.end - token.at > NAME_BYTES_MAX:
            raise self.wrong()
        self._count_text(token.end - token.at)

    def _count_text(self, size: int) -> None:
        """Count a text of this many bytes before it is made. Raises: Unsupported."""
        self._text_bytes += _TEXT_BYTES + _CHARACTER_BYTES * size
        if self._text_bytes > TEXT_BYTES_MAX:
            raise self.wrong()

    def qualified(self) -> list[str]:
        """Take a name with those before it, divided by points."""
        names = [self.name()]
        while self.has("."):
            names.append(self.name())
        return names

    # --- values -----------------------------------------------------------------------------------
    def value(self) -> Value:
        """Take an expression and return its value. Raises: Refused, Unsupported."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.wrong()
        found = self._primary()
        self._depth -= 1
        return found

    def _primary(self) -> Value:
        token = self.next
        if self.has("("):
            found = self.value()
            self.must(")")
            return found
        if token.word == "@":
            return self._variable()
        if token.kind == WORD:
            self._check_short(token)
        if token.kind == WORD and token.text not in _LITERAL_WORDS:
            return self._function()
        if token.kind == STRING:
            return self.octets()
        literal = self.literal()
        if literal.kind == NULL:
            return None
        if literal.kind == NUMBER:
            if len(literal.text) > DIGITS_MAX:
                raise self.wrong()
            if literal.text.lstrip("-").isdigit():
                return int(literal.text)
            if "e" not in literal.text.lower():
                return Decimal(literal.text)
            if isfinite(float(literal.text)):
                return float(literal.text)
            raise self.wrong()
        raise self.wrong()

    def _variable(self) -> Value:
        self.must("@")
        if not self.has("@"):
            return self.connection.variables.get("@" + self.user_variable())
        scope = self.has_one(*SCOPES)
        if scope is not None:
            self.must(".")
        return variable_value(self.connection, self.name(), is_global=scope == "GLOBAL")

    def user_variable(self) -> str:
        """Take the name of a user variable after its @, in small letters."""
        if self.next.kind == STRING:
            return self.string().lower()
        return ".".join(self.qualified()).lower()

    def _function(self) -> Value:
        word = self.take().text
        if word in _WITHOUT_PARENTHESES and self.next.word != "(":
            return _FUNCTIONS[word].call(self.connection)
        function = _FUNCTIONS.get(word)
        if function is None or self.next.word != "(":
            self.at -= 1
            raise self.wrong()
        given = self.in_parentheses(self.value)
        if not function.fewest <= len(given) <= function.most:
            raise self.wrong()
        self._work += sum(map(size_of, given))
        if self._work > ARGUMENT_BYTES_MAX:
            raise Refused(p.ER_OUT_OF_MEMORY, f"Arguments of functions have at most {ARGUMENT_BYTES_MAX} bytes in all")
        return function.call(self.connection, *given)

    # --- conditions -------------------------------------------------------------------------------
    def condition(self, names: Mapping[str, int], exact: frozenset[str]) -> Condition:
        """Take a condition on columns. names: their places by names in capitals; exact: those whose values are compared
        with their case. Raises: Refused, Unsupported.
        """
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.wrong()
        either = [self._all(names, exact)]
        while self.has("OR"):
            either.append(self._all(names, exact))
        self._depth -= 1
        return (lambda row: any(each(row) for each in either)) if len(either) > 1 else either[0]

    def _all(self, names: Mapping[str, int], exact: frozenset[str]) -> Condition:
        found = [self._comparison(names, exact)]
        while self.has("AND"):
            found.append(self._comparison(names, exact))
        return (lambda row: all(each(row) for each in found)) if len(found) > 1 else found[0]

    def _comparison(self, names: Mapping[str, int], exact: frozenset[str]) -> Condition:
        self._comparisons += 1
        if self._comparisons > COMPARISONS_MAX:
            raise self.wrong()
        if self.has("("):
            inner = self.condition(names, exact)
            self.must(")")
            return inner
        name = self.qualified()[-1].upper()
        if name not in names:
            raise Refused(p.ER_UNKNOWN_COLUMN, f"Unknown column '{name}' in 'where clause'")
        place, is_exact = names[name], name in exact
        if self.has("IS"):
            is_null = not self.has("NOT")
            self.must("NULL")
            return lambda row: (row[place] is None) == is_null
        is_wanted = not self.has("NOT")
        if self.next.word == "LIKE":
            is_like = self.pattern(place, is_exact)
            return lambda row: row[place] is not None and is_like(row) == is_wanted
        if self.has("IN"):
            values = self.in_parentheses(self.value)
        elif not is_wanted:
            raise self.wrong()
        elif self.has("="):
            values = [self.value()]
        elif self.has("<", ">") or self.has("!", "="):
            is_wanted, values = False, [self.value()]
        else:
            raise self.wrong()
        for each in values:
            self._count_text(size_of(each))
        folded = {_folded(each, is_exact) for each in values if each is not None}
        return lambda row: row[place] is not None and (_folded(row[place], is_exact) in folded) == is_wanted

    def pattern_ahead(self) -> str:
        """Return the pattern of LIKE if that comes next, "" without one. Raises: Unsupported if it is too long."""
        if self.next.word != "LIKE":
            return ""
        found = self.tokens[self.at + 1]
        if found.end - found.at > _CHARACTER_BYTES * PATTERN_CHARACTERS_MAX:
            raise self.wrong()
        return found.text

    def pattern(self, place: int, is_exact: bool) -> Condition:
        """Take LIKE and a pattern for the column at a place. Raises: Refused, Unsupported."""
        self.must("LIKE")
        given = self.value()
        pattern = _plain(given) if size_of(given) <= _CHARACTER_BYTES * PATTERN_CHARACTERS_MAX else None
        if pattern is None or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise self.wrong()
        return lambda row: row[place] is not None and matches(pattern, _plain(row[place]), is_exact)


Condition = Callable[["Sequence[Value]"], bool]


def _plain(value: Value) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else "" if value is None else plain_text(value)


def _is_utf8(data: bytes) -> bool:
    """Whether bytes are text, which is made in pieces."""
    if data.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for at in range(0, len(data), _PIECE_BYTES):
            decoder.decode(view[at : at + _PIECE_BYTES], at + _PIECE_BYTES >= len(data))
    except UnicodeDecodeError:
        return False
    return True


def _folded(value: Value, is_exact: bool) -> str:
    text = _plain(value)
    return text if is_exact else text.casefold()


def refusal_of(session: Session, statement: Buffer, found: Tokens | None, near: Token | None = None) -> Refused:
    """Return the error for a statement that has no answer, with its first words. A SELECT or SHOW, which has no
    secrets, is shown from where it is not understood.
    """
    words = []
    for place in range(0 if found is None else min(_FIRST_WORDS, len(found))):
        assert found is not None
        if found[place].kind != WORD:
            break
        words.append(found[place].text[:_NEAR_CHARACTERS])
    server = "MariaDB" if session.flavor is MARIADB else "MySQL"
    text = f"This version of {server} doesn't yet support '{' '.join(words)}'"
    if near is not None and words and words[0] in _SHOWN_BEGINNINGS:
        shown = bytes(statement[near.at : near.at + _CHARACTER_BYTES * _NEAR_CHARACTERS])
        text += f" near '{shown.decode('utf-8', 'surrogateescape')[:_NEAR_CHARACTERS]}'"
    return Refused(p.ER_NOT_SUPPORTED, text)


# --- functions ------------------------------------------------------------------------------------
class Function(NamedTuple):
    """A function, and how many arguments it takes."""

    call: Callable[..., Value]
    fewest: int = 0
    most: int = 0


def _local(session: Session, digits: int = 0) -> datetime:
    zone = variable_value(session, "time_zone")
    return _cut(session.now() + offset_of(zone), digits)


def _utc(session: Session, digits: int = 0) -> datetime:
    return _cut(session.now(), digits)


def _cut(moment: datetime, digits: int) -> datetime:
    step = 10 ** (6 - digits) if isinstance(digits, int) and 0 <= digits <= 6 else 1_000_000
    return moment.replace(microsecond=moment.microsecond // step * step)


def _difference(session: Session, one: Value, other: Value) -> Value:
    if isinstance(one, datetime) and isinstance(other, datetime):
        return one - other
    if one is None or other is None:
        return None
    raise Unsupported("TIMEDIFF of texts")


def _seconds(session: Session, value: Value) -> Value:
    return int(value.total_seconds()) if isinstance(value, timedelta) else None


def gtids_of(value: Value) -> GtidSet:
    """Return the set of a text. Raises: Refused."""
    try:
        return GtidSet.parse(text_of(value) or b"")
    except ValueOutOfRange as error:
        raise Refused(p.ER_MALFORMED_GTIDS, error.message) from None


def _subtract(session: Session, one: Value, other: Value) -> Value:
    return None if one is None or other is None else str(gtids_of(one) - gtids_of(other))


def _subset(session: Session, one: Value, other: Value) -> Value:
    return None if one is None or other is None else int(gtids_of(one) <= gtids_of(other))


def _gtid_pos(session: Session, name: Value, position: Value) -> Value:
    """Return MariaDB's GTIDs of a position; NULL if it is none of this binlog."""
    if session.flavor is not MARIADB:
        raise Unsupported("a function of MariaDB")
    file = _plain(name) if size_of(name) <= _FILE_BYTES_MAX else ""
    end_of_file = dict(session.served.files()).get(file)
    if end_of_file is None or not isinstance(position, int) or position > end_of_file:
        return None
    gtids = session.served.gtids
    return "" if gtids is None else gtids.domain_position(Position(file, position))


def _concatenated(session: Session, *values: Value) -> Value:
    """Return texts as one; NULL if it would be longer than a statement, as at a server."""
    if None in values or sum(map(size_of, values)) > STATEMENT_BYTES_MAX:
        return None
    return b"".join(text_of(each) or b"" for each in values)


_MANY = 16
_FUNCTIONS: Final = {
    "VERSION": Function(lambda session: session.flavor.version),
    "UNIX_TIMESTAMP": Function(lambda session: session.served.clock.wall_us() // 1_000_000),
    **dict.fromkeys(("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP"), Function(_local, 0, 1)),
    "UTC_TIMESTAMP": Function(_utc, 0, 1),
    "TIMEDIFF": Function(_difference, 2, 2),
    "TIME_TO_SEC": Function(_seconds, 1, 1),
    **dict.fromkeys(("DATABASE", "SCHEMA"), Function(lambda session: session.database or None)),
    "CONNECTION_ID": Function(lambda session: session.connection_id),
    **dict.fromkeys(
        ("USER", "SESSION_USER", "SYSTEM_USER"), Function(lambda session: f"{session.user.name}@{session.host}")
    ),
    "CURRENT_USER": Function(lambda session: f"{session.user.name}@%"),
    "GTID_SUBTRACT": Function(_subtract, 2, 2),
    "GTID_SUBSET": Function(_subset, 2, 2),
    "BINLOG_GTID_POS": Function(_gtid_pos, 2, 2),
    "CONCAT": Function(_concatenated, 1, _MANY),
    "UUID": Function(lambda session: str(uuid.UUID(bytes=session.served.clock.random_bytes(16), version=4))),
}
_WITHOUT_PARENTHESES: Final = ("CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "UTC_TIMESTAMP", "CURRENT_USER")
