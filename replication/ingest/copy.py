"""The first copy of a source's tables: all of them as at one position of its binlog, at which the stream begins.

The rows are those of one consistent snapshot of the server. MariaDB reports the position of the snapshot. At a MySQL
server all tables are locked while the snapshot begins and the position is read. Values come as text, exact for every
type, and are read column by column.

An incomplete copy is begun again: the tables that it named in the row of the source are dropped. Only that copy can
have created them, because a copy refuses to begin if one of its tables exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.batch_operations import insert_many
from tidemark.engine.base.errors import PeerRefused, Rejected, TableExists, Unsupported, ValueOutOfRange
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog.charsets import ASCII, charset_named
from tidemark.replication.ingest import schema, source_position, text_rows
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.checks import check_engines
from tidemark.replication.ingest.client import Client
from tidemark.replication.ingest.source_position import SourcePosition
from tidemark.replication.ingest.source_tables import SourceTables
from tidemark.replication.ingest.source_types import SOURCE_TYPES
from tidemark.replication.settings.system_tables import one_transaction
from tidemark.replication.sql.emit import name as quoted
from tidemark.replication.sql.server_types import ServerType
from tidemark.replication.sql.statements import CreateTable, DatabaseCharset

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.store.store import Store

# Read from the keys, not the constraints, which a user with only the SELECT privilege does not see.
_TABLES = """SELECT t.table_schema, t.table_name, EXISTS(SELECT 1 FROM information_schema.statistics k
    WHERE k.table_schema = t.table_schema AND k.table_name = t.table_name AND k.index_name = 'PRIMARY')
    FROM information_schema.tables t WHERE t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
    ORDER BY t.table_schema, t.table_name"""
_ENGINES = """SELECT t.table_schema, t.table_name, t.engine, e.transactions FROM information_schema.tables t
    LEFT JOIN information_schema.engines e ON e.engine = t.engine
    WHERE t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"""
_OLD_TIMES = """SELECT table_schema, table_name, column_name FROM information_schema.columns
    WHERE data_type IN ('time', 'datetime', 'timestamp') AND column_type LIKE '%/* mariadb-5.3 */'"""
_VERSION = "SELECT VERSION()"
_DATABASES = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"
_COLUMNS = """SELECT column_name, data_type FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""


def tables_of(client: Client, wanted: Filter) -> list[tuple[str, bool]]:
    """Return (name, whether it has a primary key) of the wanted tables of a server. Raises: PeerError; TableChanged if
    one is gone meanwhile.

    A server reads its list of tables and that of keys at different moments, so a table without a key is looked up
    again.
    """
    found = [(f"{_text(database)}.{_text(table)}", bool(has_key)) for database, table, has_key in client.rows(_TABLES)]
    return [(name, has_key or _has_key(_created(client, name))) for name, has_key in found if wanted.wants(name)]


