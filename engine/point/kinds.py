"""How kernels make and read the values of each column type: the one table of kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.limits import LOB_BYTES_MAX
from tidemark.engine.point import plan_layout as u
from tidemark.engine.schema import types as t
from tidemark.engine.schema.row_layout import WORD_BYTES
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar

if TYPE_CHECKING:
    from tidemark.engine.schema.types_base import ColumnType

MEMBERS_MAX = 1_000  # of an Enum whose members are in a plan
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
_KEY_OF_CLASSES: dict[type, int] = {
    Char: u.KEY_PADDED_TEXT,
    Binary: u.KEY_PADDED_BYTES,
    VarChar: u.KEY_TEXT,
    VarBinary: u.KEY_BYTES,
}


def is_converted(kind: ColumnType) -> bool:
    """Whether kernels make values of a type as stored, and Python code converts them. A plan has no list of thousands
    of members.
    """
    return isinstance(kind, t.Decimal) or (isinstance(kind, t.Enum) and len(kind.members) > MEMBERS_MAX)


def value_kind(kind: ColumnType, is_key: bool) -> tuple[int, int]:
    """Return how a kernel makes values of a type: (kind, size in bytes, 0 for any). is_key: as a piece of a canonical
    key, where integers take a word. Values of a type that `is_converted` are made as stored.
    """
    code = kind.key_code if is_key else kind.code
    if isinstance(kind, t.Integer):
        return _INTEGERS[code], 8 if is_key else kind.width
    if isinstance(kind, t.Floating):
        return (u.FLOAT_32 if kind.bits == 32 else u.FLOAT_64), kind.width
    if isinstance(kind, t.Decimal):
        return (u.INT_64 if kind.width == WORD_BYTES else u.WIDE), kind.width
    if isinstance(kind, t.Enum) and is_converted(kind):
        return (u.INT_64, 8) if is_key else (u.UINT_16, 2)
    if isinstance(kind, t.Enum):
        return (u.ENUM_64, 8) if is_key else (u.ENUM_16, 2)
    if isinstance(kind, Calendar):
        if kind.name == "Date":
            return (u.DATE_64, 8) if is_key else (u.DATE_32, 4)
        return _CALENDAR[kind.name], 8
    return _KIND_OF_CLASSES[type(kind)], kind.width


def key_words(kind: ColumnType) -> list[int] | None:
    """Return the words of a column in the plan of a key, None if the general path reads its values."""
    if isinstance(kind, t.Integer):
        return [u.KEY_INT, 8, kind.minimum, min(kind.maximum, (1 << 63) - 1)]
    if isinstance(kind, t.Floating):
        return [u.KEY_FLOAT, 8, 0, 0] if kind.bits == 64 else None
    if isinstance(kind, t.Boolean):
        return [u.KEY_BOOL, 1, 0, 0]
    found = _KEY_OF_CLASSES.get(type(kind))
    if found is None:
        return None
    length: int = kind.length  # type: ignore[attr-defined]
    return [found, kind.width or kind.bytes_max, length, 0]


def read_words(kind: ColumnType) -> list[int]:
    """Return how kernels read values of a type, as `key_words` does; [KEY_NONE, …] if the general path reads them."""
    if isinstance(kind, (LongText, LongBinary)):
        return [u.KEY_TEXT if isinstance(kind, LongText) else u.KEY_BYTES, 0, LOB_BYTES_MAX, 0]
    found = key_words(kind) or [u.KEY_NONE, 0, 0, 0]
    return [found[0], kind.width, *found[2:]]
