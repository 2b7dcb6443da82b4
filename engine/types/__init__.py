"""Column types, a family in a file: the Python values they take, and how these are stored and loaded.

A type is an immutable value: types with equal parameters compare equal, have one hash and survive
`to_json`/`from_json`. `stored` converts a Python value to its stored form (an int, a float or bytes) or refuses it;
`loaded` is the exact inverse. Nothing is truncated, rounded or guessed; the one exception is Float32, which rounds to
nearest as every database does.

A refusal says only what is wrong with the value; the row format adds table, column and row.
"""

from tidemark.engine.types.base import ColumnType, from_json, value_from_json, value_to_json
from tidemark.engine.types.binary import Binary, Blob, LongBinary, VarBinary
from tidemark.engine.types.boolean import Bool, Boolean
from tidemark.engine.types.decimals import DECIMAL_WORD_DIGITS, Decimal
from tidemark.engine.types.enums import Enum
from tidemark.engine.types.floating import Float32, Float64, Floating
from tidemark.engine.types.integers import Int8, Int16, Int32, Int64, Integer, UInt8, UInt16, UInt32, UInt64
from tidemark.engine.types.json import JSON, Document
from tidemark.engine.types.moments import (
    CalendarDate,
    Date,
    DateTime,
    Instant,
    LocalDateTime,
    Moment,
    Time,
    TimeOfDay,
    Timestamp,
)
from tidemark.engine.types.text import Char, LongText, Text, VarChar
from tidemark.engine.types.uuid import UUID, Uuid

__all__ = [
    "DECIMAL_WORD_DIGITS",
    "JSON",
    "UUID",
    "Binary",
    "Blob",
    "Bool",
    "Boolean",
    "CalendarDate",
    "Char",
    "ColumnType",
    "Date",
    "DateTime",
    "Decimal",
    "Document",
    "Enum",
    "Float32",
    "Float64",
    "Floating",
    "Instant",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Integer",
    "LocalDateTime",
    "LongBinary",
    "LongText",
    "Moment",
    "Text",
    "Time",
    "TimeOfDay",
    "Timestamp",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
    "Uuid",
    "VarBinary",
    "VarChar",
    "from_json",
    "value_from_json",
    "value_to_json",
]
