"""Values as texts of the protocol, column by column: what a MySQL server sends for a row of a SELECT.

Text is UTF-8, bytes are as they are, times have six digits after the second. Infinity and NaN, which a MySQL server
does not have, are the words that both Java and Python read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.engine import types as t
from tidemark.engine.base.column_buffers import build_variable, variable
from tidemark.engine.rows.row_format import Words
from tidemark.engine.types import ColumnType
from tidemark.engine.types.base import Octets
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.types import FRACTION_DIGITS, outgoing
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.packets import HEADER_BYTES, Buffer, Message, Refused, in_packets

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition

_UNKNOWN_DECIMALS = 31  # of a number whose digits after the point are not fixed
_TEXT_BYTES = 4 * 1_024
_UTF8_BYTES = 4
_LARGE_BYTES: Final = 64 << 10  # of a row
_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


class FieldType(NamedTuple):
    """The type of a column of an answer, as its packet gives it."""

    code: int = b.TYPE_VAR_STRING
    collation: int = p.CHARSET_UTF8MB4
    flags: int = 0
    length: int = _TEXT_BYTES
    decimals: int = 0


TEXT: Final = FieldType()
INTEGER: Final = FieldType(b.TYPE_LONGLONG, b.COLLATION_BINARY, p.FLAG_BINARY, 21)
FLOATING: Final = FieldType(b.TYPE_DOUBLE, b.COLLATION_BINARY, p.FLAG_BINARY, 23, _UNKNOWN_DECIMALS)
DECIMAL: Final = FieldType(b.TYPE_NEWDECIMAL, b.COLLATION_BINARY, p.FLAG_BINARY, 67, 30)
MOMENT: Final = FieldType(p.TYPE_DATETIME, b.COLLATION_BINARY, p.FLAG_BINARY, 26)
DURATION: Final = FieldType(p.TYPE_TIME, b.COLLATION_BINARY, p.FLAG_BINARY, 17)

_CODES: Final = {
    b.TYPE_VARCHAR: b.TYPE_VAR_STRING,
    b.TYPE_TIME: p.TYPE_TIME,
    b.TYPE_DATETIME: p.TYPE_DATETIME,
    b.TYPE_TIMESTAMP: p.TYPE_TIMESTAMP,
}
# Characters of the longest text of types whose class does not say it.
_LENGTHS: Final = {
    b.TYPE_TINY: 4,
    b.TYPE_SHORT: 6,
    b.TYPE_LONG: 11,
    b.TYPE_LONGLONG: 20,
    b.TYPE_FLOAT: 12,
    b.TYPE_DOUBLE: 22,
    b.TYPE_DATE: 10,
    b.TYPE_TIME: 17,
    b.TYPE_DATETIME: 26,
    b.TYPE_BLOB: (1 << 32) - 1,
}


def field_type(column: Column, is_key: bool) -> FieldType:
    """Return the type of a column of a table. is_key: of its primary key. Raises: Unsupported."""
    kind = column.type
    mysql = outgoing(kind)
    flags = (0 if column.nullable else p.FLAG_NOT_NULL) | (p.FLAG_PRIMARY_KEY if is_key else 0)
    flags |= p.FLAG_UNSIGNED if mysql.is_unsigned else 0
    flags |= p.FLAG_BLOB if kind.is_lob else 0
    flags |= p.FLAG_ENUM if isinstance(kind, t.Enum) else 0
    flags |= 0 if kind.is_text else p.FLAG_BINARY
    length, decimals = _LENGTHS.get(mysql.code, 0), 0
    if isinstance(kind, t.Boolean):
        length = 1
    elif isinstance(kind, t.Decimal):
        length, decimals = kind.precision + 2, kind.scale
    elif isinstance(kind, t.Floating):
        decimals = _UNKNOWN_DECIMALS
    elif isinstance(kind, (t.TimeOfDay, t.LocalDateTime, t.Instant)):
        decimals = FRACTION_DIGITS
    elif isinstance(kind, t.Enum):
        length = max(map(len, kind.members)) * _UTF8_BYTES
    elif isinstance(kind, (t.Char, t.VarChar)):
        length = kind.length * _UTF8_BYTES
    elif not length:
        length = kind.width or kind.bytes_max
    collation = p.CHARSET_UTF8MB4 if kind.is_text or isinstance(kind, t.Enum) else b.COLLATION_BINARY
    return FieldType(_CODES.get(mysql.code, mysql.code), collation, flags, length, decimals)


# --- values ---------------------------------------------------------------------------------------
def _cast(*steps: str) -> Callable[[ColumnType, pa.Array], pa.Array]:
    """Return the function that casts an array to these Arrow types, one after the other, and then to text."""

    def cast(kind: ColumnType, array: pa.Array) -> pa.Array:
        import pyarrow as pa

        for step in steps:
            array = array.cast(getattr(pa, step)())
        return array.cast(pa.large_string())

    return cast


def _octets(kind: ColumnType, array: pa.Array) -> pa.Array:
    import pyarrow as pa

    return array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _moments(kind: ColumnType, array: pa.Array) -> pa.Array:
    """Timestamps are those of UTC."""
    import pyarrow as pa

    return array.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.large_string())


def _decimals(kind: ColumnType, array: pa.Array) -> pa.Array:
    """Arrow writes small numbers with exponents, which a server never does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = array.cast(pa.large_string())
    if not pc.any(pc.match_substring(found, "E")).as_py():
        return found
    values: list[Decimal | None] = array.to_pylist()
    return pa.array([None if each is None else format(each, "f") for each in values], pa.large_string())


