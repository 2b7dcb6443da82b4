"""Literals of SQL as values of columns."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal as PythonDecimal
from decimal import InvalidOperation
from typing import Any, NamedTuple

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.partition import MAXVALUE
from tidemark.engine.schema.types import Decimal, Floating, Integer
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, LongBinary, VarBinary
from tidemark.replication.sql.tokens import HEX, NUMBER, STRING

NULL, MOST = "null", "maxvalue"


class Literal(NamedTuple):
    """A literal whose column is not known yet: its kind, and its text, sign included."""

    kind: str
    text: str


def value_of(column_type: ColumnType, literal: Literal) -> Any:
    """Return the Python value of a literal in a column of this type. Raises: Unsupported if it has none."""
    if literal.kind == NULL:
        return None
    if literal.kind == MOST:
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
    if literal.kind not in (STRING, HEX, NUMBER):
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
