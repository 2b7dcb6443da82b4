"""TABLE_MAP: the event that describes the columns of the row events after it, with all optional metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types.base import counted
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.charsets import is_latin1, text_of
from tidemark.replication.binlog.cursor import Cursor, packed_length, packed_text
from tidemark.replication.binlog.types import MySqlType, is_sound, outgoing_columns

# MySQL's own limit; the store's is lower.
COLUMNS_MAX = 4_096
_TABLE = b.packer(b.TABLE)


@dataclass(frozen=True)
class MapColumn:
    """One column; `name` is None if the source does not give it."""

    type: MySqlType
    nullable: bool
    name: str | None = None


@dataclass(frozen=True)
class TableMap:
    """The columns of a table, and the number by which row events refer to it until the end of the statement.
    `primary_key` holds column positions in key order.
    """

    type: ClassVar[int] = b.TABLE_MAP_EVENT
    table_id: int
    database: str
    table: str
    columns: tuple[MapColumn, ...]
    primary_key: tuple[int, ...] = ()
    flags: int = b.TABLE_BIT_LENGTH_EXACT

    @property
    def name(self) -> str:
        """Database and table."""
        return f"{self.database}.{self.table}"

    @property
    def types(self) -> list[MySqlType]:
        """The types of the columns."""
        return [column.type for column in self.columns]

    def parts(self) -> list[bytes]:
        database, table = self.database.encode(), self.table.encode()
        codes = bytes(column.type.code for column in self.columns)
        metadata = b"".join(column.type.metadata for column in self.columns)
        nullable = _bits([column.nullable for column in self.columns], "little")
        return [
            _TABLE.pack(self.table_id & 0xFFFFFFFF, self.table_id >> 32, self.flags),
            bytes((len(database),)) + database + b"\0",
            bytes((len(table),)) + table + b"\0",
            packed_length(len(codes)) + codes,
            packed_text(metadata),
            nullable,
            b"".join(bytes((tag,)) + packed_text(value) for tag, value in self._optional()),
        ]

    def _optional(self) -> Iterable[tuple[int, bytes]]:
        """Yield the optional metadata in the order in which MySQL writes it."""
        types = self.types
        numeric = [mysql for mysql in types if mysql.code in b.NUMERIC_TYPES]
        if numeric and all(mysql.is_unsigned is not None for mysql in numeric):
            yield b.META_SIGNEDNESS, _bits([bool(mysql.is_unsigned) for mysql in numeric], "big")
        lists = [mysql for mysql in types if mysql.real_code in (b.TYPE_ENUM, b.TYPE_SET)]
        yield from _charsets(
            [mysql for mysql in types if mysql.real_code in b.CHARACTER_TYPES],
            b.META_DEFAULT_CHARSET,
            b.META_COLUMN_CHARSET,
        )
        if all(column.name is not None for column in self.columns):
            names = [(column.name or "").encode() for column in self.columns]
            yield b.META_COLUMN_NAME, b"".join(map(packed_text, names))
        for code, tag in ((b.TYPE_SET, b.META_SET_MEMBERS), (b.TYPE_ENUM, b.META_ENUM_MEMBERS)):
            those = [mysql.members for mysql in lists if mysql.real_code == code]
            if those and None not in those:
                yield tag, b"".join(_members(members or ()) for members in those)
        if self.primary_key:
            yield b.META_PRIMARY_KEY, b"".join(map(packed_length, self.primary_key))
        yield from _charsets(lists, b.META_ENUM_DEFAULT_CHARSET, b.META_ENUM_COLUMN_CHARSET)


def table_map(definition: TableDefinition, table_id: int) -> TableMap:
    """Return the event for a version of a table of the store. Raises: Unsupported for a type without a MySQL type."""
    database, _, table = definition.name.rpartition(".")
    columns = tuple(
        MapColumn(mysql, column.nullable, column.name)
        for mysql, column in zip(outgoing_columns(definition), definition.columns, strict=True)
    )
    return TableMap(table_id, database, table, columns, tuple(definition.key_positions))


def _members(members: Sequence[str]) -> bytes:
    return packed_length(len(members)) + b"".join(
        packed_text(member.encode("utf-8", "surrogateescape")) for member in members
    )


def _charsets(types: Sequence[MySqlType], default_tag: int, column_tag: int) -> Iterable[tuple[int, bytes]]:
    """Yield the collations in the shorter of the two forms: a default with exceptions, or all of them."""
    found = [mysql.collation for mysql in types]
    known = [collation for collation in found if collation is not None]
    if not known or len(known) < len(found):
        return
    ((default, _),) = Counter(known).most_common(1)
    short = packed_length(default) + b"".join(
        packed_length(place) + packed_length(collation) for place, collation in enumerate(known) if collation != default
    )
    long = b"".join(map(packed_length, known))
    yield (default_tag, short) if len(short) <= len(long) else (column_tag, long)


def _bits(flags: Sequence[bool], order: Literal["little", "big"]) -> bytes:
    return np.packbits(np.array(flags, np.bool_), bitorder=order).tobytes()


# --- reading ----------------------------------------------------------------------------------------
def parse_table_map(cursor: Cursor, is_mariadb: bool = False, is_served: bool = False) -> TableMap:
    """Parse the body of the event. In MariaDB (`is_mariadb`) its signedness has a bit for YEAR columns too, and its
    character sets have an entry for geometry. Raises: BinlogDamaged; Unsupported for a type that is not known, if
    `is_served`: a server may have more types.
    """
    low, high, flags = cursor.unpack(_TABLE)
    database = cursor.terminated(cursor.byte())
    table = cursor.terminated(cursor.byte())
    count = cursor.length()
    if not 1 <= count <= COLUMNS_MAX:
        raise cursor.origin.damaged(f"has a table of {counted(count, 'column')}")
    codes = cursor.take(count)
    metadata = Cursor(cursor.view(cursor.length()), cursor.origin)
    types: list[MySqlType] = []
    for code in codes:
        if code not in b.COLUMN_TYPES and not is_served:
            raise cursor.origin.damaged(f"has a column of type {code}, which MySQL does not have")
        if code not in b.COLUMN_TYPES:
            raise cursor.origin.unsupported(
                f"column {len(types) + 1} of table {database}.{table} has type {code}, which is not known here; give it"
                " another type at the source and begin anew at a later position",
                table=f"{database}.{table}",
            )
        mysql = MySqlType(code, metadata.take(b.METADATA_BYTES.get(code, 0)))
        if not is_sound(mysql):
            raise cursor.origin.damaged(f"has a column of type {code} with impossible metadata")
        types.append(mysql)
    bitmap = cursor.take((count + 7) // 8)
    columns = [MapColumn(mysql, bool(bitmap[place // 8] >> place % 8 & 1)) for place, mysql in enumerate(types)]
    primary_key = _parse_optional(cursor, columns, is_mariadb)
    return TableMap(low | high << 32, database, table, tuple(columns), primary_key, flags)


def _parse_optional(cursor: Cursor, columns: list[MapColumn], is_mariadb: bool) -> tuple[int, ...]:
    """Apply the optional metadata to the columns; return the primary key."""
    key: tuple[int, ...] = ()
    members: dict[int, tuple[bytes, ...]] = {}
    reals = [column.type.real_code for column in columns]
    signed = b.NUMERIC_TYPES | {b.TYPE_YEAR} if is_mariadb else b.NUMERIC_TYPES
    numeric = [place for place, column in enumerate(columns) if column.type.code in signed]
    kinds = b.CHARACTER_TYPES | {b.TYPE_GEOMETRY} if is_mariadb else b.CHARACTER_TYPES
    text = [place for place, code in enumerate(reals) if code in kinds]
    lists = [place for place, code in enumerate(reals) if code in (b.TYPE_ENUM, b.TYPE_SET)]
    seen: set[int] = set()
    while cursor.left:
        tag = cursor.byte()
        if tag in seen:  # thousands of repeats would each loop over thousands of columns
            raise cursor.origin.damaged(f"has its metadata {tag} twice")
        seen.add(tag)
        value = Cursor(cursor.view(cursor.length()), cursor.origin)
        if tag == b.META_SIGNEDNESS:
            bits = value.take((len(numeric) + 7) // 8)
            for number, place in enumerate(numeric):
                _set(columns, place, is_unsigned=bool(bits[number // 8] >> (7 - number % 8) & 1))
        elif tag in (b.META_DEFAULT_CHARSET, b.META_ENUM_DEFAULT_CHARSET):
            _default_charset(value, columns, text if tag == b.META_DEFAULT_CHARSET else lists)
        elif tag in (b.META_COLUMN_CHARSET, b.META_ENUM_COLUMN_CHARSET):
            for place in text if tag == b.META_COLUMN_CHARSET else lists:
                _set(columns, place, collation=value.length())
        elif tag == b.META_COLUMN_NAME:
            for place, column in enumerate(columns):
                columns[place] = replace(column, name=value.text(value.length()))
        elif tag in (b.META_SET_MEMBERS, b.META_ENUM_MEMBERS):
            wanted = b.TYPE_SET if tag == b.META_SET_MEMBERS else b.TYPE_ENUM
            for place in lists:
                if reals[place] == wanted:
                    members[place] = _parse_members(value)
        elif tag in (b.META_PRIMARY_KEY, b.META_PRIMARY_KEY_PREFIX):
            key = _parse_key(value, len(columns), tag == b.META_PRIMARY_KEY_PREFIX)
        else:
            continue  # geometry types, visibility, and additions of later releases
        if value.left:
            raise cursor.origin.damaged(f"has {counted(value.left, 'byte')} too many in its metadata {tag}")
    # Members are in the character set of their column, which may follow them in the event.
    for place, texts in members.items():
        is_other = is_latin1(columns[place].type.collation)
        # In other character sets they are not text here, and `incoming` refuses the column.
        decoded = [text_of(each) if is_other else each.decode("utf-8", "surrogateescape") for each in texts]
        _set(columns, place, members=tuple(decoded))
    return key


def _set(columns: list[MapColumn], place: int, **fields: object) -> None:
    columns[place] = replace(columns[place], type=columns[place].type._replace(**fields))  # type: ignore[arg-type]


def _default_charset(value: Cursor, columns: list[MapColumn], places: Sequence[int]) -> None:
    default = value.length()
    for place in places:
        _set(columns, place, collation=default)
    while value.left:
        number, collation = value.length(), value.length()
        if number >= len(places):
            raise value.origin.damaged(f"has a character set for column {number} of {len(places)}")
        _set(columns, places[number], collation=collation)


def _parse_members(value: Cursor) -> tuple[bytes, ...]:
    count = value.length()
    if count > value.left:
        raise value.origin.damaged(f"has a list of {counted(count, 'member')} in {counted(value.left, 'byte')}")
    return tuple(value.take(value.length()) for _ in range(count))


def _parse_key(value: Cursor, columns: int, has_prefixes: bool) -> tuple[int, ...]:
    key = []
    while value.left:
        key.append(value.length())
        if has_prefixes:
            value.length()
        if key[-1] >= columns:
            raise value.origin.damaged(f"has column {key[-1]} of {columns} in its primary key")
    return tuple(key)
