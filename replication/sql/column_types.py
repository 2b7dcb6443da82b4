"""What SQL needs of each column type: its words at MySQL, literals read and written, and the types of a server that
become it.

Bool is TINYINT(1), like MySQL's own BOOLEAN. Text compares in binary order here, so on a server it is utf8mb4_bin. Text
and Blob are LONGTEXT and LONGBLOB there. Timestamp is DATETIME, as in binlogs (MySQL's TIMESTAMP ends in 2106), except
in the exact form that only Tidemark reads.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from math import copysign, isfinite
from typing import Any, NamedTuple

from tidemark.engine import types as t
from tidemark.engine.base.errors import SchemaInvalid, Unsupported, ValueOutOfRange
from tidemark.engine.schema.partition import MAXVALUE
from tidemark.engine.types import ColumnType
from tidemark.replication.sql.server_types import INTEGER_BITS, ServerType
from tidemark.replication.sql.tokens import BITS, HEX, MAXVALUE_KIND, NULL, NUMBER, STRING, Literal

UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_INTEGER_WORDS = {bits: word for word, bits in INTEGER_BITS.items()}


class SqlType(NamedTuple):
    """What SQL needs of a class of column types. possible: see `possible_types`. read: the value of a literal (raises
    ValueError and the like); write: the literal of a value. divides: whether COLUMNS partitions may divide a table by
    it. words: of a type at MySQL, if they are not those of the first possible type; exact: those from which `from_sql`
    returns the same type, if they are others. check: the function that a server asks of each value, in a CHECK.
    """

    possible: Callable[[Any], tuple[ServerType, ...]]
    read: Callable[[Literal], Any]
    write: Callable[[Any], str]
    divides: bool = False
    words: str | Callable[[Any], str] = ""
    exact: str = ""
    check: str = ""


def quoted(text: str) -> str:
    """Return an SQL string. It ends at its last quote in any sql_mode; with NO_BACKSLASH_ESCAPES a server keeps the
    doubled backslashes.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


# --- words and types of a server ------------------------------------------------------------------
def _integers(kind: t.Integer) -> tuple[ServerType, ...]:
    others = {16: [ServerType("YEAR")], 64: [ServerType("BIT", (64,))]} if not kind.signed else {}
    return (ServerType(_INTEGER_WORDS[kind.bits], is_unsigned=not kind.signed), *others.get(kind.bits, []))


def _floats(kind: t.Floating) -> tuple[ServerType, ...]:
    word = "FLOAT" if kind.bits == 32 else "DOUBLE"
    return ServerType(word), ServerType(word, (20, 0))


def _decimals(kind: t.Decimal) -> tuple[ServerType, ...]:
    return (ServerType("DECIMAL", (kind.precision, kind.scale)),)


def _sized(kind: t.Char | t.VarChar | t.Binary | t.VarBinary) -> tuple[ServerType, ...]:
    return (ServerType(type(kind).__name__.upper(), (kind.length,)),)


def _of_any(*types: ServerType) -> Callable[[ColumnType], tuple[ServerType, ...]]:
    return lambda kind: types


def _of_digits(word: str) -> Callable[[ColumnType], tuple[ServerType, ...]]:
    """Return the function for a type with up to six digits of a second's fraction."""
    return _of_any(ServerType(word, (0,)), ServerType(word, (6,)))


# --- literals -------------------------------------------------------------------------------------
def _text(literal: Literal) -> str:
    return bytes.fromhex(literal.text).decode() if literal.kind == HEX else literal.text


def _characters(literal: Literal) -> str:
    text = _text(literal)
    if literal.kind not in (STRING, HEX, NUMBER, BITS):
        raise ValueError(text)
    return text


def _octets(literal: Literal) -> bytes:
    return bytes.fromhex(literal.text) if literal.kind == HEX else literal.text.encode()


def _hexadecimal(value: bytes) -> str:
    return "x'" + value.hex() + "'"


def _float_literal(value: float) -> str:
    if not isfinite(value):
        return quoted(repr(value))
    # A server reads -0.0 as a decimal, which has no sign of zero.
    return repr(value) if value or copysign(1, value) > 0 else "-0e0"


def _day_or_clock(value: date | time) -> str:
    return quoted(value.isoformat())


def _moment(value: datetime) -> str:
    return quoted(value.replace(tzinfo=None).isoformat(" "))


def _utf8(kind: t.Char | t.VarChar) -> str:
    return f"{_sized(kind)[0].text} {UTF8}"


