"""The MySQL type of each column type of the store, and the store's type for each MySQL type.

Outgoing: every type of the store has one MySQL type that holds all its values. `Timestamp` has a wider range than
MySQL's TIMESTAMP (years 1 to 9999, not 1970 to 2106), so it is sent as DATETIME(6) in UTC. Text is utf8mb4 with the
binary collation, except in columns that the NDB manual defines otherwise; bytes are binary. Trailing spaces of a Char
are written; a MySQL server compares CHAR without them.

Incoming: some MySQL types have no equal in the store. YEAR becomes UInt16, BIT and SET become UInt64 (a SET its bits),
MEDIUMINT becomes Int32 or UInt32, GEOMETRY a Blob (SRID and WKB), JSON is read from MySQL's binary form. These raise
Unsupported: the calendar types from before 5.6, decimals of more than 38 digits, and character sets other than utf8mb4,
utf8mb3, latin1, ascii and binary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tidemark.engine import types as t
from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid, Unsupported
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import rows_layout as r
from tidemark.replication.binlog.charsets import CHARACTER_BYTES, charset_of
from tidemark.replication.settings.system_tables import LATIN1_COLUMNS

FRACTION_DIGITS = 6
_LONG_LENGTH_BYTES = 4  # of LONGTEXT and LONGBLOB
_SHORT_LENGTH_MAX = 255  # longer strings have two bytes of length
_ENUM_SHORT_MAX = 255
_INTEGERS = {1: b.TYPE_TINY, 2: b.TYPE_SHORT, 3: b.TYPE_INT24, 4: b.TYPE_LONG, 8: b.TYPE_LONGLONG}
_FLOATS = {4: b.TYPE_FLOAT, 8: b.TYPE_DOUBLE}
_LONG = (b.TYPE_BLOB, b.TYPE_JSON, b.TYPE_GEOMETRY, b.TYPE_BLOB_COMPRESSED, b.TYPE_VECTOR)
_INTEGER_BYTES = {code: size for size, code in _INTEGERS.items()}


class MySqlType(NamedTuple):
    """A column's type as in TABLE_MAP: `code` and `metadata` as on the wire; the rest is from the optional metadata and
    None if it is absent there. `members` are those of ENUM and SET.
    """

    code: int
    metadata: bytes = b""
    is_unsigned: bool | None = None
    collation: int | None = None
    members: tuple[str, ...] | None = None

    @property
    def real_code(self) -> int:
        """The type code; for ENUM and SET their own, though TABLE_MAP gives them the code of a string."""
        if self.code == b.TYPE_STRING and self.metadata[0] in (b.TYPE_ENUM, b.TYPE_SET):
            return self.metadata[0]
        return self.code

    @property
    def bytes_max(self) -> int:
        """The most bytes of a CHAR, BINARY, VARCHAR or VARBINARY; the pack size of ENUM and SET."""
        if self.real_code == b.TYPE_STRING:
            # Lengths from 256 on have their two highest bits in the first byte, inverted.
            return ((self.metadata[0] & 0x30) ^ 0x30) << 4 | self.metadata[1]
        if self.real_code in (b.TYPE_ENUM, b.TYPE_SET):
            return self.metadata[1]
        return int.from_bytes(self.metadata[:2], "little")


class RowCode(NamedTuple):
    """The four words of a column in a row plan (`replication/binlog/rows_layout.py`)."""

    code: int
    size: int
    scale: int = 0
    width: int = 0


def _collation(kind: ColumnType) -> int:
    return b.COLLATION_UTF8MB4_BIN if kind.is_text else b.COLLATION_BINARY


# --- going out ------------------------------------------------------------------------------------
def _enum(kind: t.Enum) -> MySqlType:
    size = 1 if len(kind.members) <= _ENUM_SHORT_MAX else 2
    return MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, size)), collation=b.COLLATION_UTF8MB4_BIN, members=kind.members)


def _datetime(kind: t.LocalDateTime | t.Instant) -> MySqlType:
    return MySqlType(b.TYPE_DATETIME, bytes((FRACTION_DIGITS,)))


def _padded(kind: t.Char | t.Binary | t.Uuid) -> MySqlType:
    metadata = bytes((b.TYPE_STRING ^ (kind.width & 0x300) >> 4, kind.width & 0xFF))
    return MySqlType(b.TYPE_STRING, metadata, collation=_collation(kind))


def _variable(kind: t.VarChar | t.VarBinary) -> MySqlType:
    return MySqlType(b.TYPE_VARCHAR, kind.bytes_max.to_bytes(2, "little"), collation=_collation(kind))


def _long(kind: t.LongText | t.LongBinary | t.Document) -> MySqlType:
    return MySqlType(b.TYPE_BLOB, bytes((_LONG_LENGTH_BYTES,)), collation=_collation(kind))


# The MySQL type of the types of each class.
OUTGOING: dict[type[ColumnType], Callable[[Any], MySqlType]] = {
    t.Integer: lambda kind: MySqlType(_INTEGERS[kind.width], is_unsigned=not kind.signed),
    t.Boolean: lambda kind: MySqlType(b.TYPE_TINY, is_unsigned=False),
    t.Floating: lambda kind: MySqlType(_FLOATS[kind.width], bytes((kind.width,)), is_unsigned=False),
    t.Decimal: lambda kind: MySqlType(b.TYPE_NEWDECIMAL, bytes((kind.precision, kind.scale)), is_unsigned=False),
    t.Enum: _enum,
    t.CalendarDate: lambda kind: MySqlType(b.TYPE_DATE),
    t.TimeOfDay: lambda kind: MySqlType(b.TYPE_TIME, bytes((FRACTION_DIGITS,))),
    t.LocalDateTime: _datetime,
    t.Instant: _datetime,
    t.Char: _padded,
    t.Binary: _padded,
    t.VarChar: _variable,
    t.VarBinary: _variable,
    t.LongText: _long,
    t.LongBinary: _long,
    t.Uuid: _padded,
    t.Document: _long,
}


def outgoing(kind: ColumnType) -> MySqlType:
    """Return the MySQL type that holds every value of a type of the store. Raises: Unsupported."""
    form = OUTGOING.get(type(kind))
    if form is None:
        raise Unsupported(f"{kind!r} has no MySQL type; a column of it cannot be replicated", type=repr(kind))
    return form(kind)


def outgoing_columns(definition: TableDefinition) -> list[MySqlType]:
    """Return the MySQL types of a table's columns. Raises: Unsupported."""
    types = []
    for column in definition.columns:
        if (definition.name, column.name) in LATIN1_COLUMNS and isinstance(column.type, t.VarChar):
            length = column.type.length.to_bytes(2, "little")
            types.append(MySqlType(b.TYPE_VARCHAR, length, collation=b.COLLATION_LATIN1_BIN))
        else:
            types.append(outgoing(column.type))
    return types