def _floats(kind: ColumnType, array: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = array.cast(pa.large_string())
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return found
    for word, shown in _WORDS.items():
        found = pc.if_else(pc.equal(found, word), shown.decode(), found)
    return found


_TEXTS: Final[dict[type[ColumnType], Callable[[Any, Any], Any]]] = {
    t.Integer: _cast(),
    t.Boolean: _cast("uint8"),
    t.Floating: _floats,
    t.Decimal: _decimals,
    t.Enum: _cast(),
    t.Char: _octets,
    t.VarChar: _octets,
    t.LongText: _octets,
    t.Binary: _octets,
    t.VarBinary: _octets,
    t.LongBinary: _octets,
    t.Uuid: _octets,
    t.Document: _octets,
    t.CalendarDate: _cast(),
    t.TimeOfDay: _cast(),
    t.LocalDateTime: _moments,
    t.Instant: _moments,
}


def texts_of(definition: TableDefinition, batch: pa.RecordBatch, columns: Sequence[str]) -> list[pa.Array]:
    """Return columns of a batch as texts, as arrays of large_binary; a column may be named twice."""
    import pyarrow as pa

    kinds = {column.name: column.type for column in definition.columns}
    found = {name: _TEXTS[type(kinds[name])](kinds[name], batch.column(name)) for name in dict.fromkeys(columns)}
    return [found[name].cast(pa.large_binary()) for name in columns]


def beyond_ascii(what: str) -> Refused:
    """Return the error for text that a session of latin1 would take for other characters."""
    return Refused(
        p.ER_NOT_SUPPORTED,
        f"{what} has text beyond ASCII, which is UTF-8 here, but the character set of this session is latin1; SET NAMES"
        " utf8mb4 first",
    )


def check_ascii(definition: TableDefinition, columns: Sequence[str], texts: Sequence[pa.Array]) -> None:
    """Check that columns of text have characters of ASCII alone. Raises: Refused."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = {column.name: column.type for column in definition.columns}
    for name, array in zip(columns, texts, strict=True):
        if kinds[name].is_text or isinstance(kinds[name], t.Enum):
            if pc.all(pc.string_is_ascii(array.cast(pa.large_string()))).as_py() is False:
                raise beyond_ascii(f"Column '{name}'")


# --- packets --------------------------------------------------------------------------------------
class _Pieces(NamedTuple):
    """The texts of a column as arrays without NULL: the length before each, its bytes, and the size of both."""

    lengths: pa.Array
    values: pa.Array
    sizes: Words


def _pieces_of(array: pa.Array) -> _Pieces:
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(array)
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values = array if nulls is None else pc.fill_null(array, b"")
    sizes = pc.binary_length(values).to_numpy().astype(np.int64)
    if int(sizes.max(initial=0)) < p.NULL:
        ends = np.arange(count + 1, dtype=np.int64)
        octets = sizes.astype(np.uint8)
        if nulls is not None:
            octets[nulls] = p.NULL
    else:
        ends, octets = _long_lengths(sizes, np.zeros(count, bool) if nulls is None else nulls)
    lengths = build_variable(pa.large_binary(), count, ends, octets, None, 0)
    return _Pieces(lengths, values, sizes + np.diff(ends))


def _long_lengths(sizes: Words, nulls: NDArray[np.bool_]) -> tuple[Words, Octets]:
    """Return lengths of one byte and of several, as ends of these pieces, and their bytes."""
    firsts = np.select([nulls, sizes < p.NULL, sizes < 1 << 16, sizes < 1 << 24], [p.NULL, sizes, 0xFC, 0xFD], 0xFE)
    following = np.select([firsts <= p.NULL, firsts == 0xFC, firsts == 0xFD], [0, 2, 3], 8)
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(following + 1, out=ends[1:])
    octets = np.zeros(int(ends[-1]), np.uint8)
    octets[ends[:-1]] = firsts
    for place in range(int(following.max(initial=0))):
        longer = following > place
        octets[ends[:-1][longer] + 1 + place] = sizes[longer] >> 8 * place & 0xFF
    return ends, octets


def row_packets(texts: Sequence[pa.Array], sequence: int) -> tuple[Message, int]:
    """Return the packets of some rows, of at least one column, as parts, and the sequence number of the next packet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(texts[0])
    columns = [_pieces_of(array) for array in texts]
    sizes: Words = np.sum([column.sizes for column in columns], axis=0, dtype=np.int64)
    if int(sizes.max(initial=0)) >= _LARGE_BYTES:  # such a row is not copied, and may take several packets
        pieces = [variable(piece) for column in columns for piece in (column.lengths, column.values)]
        found: list[Buffer] = []
        for place in range(count):
            message = [octets[ends[place] : ends[place + 1]].data for octets, ends in pieces]
            found += in_packets(message, sequence)
            sequence += int(sizes[place]) // p.PACKET_BYTES_MAX + 1
        return found, sequence & 0xFF
    # A head is the size in three bytes, and the number in the fourth.
    heads = sizes | (np.arange(sequence, sequence + count) & 0xFF) << 24
    head_ends = np.arange(count + 1, dtype=np.int64) * HEADER_BYTES
    head = build_variable(pa.large_binary(), count, head_ends, heads.astype("<u4").view(np.uint8), None, 0)
    values = [piece for column in columns for piece in (column.lengths, column.values)]
    data, ends = variable(pc.binary_join_element_wise(head, *values, pa.scalar(b"", pa.large_binary())))
    return (data[ends[0] : ends[-1]].data,), sequence + count & 0xFF
