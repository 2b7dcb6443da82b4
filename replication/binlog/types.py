"""The MySQL type of each column type of the store, and the store's type for each MySQL type.

Outgoing: every type of the store has one MySQL type that holds all its values. `Timestamp` has a wider range than
MySQL's TIMESTAMP (years 1 to 9999, not 1970 to 2106), so it is sent as DATETIME(6) in UTC. Text is utf8mb4 with the
binary collation, bytes are binary. Trailing spaces of a Char are written; a MySQL server compares CHAR without them.

Incoming: some MySQL types have no equal in the store. YEAR becomes UInt16, BIT and SET become UInt64 (a SET its bits),
MEDIUMINT becomes Int32 or UInt32, GEOMETRY a Blob (SRID and WKB). These raise Unsupported: JSON in MySQL's binary form,
the calendar types from before 5.6, decimals of more than 38 digits, and character sets other than utf8mb4, utf8mb3,
latin1, ascii and binary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid, Unsupported
from tidemark.engine.schema.types import (
    Blob,
    Boolean,
    Date,
    DateTime,
    Decimal,
    Enum,
    Float32,
    Float64,
    Floating,
    Integer,
    Text,
    Time,
    Timestamp,
)
from tidemark.engine.schema.types_base import ColumnType
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, Char, LongBinary, LongText, VarBinary, VarChar
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import rows_layout as r
from tidemark.replication.binlog.charsets import CHARACTER_BYTES, charset_of

FRACTION_DIGITS = 6
_LONG_LENGTH_BYTES = 4  # of LONGTEXT and LONGBLOB
_SHORT_LENGTH_MAX = 255  # longer strings have two bytes of length
_ENUM_SHORT_MAX = 255
_INTEGERS = {1: b.TYPE_TINY, 2: b.TYPE_SHORT, 3: b.TYPE_INT24, 4: b.TYPE_LONG, 8: b.TYPE_LONGLONG}
_LONG = (b.TYPE_BLOB, b.TYPE_JSON, b.TYPE_GEOMETRY, b.TYPE_BLOB_COMPRESSED, b.TYPE_VECTOR)
_INTEGER_BYTES = {code: size for size, code in _INTEGERS.items()}
_CALENDAR = {
    "Time": (b.TYPE_TIME, r.ROW_TIME),
    "DateTime": (b.TYPE_DATETIME, r.ROW_DATETIME),
    "Timestamp": (b.TYPE_DATETIME, r.ROW_DATETIME),
}


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


@dataclass(frozen=True)
class OutgoingType:
    """The form of a type of the store in the binlog."""

    mysql: MySqlType
    row: RowCode


def _length_bytes(bytes_max: int) -> int:
    return 1 if bytes_max <= _SHORT_LENGTH_MAX else 2


def _padded(kind: Char | Binary, collation: int) -> OutgoingType:
    size = kind.width
    metadata = bytes((b.TYPE_STRING ^ (size & 0x300) >> 4, size & 0xFF))
    row = RowCode(r.ROW_STRING, _length_bytes(size), width=size)
    return OutgoingType(MySqlType(b.TYPE_STRING, metadata, collation=collation), row)


def _variable(kind: VarChar | VarBinary, collation: int) -> OutgoingType:
    size = kind.bytes_max
    row = RowCode(r.ROW_STRING, _length_bytes(size))
    return OutgoingType(MySqlType(b.TYPE_VARCHAR, size.to_bytes(2, "little"), collation=collation), row)


def _long(collation: int) -> OutgoingType:
    row = RowCode(r.ROW_STRING, _LONG_LENGTH_BYTES)
    return OutgoingType(MySqlType(b.TYPE_BLOB, bytes((_LONG_LENGTH_BYTES,)), collation=collation), row)


def outgoing(kind: ColumnType) -> OutgoingType:
    """Return the MySQL type that holds every value of a type of the store."""
    if isinstance(kind, Integer):
        mysql = MySqlType(_INTEGERS[kind.width], is_unsigned=not kind.signed)
        code = r.ROW_SIGNED if kind.signed else r.ROW_UNSIGNED
        return OutgoingType(mysql, RowCode(code, kind.width, width=kind.width))
    if isinstance(kind, Boolean):
        return OutgoingType(MySqlType(b.TYPE_TINY, is_unsigned=False), RowCode(r.ROW_SIGNED, 1, width=1))
    if isinstance(kind, Floating):
        code = b.TYPE_FLOAT if kind.bits == 32 else b.TYPE_DOUBLE
        mysql = MySqlType(code, bytes((kind.width,)), is_unsigned=False)
        return OutgoingType(mysql, RowCode(r.ROW_UNSIGNED, kind.width, width=kind.width))
    if isinstance(kind, Decimal):
        mysql = MySqlType(b.TYPE_NEWDECIMAL, bytes((kind.precision, kind.scale)), is_unsigned=False)
        return OutgoingType(mysql, RowCode(r.ROW_DECIMAL, kind.precision, kind.scale, kind.width))
    if isinstance(kind, Enum):
        size = 1 if len(kind.members) <= _ENUM_SHORT_MAX else 2
        mysql = MySqlType(
            b.TYPE_STRING, bytes((b.TYPE_ENUM, size)), collation=b.COLLATION_UTF8MB4_BIN, members=kind.members
        )
        return OutgoingType(mysql, RowCode(r.ROW_ENUM, size, len(kind.members), kind.width))
    if isinstance(kind, Calendar):
        return _outgoing_calendar(kind)
    return _outgoing_string(kind)


def _outgoing_calendar(kind: Calendar) -> OutgoingType:
    if kind == Date:
        return OutgoingType(MySqlType(b.TYPE_DATE), RowCode(r.ROW_DATE, 3, width=kind.width))
    code, row = _CALENDAR[kind.name]
    return OutgoingType(
        MySqlType(code, bytes((FRACTION_DIGITS,))),
        RowCode(row, kind.width, FRACTION_DIGITS, kind.width),
    )


def _outgoing_string(kind: ColumnType) -> OutgoingType:
    text, octets = b.COLLATION_UTF8MB4_BIN, b.COLLATION_BINARY
    if isinstance(kind, Char):
        return _padded(kind, text)
    if isinstance(kind, Binary):
        return _padded(kind, octets)
    if isinstance(kind, VarChar):
        return _variable(kind, text)
    if isinstance(kind, VarBinary):
        return _variable(kind, octets)
    if isinstance(kind, LongText):
        return _long(text)
    if isinstance(kind, LongBinary):
        return _long(octets)
    raise Unsupported(f"{kind!r} has no MySQL type; a column of it cannot be replicated", type=repr(kind))


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
        return RowCode(r.ROW_STRING, _length_bytes(mysql.bytes_max))
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
        return Integer(32 if size == 3 else size * 8, not mysql.is_unsigned)
    if code == b.TYPE_NEWDECIMAL:
        if mysql.metadata[0] > limits.DECIMAL_PRECISION_MAX:
            raise _refused(f"DECIMAL({mysql.metadata[0]})", f"{limits.DECIMAL_PRECISION_MAX} digits are the most")
        return Decimal(*mysql.metadata)
    if code == b.TYPE_ENUM:
        if not mysql.members:
            raise _refused("an ENUM of unknown members", "set binlog_row_metadata=FULL at the source")
        if not all(map(str.isascii, mysql.members)):
            character_bytes(mysql.collation)
        try:
            return Enum(*mysql.members)
        except SchemaInvalid as error:
            raise _refused(f"an ENUM of {len(mysql.members)} members", error.message) from error
    if code in b.CHARACTER_TYPES and code != b.TYPE_GEOMETRY:
        return _incoming_string(mysql)
    plain: dict[int, ColumnType] = {
        b.TYPE_FLOAT: Float32,
        b.TYPE_DOUBLE: Float64,
        b.TYPE_DATE: Date,
        b.TYPE_TIME: Time,
        b.TYPE_DATETIME: DateTime,
        b.TYPE_TIMESTAMP: Timestamp,
        b.TYPE_YEAR: Integer(16, False),
        b.TYPE_BIT: Integer(64, False),
        b.TYPE_SET: Integer(64, False),
        b.TYPE_GEOMETRY: Blob,
    }
    if code in (b.TYPE_BLOB_COMPRESSED, b.TYPE_VARCHAR_COMPRESSED):
        raise _refused("a COMPRESSED column", "ALTER TABLE … MODIFY it without COMPRESSED at the source")
    if code == b.TYPE_JSON:
        raise _refused("JSON in MySQL's binary form", "keep it in a LONGTEXT column at the source")
    if code not in plain:
        raise _refused(f"MySQL type {code}", "rebuild the table at the source (ALTER TABLE … FORCE)")
    return plain[code]


def _incoming_string(mysql: MySqlType) -> ColumnType:
    size = character_bytes(mysql.collation)
    if mysql.code == b.TYPE_BLOB:
        return Text if size else Blob
    length = mysql.bytes_max // (size or 1)
    if mysql.code == b.TYPE_STRING and 1 <= length <= limits.CHAR_LENGTH_MAX:
        return Char(length) if size else Binary(length)
    if size:
        return VarChar(max(1, length)) if length <= limits.VARCHAR_LENGTH_MAX else Text
    return VarBinary(max(1, length)) if length <= limits.VARBINARY_LENGTH_MAX else Blob