def _created(client: Client, name: str) -> str:
    """Return the text of SHOW CREATE TABLE. Raises: PeerError; TableChanged without the table."""
    database, _, table = name.partition(".")
    (row,) = client.octets(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    return bytes(row[1]).decode("utf-8", "surrogateescape")


def _has_key(text: str) -> bool:
    """Whether a shown table has a primary key: it is a line, and the lines of columns begin with names in quotes."""
    return any(line.lstrip().startswith("PRIMARY KEY") for line in text.splitlines())


def engines_of(client: Client, wanted: Filter) -> list[tuple[str, str, bool]]:
    """Return (name, engine, whether the engine has transactions) of the wanted tables of a server. Raises:
    PeerError.
    """
    found = [(f"{_text(row[0])}.{_text(row[1])}", _text(row[2]), row[3] is not None and _text(row[3]) == "YES")
             for row in client.rows(_ENGINES)]  # fmt: skip
    return [each for each in found if wanted.wants(each[0])]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def current_position(client: Client) -> tuple[str, int]:
    """Return the present end of the server's binlog as (file, position). Raises: PeerError, Unsupported."""
    for statement in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
        try:
            row = client.row(statement)
        except PeerRefused:
            continue  # each release knows only one of the two
        if row is not None:
            return str(row[0]), int(row[1])
    raise Unsupported(
        "the server does not tell where its binlog ends; it needs --log-bin, and the user the REPLICATION CLIENT"
        " privilege"
    )


class Copy:
    """One copy of the wanted tables."""

    def __init__(
        self, client: Client, db: schema.Schema, store: Store, wanted: Filter, progress: Callable[[int], None]
    ) -> None:
        self._client, self._db, self._store = client, db, store
        self._wanted, self._progress = wanted, progress

    def run(self, begun: SourcePosition) -> SourcePosition:
        """Copy all wanted tables; return the row of the source, from which the stream continues. begun: the row so far,
        which names the tables that an earlier attempt may have left. Durable on return: tables, rows and position.

        Raises: TableExists, Unsupported, ValueOutOfRange for values that the store cannot hold, PeerError.
        """
        at = self._snapshot()
        version = self._client.row(_VERSION)
        is_mariadb = version is not None and "MariaDB" in _text(version[0])
        names = [name for name, _ in tables_of(self._client, self._wanted)]
        check_engines(engines_of(self._client, self._wanted))
        self._check_times()
        made = [(name, self._definition(name, is_mariadb)) for name in names]
        left = (begun.copied or "").splitlines()
        for name in names:
            if name in self._store.tables.by_name and name not in left:
                raise TableExists(
                    f"table {name} exists in the store; leave it out with a filter, begin at a position, or drop it if"
                    " its rows are not needed",
                    table=name,
                )
        replace(begun, file=at[0], position=at[1], copied="\n".join({*left, *names})).save(self._store)
        for name in left:
            if name in self._store.tables.by_name:
                self._db.drop_table(name)
        tables = SourceTables(self._store, self._db)
        known = tables.read([*self._databases(), *(statement for _, statement in made)])[1]
        for name, statement in made:
            definition = statement.definition
            self._db.create_table(name, definition.columns, definition.primary_key, definition.partition)
            try:
                self._rows(statement)
            except ValueOutOfRange as error:
                raise ValueOutOfRange(
                    f"{error.message}; change it at the source, or leave the table out with a filter", **error.evidence
                ) from error
            for index in definition.indexes:
                self._db.create_index(name, index.name, index.columns, index.is_unique, ordered=index.is_ordered)
        tables.save(known)
        done = replace(begun, file=at[0], position=at[1], state=source_position.STREAMING, copied=None)
        done.save(self._store)
        return done

    def _snapshot(self) -> tuple[str, int]:
        client = self._client
        for setting in (
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION sql_mode = ''",
            "SET SESSION sql_quote_show_create = 1",
        ):
            client.rows(setting)
        client.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        found = client.rows("SHOW STATUS LIKE 'binlog_snapshot_%'")
        at = {str(name).lower(): str(value) for name, value in found}
        if at.get("binlog_snapshot_file"):
            return at["binlog_snapshot_file"], int(at["binlog_snapshot_position"])
        client.rows("ROLLBACK")
        client.rows("FLUSH TABLES WITH READ LOCK")
        try:
            client.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            return current_position(client)
        finally:
            client.rows("UNLOCK TABLES")

    def _check_times(self) -> None:
        """Check that row events will bring the values of calendar columns. Raises: Unsupported."""
        for database, table, column in self._client.rows(_OLD_TIMES):
            name = f"{_text(database)}.{_text(table)}"
            if self._wanted.wants(name):
                raise Unsupported(
                    f"{name}.{_text(column)} of the source has its values in the form of MariaDB 5.3, which is not"
                    " read; SET GLOBAL mysql56_temporal_format=ON and ALTER TABLE … FORCE there, or leave the table out"
                    " with a filter",
                    table=name,
                    column=_text(column),
                )

    def _databases(self) -> list[DatabaseCharset]:
        """Return the default character sets of the server's databases."""
        found = [(_text(name), _text(charset)) for name, charset in self._client.rows(_DATABASES)]
        return [DatabaseCharset(name, charset_named(charset)) for name, charset in found]

    def _definition(self, name: str, is_mariadb: bool) -> CreateTable:
        text = _created(self._client, name)
        try:
            made = schema.table_of_text(text, name.partition(".")[0], is_mariadb)
        except Rejected as error:
            raise Unsupported(
                f"table {name} of the source cannot be made here: {error.message}; leave it out with a filter",
                table=name,
            ) from error

        pairs = zip(made.definition.columns, made.served, strict=False)
        columns = tuple(self._with_exact_default(name, column, served) for column, served in pairs)
        return replace(made, definition=replace(made.definition, columns=columns)) if columns else made

    def _with_exact_default(self, table: str, column: Column, served: ServerType) -> Column:
        """Return a column with its exact default: a server shows that of a FLOAT with six digits. Without a row it does
        not say that of a NOT NULL column, which then has none here: a row event that leaves it out stops.
        """
        if served.word != "FLOAT" or not column.has_default or not column.default:
            return column
        database, _, name = table.partition(".")
        exact = f"SELECT DEFAULT(t.{quoted(column.name)})*1e0 FROM"
        of_table = f"{quoted(database)}.{quoted(name)} t"
        for rest in (f"(SELECT 1 one) x LEFT JOIN {of_table} ON x.one=2", f"{of_table} LIMIT 1"):
            row = self._client.row(f"{exact} {rest}")
            if row is not None and row[0] is not None:
                return replace(column, default=float(row[0]))
        return replace(column, default=ABSENT)

    def _rows(self, statement: CreateTable) -> None:
        import pyarrow as pa

        definition = statement.definition
        names = [column.name for column in definition.columns]
        charsets = {
            name: each.charset or statement.charset for name, each in zip(names, statement.served, strict=False)
        }
        database, _, table = definition.name.partition(".")
        types = {_text(name): _text(kind).lower() for name, kind in self._client.rows(_COLUMNS, database, table)}
        chosen = ", ".join(
            _expression(column.name, column.type, types.get(column.name, ""), charsets.get(column.name, ""))
            for column in definition.columns
        )
        sql = f"SELECT {chosen} FROM {quoted(database)}.{quoted(table)}"
        for count, columns in text_rows.select(self._client, sql):
            arrays = [
                _array(column.type, values, f"{definition.name}.{column.name}")
                for column, values in zip(definition.columns, columns, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, names=names)
            with one_transaction(self._store) as txn:
                insert_many(txn, self._store.tables.named(definition.name), batch)
            self._progress(count)


def _expression(name: str, kind: ColumnType, served: str, charset: str) -> str:
    """Return the SQL expression whose text is exact for a column's values."""
    column = quoted(name)
    if served in ("bit", "set"):
        return f"CAST({column} AS UNSIGNED)"  # +0 makes a number of many members of a SET a double
    if charset == ASCII and kind.is_text:
        return f"CONVERT({column} USING binary)"  # other bytes than ASCII would be shown as question marks
    if kind.value_class == "FLOAT32":
        return f"{column}*1e0"  # a FLOAT is shown with six digits, a DOUBLE with all
    return column


def _array(kind: ColumnType, values: pa.Array, shown: str) -> pa.Array:
    """Convert a column of text to a column type of the store. Raises: ValueOutOfRange."""
    import pyarrow as pa

    of_text = SOURCE_TYPES[type(kind)].of_text
    if of_text is None:
        return values
    try:
        return of_text(kind, values.cast(pa.large_string()))
    except (pa.ArrowInvalid, ValueOutOfRange) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueOutOfRange(f"{shown} has a value that {kind!r} does not hold: {reason}", column=shown) from error
