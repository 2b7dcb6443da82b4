"""How kernels make Python objects of the values of a column type, and read them: the one table of kinds.

A type names its kind (`ColumnType.object_kind`). Rows with a value of a type without one are made, and constants and
changes of it are read, by the general path.
"""

from __future__ import annotations

import datetime
import string
import struct
from typing import TYPE_CHECKING, NamedTuple

from tidemark.engine.point import plan_layout as u

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.engine.types import ColumnType

LONG_MAX = (1 << 63) - 1


class _Kind(NamedTuple):
    """How objects are read: as a piece of a key, as a value of a column (None: alike). How they are made, by the code
    of `struct` without digits.
    """

    key: int
    made: Mapping[str, int]
    value: int | None = None


_INTEGERS = {"b": u.INT_8, "h": u.INT_16, "i": u.INT_32, "q": u.INT_64, "B": u.UINT_8, "H": u.UINT_16, "I": u.UINT_32}
_KINDS = {
    "INT": _Kind(u.KEY_INT, _INTEGERS),
    "UNSIGNED": _Kind(u.KEY_UNSIGNED, {"Q": u.UINT_64}),
    "FLOAT": _Kind(u.KEY_FLOAT, {"d": u.FLOAT_64}, u.VALUE_FLOAT),
    "SINGLE": _Kind(u.KEY_SINGLE, {"f": u.FLOAT_32}, u.VALUE_SINGLE),
    "BOOL": _Kind(u.KEY_BOOL, {"?": u.BOOL}),
    "DECIMAL": _Kind(u.KEY_DECIMAL, {"q": u.DECIMAL}),
    "WIDE_DECIMAL": _Kind(u.KEY_WIDE_DECIMAL, {"s": u.WIDE_DECIMAL}),
    "ENUM": _Kind(u.KEY_ENUM, {"H": u.ENUM_16, "q": u.ENUM_64}),
    "DATE": _Kind(u.KEY_DATE, {"i": u.DATE_32, "q": u.DATE_64}),
    "TIME": _Kind(u.KEY_TIME, {"q": u.TIME}),
    "DATETIME": _Kind(u.KEY_DATETIME, {"q": u.DATETIME}),
    "TIMESTAMP": _Kind(u.KEY_TIMESTAMP, {"q": u.TIMESTAMP}),
    "PADDED_TEXT": _Kind(u.KEY_PADDED_TEXT, {"s": u.PADDED_TEXT}),
    "PADDED_BYTES": _Kind(u.KEY_PADDED_BYTES, {"s": u.PADDED_BYTES}),
    "TEXT": _Kind(u.KEY_TEXT, {"": u.TEXT}),
    "BYTES": _Kind(u.KEY_BYTES, {"": u.BYTES}),
    "UUID": _Kind(u.KEY_UUID, {"s": u.UUID}),
    "JSON": _Kind(u.KEY_UNREAD, {"": u.JSON}),
}


def value_kind(kind: ColumnType, is_key: bool) -> tuple[int, int]:
    """Return how a kernel makes values of a type: (kind, size in bytes, 0 for any). is_key: as a piece of a canonical
    key, where integers take a word.
    """
    code = kind.key_code.rstrip("x").rstrip(string.digits) if is_key else kind.code
    return _KINDS[kind.object_kind].made[code[-1:]], struct.calcsize("<" + code)


def key_words(kind: ColumnType) -> list[int]:
    """Return the words of a column in the plan of a key. Addresses in them are those of classes, and of what the type
    keeps alive.
    """
    found = _KINDS[kind.object_kind].key
    least, greatest = kind.object_limits
    if found == u.KEY_TIMESTAMP:
        least = id(datetime.UTC)
    return [found, kind.width or kind.bytes_max, least, min(greatest, LONG_MAX), id(kind.object_lookup)]


def read_words(kind: ColumnType) -> list[int]:
    """Return how kernels read values of a type, as `key_words` does."""
    found = key_words(kind)
    return [_KINDS[kind.object_kind].value or found[0], kind.width, *found[2:]]