def outgoing_row(kind: ColumnType, mysql: MySqlType | None = None) -> RowCode:
    """Return how values of a type of the store are written into a row body, and read. `mysql`: their type there, if it
    is not that of the type of the store. Raises: Unsupported.
    """
    return row_code(mysql or outgoing(kind))._replace(width=kind.width)


# --- coming in ------------------------------------------------------------------------------------
def _refused(what: str, hint: str) -> Unsupported:
    return Unsupported(f"{what} cannot be ingested; {hint}")


def row_code(mysql: MySqlType) -> RowCode:
    """Return how to find and read values of a MySQL type in a row body. Raises: Unsupported for an unknown code."""
    code = mysql.real_code
    if code in _INTEGER_BYTES:
        return RowCode(r.ROW_UNSIGNED if mysql.is_unsigned else r.ROW_SIGNED, _INTEGER_BYTES[code])
    if code in (b.TYPE_FLOAT, b.TYPE_DOUBLE):
        return RowCode(r.ROW_UNSIGNED, 4 if code == b.TYPE_FLOAT else 8)
    if code == b.TYPE_NEWDECIMAL:
        return RowCode(r.ROW_DECIMAL, mysql.metadata[0], mysql.metadata[1])
    if code in (b.TYPE_STRING, b.TYPE_VARCHAR, b.TYPE_VAR_STRING, b.TYPE_VARCHAR_COMPRESSED):
        return RowCode(r.ROW_STRING, 1 if mysql.bytes_max <= _SHORT_LENGTH_MAX else 2)
    if code in _LONG:
        return RowCode(r.ROW_STRING, mysql.metadata[0])
    if code == b.TYPE_ENUM:
        return RowCode(r.ROW_ENUM, mysql.bytes_max, len(mysql.members or ()))
    if code == b.TYPE_SET:
        return RowCode(r.ROW_UNSIGNED, mysql.bytes_max)
    if code == b.TYPE_BIT:
        return RowCode(r.ROW_BIT, mysql.metadata[1] + (mysql.metadata[0] > 0))
    calendar = {b.TYPE_TIME: r.ROW_TIME, b.TYPE_DATETIME: r.ROW_DATETIME, b.TYPE_TIMESTAMP: r.ROW_TIMESTAMP}
    if code in calendar:
        return RowCode(calendar[code], 0, mysql.metadata[0])
    plain = {
        b.TYPE_DATE: RowCode(r.ROW_DATE, 3),
        b.TYPE_YEAR: RowCode(r.ROW_YEAR, 1),
        # Skipped, never read: `incoming` refuses them.
        b.TYPE_TIMESTAMP_OLD: RowCode(r.ROW_UNSIGNED, 4),
        b.TYPE_TIME_OLD: RowCode(r.ROW_UNSIGNED, 3),
        b.TYPE_DATETIME_OLD: RowCode(r.ROW_UNSIGNED, 8),
    }
    if code not in plain:
        raise _refused(f"MySQL type {code}", "it is older than MySQL 5.0")
    return plain[code]