_TEXT = SqlType(_sized, _characters, quoted, divides=True, words=_utf8)
_BYTES = SqlType(_sized, _octets, _hexadecimal, divides=True)
SQL_TYPES: dict[type[ColumnType], SqlType] = {
    t.Integer: SqlType(_integers, lambda each: int(_text(each)), str, divides=True),
    t.Boolean: SqlType(
        _of_any(), lambda each: bool(int(_text(each))), lambda value: str(int(value)), words="TINYINT(1)"
    ),
    t.Floating: SqlType(_floats, lambda each: float(_text(each)), _float_literal),
    t.Decimal: SqlType(_decimals, lambda each: Decimal(_text(each)), lambda value: format(value, "f")),
    t.Enum: SqlType(
        lambda kind: (ServerType("ENUM", members=kind.members),),
        _characters,
        quoted,
        words=lambda kind: f"ENUM({','.join(quoted(each) for each in kind.members)}) {UTF8}",
    ),
    t.Char: _TEXT,
    t.VarChar: _TEXT,
    t.LongText: SqlType(_of_any(ServerType("TINYTEXT")), _characters, quoted, words=f"LONGTEXT {UTF8}"),
    t.Binary: _BYTES,
    t.VarBinary: _BYTES,
    t.LongBinary: SqlType(_of_any(ServerType("TINYBLOB")), _octets, _hexadecimal, words="LONGBLOB"),
    t.Uuid: SqlType(
        _of_any(),
        lambda each: t.UUID.loaded(t.UUID.stored(_octets(each) if len(_octets(each)) == t.UUID.width else _text(each))),
        lambda value: _hexadecimal(value.bytes),
        divides=True,
        words="BINARY(16)",
        exact="UUID",
    ),
    # Binlogs bring the text: a server's own JSON takes another form there.
    t.Document: SqlType(
        _of_any(),
        lambda each: t.JSON.loaded(t.JSON.stored_of_text(_characters(each))),
        lambda value: quoted(t.JSON.input_value(t.JSON.stored(value))),
        words=f"LONGTEXT {UTF8}",
        exact="JSON",
        check="JSON_VALID",
    ),
    t.CalendarDate: SqlType(
        _of_any(ServerType("DATE")), lambda each: date.fromisoformat(_text(each)[:10]), _day_or_clock, divides=True
    ),
    t.TimeOfDay: SqlType(
        _of_digits("TIME"),
        lambda each: time.fromisoformat(_text(each)),
        _day_or_clock,
        divides=True,
        words="TIME(6)",
    ),
    t.LocalDateTime: SqlType(
        _of_digits("DATETIME"),
        lambda each: datetime.fromisoformat(_text(each)),
        _moment,
        divides=True,
        words="DATETIME(6)",
    ),
    t.Instant: SqlType(
        _of_digits("TIMESTAMP"),
        lambda each: datetime.fromisoformat(_text(each) + "+00:00"),
        _moment,
        words="DATETIME(6)",
        exact="TIMESTAMP(6)",
    ),
}
_WRITERS = {kind.python: row.write for kind, row in SQL_TYPES.items()}


def to_sql(kind: ColumnType, *, is_exact: bool = False) -> str:
    """Return a column type in MySQL's words. is_exact: in words from which `from_sql` returns the same type."""
    row = SQL_TYPES.get(type(kind))
    if row is None:
        raise SchemaInvalid(f"column type {kind!r} has no twin in MySQL; report this")
    if is_exact and row.exact:
        return row.exact
    return row.words(kind) if callable(row.words) else row.words or row.possible(kind)[0].text


def possible_types(kind: ColumnType) -> tuple[ServerType, ...]:
    """Return types of a server, at the extremes of all those that are this type of the store. A literal that is the
    same value in all of them is that value in the column. () if that cannot be said.
    """
    return SQL_TYPES[type(kind)].possible(kind)


def value_of(column_type: ColumnType, literal: Literal) -> Any:
    """Return the Python value of a literal in a column of this type. Raises: Unsupported if it has none."""
    if literal.kind == NULL:
        return None
    if literal.kind == MAXVALUE_KIND:
        return MAXVALUE
    try:
        return SQL_TYPES[type(column_type)].read(literal)
    except (ValueError, InvalidOperation, OverflowError, ValueOutOfRange):
        raise Unsupported(f"{literal.text[:40]!r} is not a value of a column of type {column_type!r}") from None


def literal_of(value: Any, kind: ColumnType | None = None) -> str:
    """Return a Python value of a column as an SQL literal. kind: the column's type, if it is known."""
    if value is None:
        return "NULL"
    if value is MAXVALUE:
        return "MAXVALUE"
    if kind is not None:
        return SQL_TYPES[type(kind)].write(value)
    return next(_WRITERS[each] for each in type(value).__mro__ if each in _WRITERS)(value)
