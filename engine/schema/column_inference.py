"""Columns inferred from an Arrow schema: the inverse of `column_output.arrow_schema`, as far as there is one.

Arrow strings and bytes have no maximum length, so they become Text and Blob. These are not keyable, so columns of the
primary key become VarChar and VarBinary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.engine.base import limits
from tidemark.engine.base.errors import NoSuchColumn, SchemaInvalid
from tidemark.engine.schema.column import DISK, MEMORY, Column
from tidemark.engine.schema.types import (
    Blob,
    Bool,
    Date,
    DateTime,
    Decimal,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Text,
    Time,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_text import Binary, VarBinary, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

KEY_LENGTH = 255  # characters of a VarChar, bytes of a VarBinary

_NAMED: dict[str, ColumnType] = {
    "bool": Bool,
    "int8": Int8,
    "int16": Int16,
    "int32": Int32,
    "int64": Int64,
    "uint8": UInt8,
    "uint16": UInt16,
    "uint32": UInt32,
    "uint64": UInt64,
    "float": Float32,
    "double": Float64,
    "date32[day]": Date,
    "date64[ms]": Date,
    "null": Text,
}


def columns_from_arrow(schema: pa.Schema, primary_key: Sequence[str], disk: Sequence[str] = ()) -> list[Column]:
    """Return a column for every field, nullable like the field except key columns; columns named in `disk` are on disk.

    Raises: NoSuchColumn for a key or disk column the schema lacks, SchemaInvalid for a type no column holds.
    """
    for names, purpose in ((primary_key, "for the primary key"), (disk, "to put on disk")):
        for name in names:
            if name not in schema.names:
                raise NoSuchColumn(
                    f"there is no column {name!r} {purpose}; the columns are {', '.join(schema.names)}", column=name
                )
    return [
        Column(
            field.name,
            _type_of(field, field.name in primary_key),
            field.nullable and field.name not in primary_key,
            storage=DISK if field.name in disk else MEMORY,
        )
        for field in schema
    ]


def _type_of(field: pa.Field, is_key: bool) -> ColumnType:
    import pyarrow as pa

    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    named = _NAMED.get(str(kind))
    if named is not None and not (is_key and pa.types.is_null(kind)):
        return named
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return VarChar(KEY_LENGTH) if is_key else Text
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width <= limits.BINARY_LENGTH_MAX:
        return Binary(kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return VarBinary(KEY_LENGTH) if is_key else Blob
    if pa.types.is_time(kind):
        return Time
    if pa.types.is_timestamp(kind):
        return DateTime if kind.tz is None else Timestamp
    if pa.types.is_decimal(kind) and kind.precision <= limits.DECIMAL_PRECISION_MAX and 0 <= kind.scale:
        return Decimal(kind.precision, kind.scale)
    raise SchemaInvalid(
        f"column {field.name!r} has Arrow type {field.type}, which no column holds; convert it or leave it out",
        column=field.name,
    )
