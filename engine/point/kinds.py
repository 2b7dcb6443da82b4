"""How kernels make and read the values of each column type: the one table of kinds."""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.limits import LOB_BYTES_MAX
from tidemark.engine.point import plan_layout as u
from tidemark.engine.schema import types as t
from tidemark.engine.schema.row_layout import WORD_BYTES
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar

if TYPE_CHECKING:
    from tidemark.engine.schema.types_base import ColumnType

_INTEGERS = {
    "b": u.INT_8,
    "h": u.INT_16,
    "i": u.INT_32,
    "q": u.INT_64,
    "B": u.UINT_8,
    "H": u.UINT_16,
    "I": u.UINT_32,
    "Q": u.UINT_64,
}
LONG_MAX = (1 << 63) - 1
_CALENDAR = {"Time": u.TIME, "DateTime": u.DATETIME, "Timestamp": u.TIMESTAMP}
_KIND_OF_CLASSES: dict[type, int] = {
    t.Boolean: u.BOOL,
    Char: u.PADDED_TEXT,
    Binary: u.PADDED_BYTES,
    VarChar: u.TEXT,
    LongText: u.TEXT,
    VarBinary: u.BYTES,
    LongBinary: u.BYTES,
}
_KEY_OF_CALENDAR: dict[str, tuple[int, type]] = {
    "Date": (u.KEY_DATE, datetime.date),
    "Time": (u.KEY_TIME, datetime.time),
    "DateTime": (u.KEY_DATETIME, datetime.datetime),
    "Timestamp": (u.KEY_TIMESTAMP, datetime.datetime),
}
_VALUE_OF_KEYS = {u.KEY_FLOAT: u.VALUE_FLOAT, u.KEY_SINGLE: u.VALUE_SINGLE}
_KEY_OF_CLASSES: dict[type, int] = {
    Char: u.KEY_PADDED_TEXT,
    Binary: u.KEY_PADDED_BYTES,
    VarChar: u.KEY_TEXT,
    VarBinary: u.KEY_BYTES,
}


def value_kind(kind: ColumnType, is_key: bool) -> tuple[int, int]:
    """Return how a kernel makes values of a type: (kind, size in bytes, 0 for any). is_key: as a piece of a canonical
    key, where integers take a word.
    """
    code = kind.key_code if is_key else kind.code
    if isinstance(kind, t.Integer):
        return _INTEGERS[code], 8 if is_key else kind.width
    if isinstance(kind, t.Floating):
        return (u.FLOAT_32 if kind.bits == 32 else u.FLOAT_64), kind.width
    if isinstance(kind, t.Decimal):
        return (u.DECIMAL if kind.width == WORD_BYTES else u.WIDE_DECIMAL), kind.width
    if isinstance(kind, t.Enum):
        return (u.ENUM_64, 8) if is_key else (u.ENUM_16, 2)
    if isinstance(kind, Calendar):
        if kind.name == "Date":
            return (u.DATE_64, 8) if is_key else (u.DATE_32, 4)
        return _CALENDAR[kind.name], 8
    return _KIND_OF_CLASSES[type(kind)], kind.width


def value_detail(kind: ColumnType) -> Any:
    """Return what kernels need to make values of a type: the members of an Enum, the digits of a Decimal after the
    point, else 0.
    """
    if isinstance(kind, t.Enum):
        return kind.members
    return kind.scale if isinstance(kind, t.Decimal) else 0


def key_words(kind: ColumnType) -> list[int]:
    """Return the words of a column in the plan of a key. Addresses in them are those of classes, and of what the type
    keeps alive.
    """
    if isinstance(kind, t.Integer):
        found = u.KEY_INT if kind.maximum <= LONG_MAX else u.KEY_UNSIGNED
        return [found, 8, kind.minimum, min(kind.maximum, LONG_MAX), 0]
    if isinstance(kind, t.Floating):
        return [u.KEY_SINGLE if kind.bits == 32 else u.KEY_FLOAT, 8, -kind.integer_max, kind.integer_max, 0]
    if isinstance(kind, t.Boolean):
        return [u.KEY_BOOL, 1, 0, 0, 0]
    if isinstance(kind, t.Decimal):
        found = u.KEY_DECIMAL if kind.width == WORD_BYTES else u.KEY_WIDE_DECIMAL
        return [found, kind.width, kind.scale, kind.precision, id(decimal.Decimal)]
    if isinstance(kind, t.Enum):
        return [u.KEY_ENUM, 8, 0, 0, id(kind.places)]
    if isinstance(kind, Calendar):
        found, known = _KEY_OF_CALENDAR[kind.name]
        return [found, 8, id(datetime.UTC), 0, id(known)]
    length: int = kind.length  # type: ignore[attr-defined]
    return [_KEY_OF_CLASSES[type(kind)], kind.width or kind.bytes_max, length, 0, 0]


def read_words(kind: ColumnType) -> list[int]:
    """Return how kernels read values of a type, as `key_words` does."""
    if isinstance(kind, (LongText, LongBinary)):
        return [u.KEY_TEXT if isinstance(kind, LongText) else u.KEY_BYTES, 0, LOB_BYTES_MAX, 0, 0]
    found = key_words(kind)
    return [_VALUE_OF_KEYS.get(found[0], found[0]), kind.width, *found[2:]]
