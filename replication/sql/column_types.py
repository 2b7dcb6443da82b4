"""Converts column types to MySQL's words and back, and SQL literals to values of columns.

Bool is TINYINT(1), like MySQL's own BOOLEAN. Text compares in binary order here, so on a server it is utf8mb4_bin. Text
and Blob are LONGTEXT and LONGBLOB there; a server's shorter types become Text or Blob here, too. Timestamp is DATETIME,
as in binlogs (MySQL's TIMESTAMP ends in 2106), except in the exact form that only Tidemark reads.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal as PythonDecimal
from decimal import InvalidOperation
from typing import Any

from tidemark.engine.base.errors import SchemaInvalid, Unsupported
from tidemark.engine.schema import types as t
from tidemark.engine.schema.partition import MAXVALUE
from tidemark.engine.schema.types import Decimal, Floating, Integer
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, VarBinary, VarChar
from tidemark.replication.sql.tokens import BITS, HEX, MAXVALUE_KIND, NULL, NUMBER, STRING, Literal

UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

_WORDS: dict[ColumnType, str] = {
    t.Int8: "TINYINT",
    t.Int16: "SMALLINT",
    t.Int32: "INT",
    t.Int64: "BIGINT",
    t.UInt8: "TINYINT UNSIGNED",
    t.UInt16: "SMALLINT UNSIGNED",
    t.UInt32: "INT UNSIGNED",
    t.UInt64: "BIGINT UNSIGNED",
    t.Float32: "FLOAT",
    t.Float64: "DOUBLE",
    t.Bool: "TINYINT(1)",
    t.Text: f"LONGTEXT {UTF8}",
    t.Blob: "LONGBLOB",
    t.Date: "DATE",
    t.Time: "TIME(6)",
    t.DateTime: "DATETIME(6)",
    t.Timestamp: "DATETIME(6)",
}
_INTEGERS = {
    "TINYINT": (t.Int8, t.UInt8),
    "SMALLINT": (t.Int16, t.UInt16),
    "MEDIUMINT": (t.Int32, t.UInt32),
    "INT": (t.Int32, t.UInt32),
    "INTEGER": (t.Int32, t.UInt32),
    "BIGINT": (t.Int64, t.UInt64),
}
GEOMETRIES = (
    *("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON"),
    *("GEOMETRYCOLLECTION", "GEOMCOLLECTION"),
)
_PLAIN: dict[str, ColumnType] = {
    "BOOL": t.Bool,
    "BOOLEAN": t.Bool,
    "FLOAT": t.Float32,
    "DOUBLE": t.Float64,
    "REAL": t.Float64,
    "DATE": t.Date,
    "TIME": t.Time,
    "DATETIME": t.DateTime,
    "TIMESTAMP": t.Timestamp,
    **dict.fromkeys(["TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "JSON"], t.Text),
    **dict.fromkeys(["TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"], t.Blob),
    "YEAR": t.UInt16,
    # Types in which replication/binlog/types.py reads the values: the bits of a SET, SRID and WKB of a geometry.
    **dict.fromkeys(["SET", "BIT"], t.UInt64),
    **dict.fromkeys(GEOMETRIES, t.Blob),
}
_SIZED: dict[str, Callable[[int], ColumnType]] = {
    "CHAR": Char,
    "CHARACTER": Char,
    "VARCHAR": VarChar,
    "BINARY": Binary,
    "VARBINARY": VarBinary,
}
DECIMALS = ("DECIMAL", "DEC", "NUMERIC", "FIXED")
KNOWN = frozenset({*_INTEGERS, *_PLAIN, *_SIZED, *DECIMALS, "ENUM"})


def quoted(text: str) -> str:
    """Return an SQL string. It ends at its last quote in any sql_mode; with NO_BACKSLASH_ESCAPES a server keeps the
    doubled backslashes.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def to_sql(kind: ColumnType, *, is_exact: bool = False) -> str:
    """Return a column type in MySQL's words. is_exact: in words from which `from_sql` returns the same type."""
    if is_exact and kind == t.Timestamp:
        return "TIMESTAMP(6)"
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, t.Decimal):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if isinstance(kind, t.Enum):
        return f"ENUM({','.join(quoted(each) for each in kind.members)}) {UTF8}"
    if isinstance(kind, (Char, VarChar)):
        return f"{type(kind).__name__.upper()}({kind.length}) {UTF8}"
    if isinstance(kind, (Binary, VarBinary)):
        return f"{type(kind).__name__.upper()}({kind.length})"
    raise SchemaInvalid(f"column type {kind!r} has no twin in MySQL; report this")


def from_sql(word: str, numbers: tuple[int, ...], members: tuple[str, ...], is_unsigned: bool) -> ColumnType:
    """Return the column type for a word of MySQL, the numbers or members in parentheses after it, and UNSIGNED.

    Raises: Unsupported; SchemaInvalid for a size that is invalid here.
    """
    if word == "TINYINT" and numbers == (1,) and not is_unsigned:
        return t.Bool
    if word in _INTEGERS:
        return _INTEGERS[word][is_unsigned]
    if word == "FLOAT" and numbers[:1] > (24,):
        return t.Float64
    if word in _PLAIN:
        return _PLAIN[word]
    if word in _SIZED:
        return _SIZED[word](numbers[0] if numbers else 1)
    if word in DECIMALS:
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        return t.Decimal(precision, scale)
    if word == "ENUM":
        return t.Enum(*members)
    raise Unsupported(f"columns of type {word} are not replicated; leave the table out with a filter", type=word)


def value_of(column_type: ColumnType, literal: Literal) -> Any:
    """Return the Python value of a literal in a column of this type. Raises: Unsupported if it has none."""
    if literal.kind == NULL:
        return None
    if literal.kind == MAXVALUE_KIND:
        return MAXVALUE
    try:
        return _value(column_type, literal)
    except (ValueError, InvalidOperation, OverflowError):
        raise Unsupported(f"{literal.text[:40]!r} is not a value of a column of type {column_type!r}") from None


def _value(kind: ColumnType, literal: Literal) -> Any:
    text = bytes.fromhex(literal.text).decode() if literal.kind == HEX and not _is_octets(kind) else literal.text
    if repr(kind) == "Bool":
        return bool(int(text))
    if isinstance(kind, Integer):
        return int(text)
    if isinstance(kind, Floating):
        return float(text)
    if isinstance(kind, Decimal):
        return PythonDecimal(text)
    if isinstance(kind, Calendar):
        return _calendar(kind.name, text)
    if _is_octets(kind):
        return bytes.fromhex(text) if literal.kind == HEX else text.encode()
    if literal.kind not in (STRING, HEX, NUMBER, BITS):
        raise ValueError(text)
    return text


def _is_octets(kind: ColumnType) -> bool:
    return isinstance(kind, (Binary, VarBinary, LongBinary))


def _calendar(name: str, text: str) -> Any:
    if name == "Date":
        return date.fromisoformat(text[:10])
    if name == "Time":
        return time.fromisoformat(text)
    return datetime.fromisoformat(text + "+00:00" if name == "Timestamp" else text)