def is_sound(mysql: MySqlType) -> bool:
    """Whether the metadata of a type is valid. Kernels use its lengths and digits without a check."""
    code, metadata = mysql.real_code, mysql.metadata
    if len(metadata) != b.METADATA_BYTES.get(mysql.code, 0):
        return False
    if code == b.TYPE_NEWDECIMAL:
        return 1 <= metadata[0] <= 65 and metadata[1] <= min(38, metadata[0])
    if code in _LONG:
        return 1 <= metadata[0] <= 4
    if code in (b.TYPE_TIME, b.TYPE_DATETIME, b.TYPE_TIMESTAMP):
        return metadata[0] <= FRACTION_DIGITS
    if code == b.TYPE_ENUM:
        return metadata[1] in (1, 2)
    if code == b.TYPE_SET:
        return metadata[1] in (1, 2, 3, 4, 8)
    if code == b.TYPE_BIT:
        return metadata[0] <= 7 and 1 <= metadata[1] + (metadata[0] > 0) <= 8
    if code == b.TYPE_STRING:
        return metadata[0] | 0x30 == b.TYPE_STRING
    return True


def character_bytes(collation: int | None) -> int:
    """Return the bytes of the longest character of a collation, 0 for binary. Raises: Unsupported."""
    if collation is None:
        raise _refused("a column of unknown character set", "set binlog_row_metadata=FULL at the source")
    charset = charset_of(collation)
    if charset not in CHARACTER_BYTES:
        raise _refused(f"text in character set {charset}", "convert the column to utf8mb4 at the source")
    return CHARACTER_BYTES[charset]


def incoming(mysql: MySqlType) -> ColumnType:
    """Return the store's type that holds every value of a MySQL type. Raises: Unsupported."""
    code = mysql.real_code
    if code in _INTEGER_BYTES:
        if mysql.is_unsigned is None:
            raise _refused("an integer of unknown sign", "set binlog_row_metadata=FULL at the source")
        size = _INTEGER_BYTES[code]
        return t.Integer(32 if size == 3 else size * 8, not mysql.is_unsigned)
    if code == b.TYPE_NEWDECIMAL:
        if mysql.metadata[0] > limits.DECIMAL_PRECISION_MAX:
            raise _refused(f"DECIMAL({mysql.metadata[0]})", f"{limits.DECIMAL_PRECISION_MAX} digits are the most")
        return t.Decimal(*mysql.metadata)
    if code == b.TYPE_ENUM:
        if not mysql.members:
            raise _refused("an ENUM of unknown members", "set binlog_row_metadata=FULL at the source")
        if not all(map(str.isascii, mysql.members)):
            character_bytes(mysql.collation)
        try:
            return t.Enum(*mysql.members)
        except SchemaInvalid as error:
            raise _refused(f"an ENUM of {len(mysql.members)} members", error.message) from error
    if code in (b.TYPE_BLOB_COMPRESSED, b.TYPE_VARCHAR_COMPRESSED):
        raise _refused("a COMPRESSED column", "ALTER TABLE … MODIFY it without COMPRESSED at the source")
    if code in b.CHARACTER_TYPES:
        return _incoming_string(mysql)
    plain: dict[int, ColumnType] = {
        b.TYPE_FLOAT: t.Float32,
        b.TYPE_DOUBLE: t.Float64,
        b.TYPE_DATE: t.Date,
        b.TYPE_TIME: t.Time,
        b.TYPE_DATETIME: t.DateTime,
        b.TYPE_TIMESTAMP: t.Timestamp,
        b.TYPE_YEAR: t.Integer(16, False),
        b.TYPE_BIT: t.Integer(64, False),
        b.TYPE_SET: t.Integer(64, False),
        b.TYPE_GEOMETRY: t.Blob,
        b.TYPE_JSON: t.JSON,
    }
    if code not in plain:
        raise _refused(f"MySQL type {code}", "rebuild the table at the source (ALTER TABLE … FORCE)")
    return plain[code]


def _incoming_string(mysql: MySqlType) -> ColumnType:
    size = character_bytes(mysql.collation)
    if mysql.code == b.TYPE_BLOB:
        return t.Text if size else t.Blob
    length = mysql.bytes_max // (size or 1)
    if mysql.code == b.TYPE_STRING and 1 <= length <= limits.CHAR_LENGTH_MAX:
        return t.Char(length) if size else t.Binary(length)
    if size:
        return t.VarChar(max(1, length)) if length <= limits.VARCHAR_LENGTH_MAX else t.Text
    return t.VarBinary(max(1, length)) if length <= limits.VARBINARY_LENGTH_MAX else t.Blob
