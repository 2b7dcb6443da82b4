"""Tables as SHOW and `information_schema` tell of them. The tables of `mysql` are not among them: they are the store's
own. Where dumps have the status rows, their table is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.engine import types as t
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.computed import Computed
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.charsets import LATIN1
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.row_texts import INTEGER, TEXT, FieldType
from tidemark.replication.mysql_source.session import INFORMATION_SCHEMA, Shown, shown
from tidemark.replication.mysql_source.variables import COLLATION
from tidemark.replication.settings.system_tables import LATIN1_COLUMNS
from tidemark.replication.sql import emit
from tidemark.replication.sql.column_types import UTF8, literal_of, to_sql

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.replication.mysql_source.reader import StatementReader
    from tidemark.replication.mysql_source.session import Session, Value

ENGINE: Final = "Tidemark"
CHARSET: Final = "utf8mb4"
LATIN1_BIN: Final = (LATIN1, "latin1_bin")
_CATALOG: Final = "def"
_PRIVILEGES: Final = "select"
_UTF8_BYTES = 4
_DATE_DIGITS = 6
# Columns whose values are compared with their case: names of things of the store.
_EXACT: Final = frozenset(
    "TABLE_SCHEMA TABLE_NAME SCHEMA_NAME COLUMN_NAME CONSTRAINT_SCHEMA CONSTRAINT_NAME INDEX_SCHEMA INDEX_NAME"
    " REFERENCED_TABLE_SCHEMA REFERENCED_TABLE_NAME DATABASE NAME FIELD KEY_NAME".split()
)
_NUMBERS: Final = frozenset(
    "ORDINAL_POSITION CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION NUMERIC_SCALE"
    " DATETIME_PRECISION NON_UNIQUE SEQ_IN_INDEX CARDINALITY SUB_PART POSITION_IN_UNIQUE_CONSTRAINT VERSION ROWS"
    " TABLE_ROWS AVG_ROW_LENGTH DATA_LENGTH MAX_DATA_LENGTH INDEX_LENGTH DATA_FREE AUTO_INCREMENT CHECKSUM ID"
    " SORTLEN".split()
)
_TABLES_IN = "Tables_in_"


class Listing(NamedTuple):
    """A table of answers before a condition chooses rows. is_exact: whether the first column has names of the store,
    whatever it is called.
    """

    names: Sequence[str]
    rows: Iterable[Sequence[Value]]
    is_exact: bool = False

    def filtered(self, reader: StatementReader) -> Listing:
        """Take LIKE, which is of the first column, or WHERE, if one comes next; return the rows that it chooses.
        Raises: Refused, Unsupported.
        """
        places = {name.upper(): place for place, name in enumerate(self.names)}
        exact = _EXACT | {self.names[0].upper()} if self.is_exact else _EXACT
        if reader.has("WHERE"):
            return self._replace(rows=filter(reader.condition(places, exact), self.rows))
        if reader.next.word == "LIKE":
            return self._replace(rows=filter(reader.pattern(0, self.names[0].upper() in exact), self.rows))
        return self

    def types(self) -> list[FieldType]:
        return [INTEGER if name.upper() in _NUMBERS else TEXT for name in self.names]

    def shown(self) -> Shown:
        return shown(self.names, self.rows, self.types())


def table_named(session: Session, names: Sequence[str]) -> TableDefinition:
    """Return the definition of a table by its name, or by database and name. Raises: Refused."""
    database = session.named_database(names[-2] if len(names) > 1 else None)
    name = f"{database}.{names[-1]}"
    found = session.definitions().get(name)
    if found is None or len(names) > 2:
        raise Refused(p.ER_NO_SUCH_TABLE, f"Table '{'.'.join(names) if len(names) > 1 else name}' doesn't exist")
    return found


def _divided(definition: TableDefinition) -> tuple[str, str]:
    database, _, table = definition.name.partition(".")
    return database, table


# --- columns --------------------------------------------------------------------------------------
def column_type(kind: ColumnType) -> str:
    """Return a type in the words of SHOW COLUMNS."""
    text = to_sql(kind).removesuffix(" " + UTF8)
    head, parenthesis, rest = text.partition("(")
    inner, end, tail = rest.rpartition(")")
    return head.lower() + parenthesis + inner + end + tail.lower()


def _default(column: Column) -> str | None:
    """Return the default of a column, None without one, or if the store computes it."""
    if column.default is ABSENT or column.default is None or isinstance(column.default, Computed):
        return None
    text = literal_of(column.default, column.type)
    if text.startswith("'"):
        return text[1:-1].replace("''", "'").replace("\\\\", "\\")
    return text


def _extra(column: Column) -> str:
    return "auto_increment" if column.computed is not None and column.computed.is_numbered else ""


def _charset_of(definition: TableDefinition, column: Column) -> tuple[str | None, str | None]:
    """Return character set and collation of a column, as dumps have them; None for both if it has no text."""
    if not (column.type.is_text or isinstance(column.type, t.Enum)):
        return None, None
    return LATIN1_BIN if (definition.name, column.name) in LATIN1_COLUMNS else (CHARSET, COLLATION)


def _key_of(definition: TableDefinition, column: str) -> str:
    if column in definition.primary_key:
        return "PRI"
    if any(index.is_unique and index.columns == (column,) for index in definition.indexes):
        return "UNI"
    return "MUL" if any(index.columns[0] == column for index in definition.indexes) else ""


def columns_shown(definition: TableDefinition, is_full: bool) -> Listing:
    """Return SHOW [FULL] COLUMNS."""
    rows: list[list[Value]] = []
    for column in definition.columns:
        row: list[Value] = [column.name, column_type(column.type)]
        rest: list[Value] = ["YES" if column.nullable else "NO", _key_of(definition, column.name), _default(column)]
        rest.append(_extra(column))
        rows.append([*row, _charset_of(definition, column)[1], *rest, _PRIVILEGES, ""] if is_full else [*row, *rest])
    names = ["Field", "Type", "Null", "Key", "Default", "Extra"]
    return Listing([*names[:2], "Collation", *names[2:], "Privileges", "Comment"] if is_full else names, rows)


def _sizes(kind: ColumnType) -> tuple[Value, ...]:
    """Return the most characters and bytes of a text, digits and digits after the point of a number, and digits after
    the second.
    """
    if isinstance(kind, (t.Char, t.VarChar)):
        return kind.length, kind.length * _UTF8_BYTES, None, None, None
    if isinstance(kind, (t.Binary, t.VarBinary)):
        return kind.length, kind.length, None, None, None
    if isinstance(kind, t.Enum):
        length = max(map(len, kind.members))
        return length, length * _UTF8_BYTES, None, None, None
    if isinstance(kind, t.Uuid):
        return kind.width, kind.width, None, None, None
    if kind.is_lob:
        return (1 << 32) - 1, (1 << 32) - 1, None, None, None
    if isinstance(kind, t.Decimal):
        return None, None, kind.precision, kind.scale, None
    if isinstance(kind, t.Integer):
        return None, None, len(str(kind.maximum)), 0, None
    if isinstance(kind, t.Boolean):
        return None, None, 3, 0, None
    if isinstance(kind, t.Floating):
        return None, None, 12 if kind.bits == 32 else 22, None, None
    return None, None, None, None, None if isinstance(kind, t.CalendarDate) else _DATE_DIGITS


# --- tables ---------------------------------------------------------------------------------------
def create_table(definition: TableDefinition) -> str:
    """Return SHOW CREATE TABLE: a statement that makes the table at a server."""
    lines = [_column_clause(definition, column) for column in definition.columns]
    lines.append(f"PRIMARY KEY ({', '.join(map(emit.name, definition.primary_key))})")
    lines += [emit.key("KEY", index) for index in definition.indexes]
    body = ",\n  ".join(lines)
    table = emit.name(_divided(definition)[1])
    return (
        f"CREATE TABLE {table} (\n  {body}\n) DEFAULT CHARSET={CHARSET} COLLATE={COLLATION}{emit.partition(definition)}"
    )


def _column_clause(definition: TableDefinition, column: Column) -> str:
    text = emit.column(column)
    if (definition.name, column.name) in LATIN1_COLUMNS:
        return text.replace(UTF8, "CHARACTER SET {} COLLATE {}".format(*LATIN1_BIN))
    return text


def create_database(name: str) -> str:
    return f"CREATE DATABASE {emit.name(name)} /*!40100 DEFAULT CHARACTER SET {CHARSET} COLLATE {COLLATION} */"


def tables_shown(session: Session, database: str, is_full: bool, pattern: str) -> Listing:
    """Return SHOW [FULL] TABLES. pattern: of LIKE, which is part of the name of the column."""
    names = [_TABLES_IN + database + (f" ({pattern})" if pattern else ""), *(["Table_type"] if is_full else [])]
    if database == INFORMATION_SCHEMA:
        rows: list[list[Value]] = [[name, "SYSTEM VIEW"] for name in SCHEMA_TABLES]
    else:
        rows = [[table, "BASE TABLE"] for each, table in _tables(session) if each == database]
    return Listing(names, [row if is_full else row[:1] for row in rows], is_exact=True)


def _tables(session: Session) -> list[tuple[str, str]]:
    return [_divided(each) for each in session.definitions().values()]


def statuses_shown(session: Session, database: str) -> Listing:
    """Return SHOW TABLE STATUS."""
    names = (
        "Name Engine Version Row_format Rows Avg_row_length Data_length Max_data_length Index_length Data_free"
        " Auto_increment Create_time Update_time Check_time Collation Checksum Create_options Comment"
    ).split()
    rows = [
        [table, ENGINE, 10, "Dynamic", session.served.row_count(f"{database}.{table}"), *([None] * 9), COLLATION, None]
        + ["", ""]
        for each, table in _tables(session)
        if each == database
    ]
    return Listing(names, rows)


class _Key(NamedTuple):
    name: str
    columns: Sequence[str]
    is_unique: bool
    is_ordered: bool


def _keys(definition: TableDefinition) -> Iterator[_Key]:
    yield _Key("PRIMARY", definition.primary_key, True, False)
    for index in definition.indexes:
        yield _Key(index.name, index.columns, index.is_unique, index.is_ordered)


def indexes_shown(session: Session, definition: TableDefinition) -> Listing:
    """Return SHOW INDEX."""
    names = (
        "Table Non_unique Key_name Seq_in_index Column_name Collation Cardinality Sub_part Packed Null Index_type"
        " Comment Index_comment"
    ).split()
    is_mariadb = session.flavor is MARIADB
    names += ["Ignored"] if is_mariadb else ["Visible", "Expression"]
    nullable = {column.name for column in definition.columns if column.nullable}
    rows: list[list[Value]] = []
    for key in _keys(definition):
        for place, column in enumerate(key.columns, 1):
            row: list[Value] = [_divided(definition)[1], int(not key.is_unique), key.name, place, column]
            row += ["A" if key.is_ordered else None, None, None, None, "YES" if column in nullable else ""]
            row += ["BTREE" if key.is_ordered else "HASH", "", "", *(["NO"] if is_mariadb else ["YES", None])]
            rows.append(row)
    return Listing(names, rows)


COLLATIONS: Final = (
    (COLLATION, CHARSET, b.COLLATION_UTF8MB4_BIN, "Yes", "Yes", 1),
    ("binary", "binary", b.COLLATION_BINARY, "Yes", "Yes", 1),
)


def collations_shown(session: Session) -> Listing:
    """Return SHOW COLLATION: those of the columns of tables."""
    is_mariadb = session.flavor is MARIADB
    names = ["Collation", "Charset", "Id", "Default", "Compiled", "Sortlen", *([] if is_mariadb else ["Pad_attribute"])]
    pads = {COLLATION: "PAD SPACE", "binary": "NO PAD"}
    return Listing(names, [[*row, *([] if is_mariadb else [pads[row[0]]])] for row in COLLATIONS])


# --- information_schema ---------------------------------------------------------------------------
def _schemata(session: Session) -> Iterator[list[Value]]:
    for name in session.databases():
        yield [_CATALOG, name, CHARSET, COLLATION, None]


def _table_rows(session: Session) -> Iterator[list[Value]]:
    for database, table in _tables(session):
        rows = session.served.row_count(f"{database}.{table}")
        row: list[Value] = [_CATALOG, database, table, "BASE TABLE", ENGINE, 10, "Dynamic", rows]
        yield [*row, *([None] * 9), COLLATION, None, "", ""]


def _column_rows(session: Session) -> Iterator[list[Value]]:
    for definition in session.definitions().values():
        for place, column in enumerate(definition.columns, 1):
            kind = column_type(column.type)
            row: list[Value] = [_CATALOG, *_divided(definition), column.name, place, _default(column)]
            row += ["YES" if column.nullable else "NO", kind.partition("(")[0].partition(" ")[0]]
            row += [*_sizes(column.type), *_charset_of(definition, column), kind]
            row += [_key_of(definition, column.name), _extra(column), _PRIVILEGES, "", ""]
            yield row


def _statistics(session: Session) -> Iterator[list[Value]]:
    for definition in session.definitions().values():
        database, table = _divided(definition)
        for row in indexes_shown(session, definition).rows:
            non_unique, key, place, column, collation, cardinality, part, packed, null, kind = row[1:11]
            head: list[Value] = [_CATALOG, database, table, non_unique, database, key, place, column, collation]
            yield [*head, cardinality, part, packed, null, kind, "", ""]


def _key_columns(session: Session) -> Iterator[list[Value]]:
    for definition in session.definitions().values():
        database, table = _divided(definition)
        for key in _keys(definition):
            for place, column in enumerate(key.columns, 1) if key.is_unique else ():
                row: list[Value] = [_CATALOG, database, key.name, _CATALOG, database, table, column, place]
                yield [*row, None, None, None, None]


class _SchemaTable(NamedTuple):
    names: Sequence[str]
    rows: Callable[[Session], Iterator[list[Value]]]


SCHEMA_TABLES: Final = {
    "COLUMNS": _SchemaTable(
        (
            "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION COLUMN_DEFAULT IS_NULLABLE DATA_TYPE"
            " CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION NUMERIC_SCALE DATETIME_PRECISION"
            " CHARACTER_SET_NAME COLLATION_NAME COLUMN_TYPE COLUMN_KEY EXTRA PRIVILEGES COLUMN_COMMENT"
            " GENERATION_EXPRESSION"
        ).split(),
        _column_rows,
    ),
    "KEY_COLUMN_USAGE": _SchemaTable(
        (
            "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME"
            " ORDINAL_POSITION POSITION_IN_UNIQUE_CONSTRAINT REFERENCED_TABLE_SCHEMA REFERENCED_TABLE_NAME"
            " REFERENCED_COLUMN_NAME"
        ).split(),
        _key_columns,
    ),
    "SCHEMATA": _SchemaTable(
        "CATALOG_NAME SCHEMA_NAME DEFAULT_CHARACTER_SET_NAME DEFAULT_COLLATION_NAME SQL_PATH".split(), _schemata
    ),
    "STATISTICS": _SchemaTable(
        (
            "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME NON_UNIQUE INDEX_SCHEMA INDEX_NAME SEQ_IN_INDEX COLUMN_NAME"
            " COLLATION CARDINALITY SUB_PART PACKED NULLABLE INDEX_TYPE COMMENT INDEX_COMMENT"
        ).split(),
        _statistics,
    ),
    "TABLES": _SchemaTable(
        (
            "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE ENGINE VERSION ROW_FORMAT TABLE_ROWS AVG_ROW_LENGTH"
            " DATA_LENGTH MAX_DATA_LENGTH INDEX_LENGTH DATA_FREE AUTO_INCREMENT CREATE_TIME UPDATE_TIME CHECK_TIME"
            " TABLE_COLLATION CHECKSUM CREATE_OPTIONS TABLE_COMMENT"
        ).split(),
        _table_rows,
    ),
}


def schema_table(session: Session, name: str) -> Listing:
    """Return a table of `information_schema`. Raises: Refused."""
    found = SCHEMA_TABLES.get(name.upper())
    if found is None:
        raise Refused(p.ER_UNKNOWN_SCHEMA_TABLE, f"Unknown table '{name.upper()}' in {INFORMATION_SCHEMA}")
    return Listing(found.names, found.rows(session))
