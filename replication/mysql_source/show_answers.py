"""SHOW and its answers: one table by the words after it. They tell of the session, the binlog and the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidemark.replication.mysql_source import catalog_answers as catalog
from tidemark.replication.mysql_source.catalog_answers import Listing
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.row_texts import INTEGER, TEXT
from tidemark.replication.mysql_source.session import Shown, shown
from tidemark.replication.mysql_source.variables import all_variables

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.reader import StatementReader
    from tidemark.replication.mysql_source.session import Value

_IN = ("FROM", "IN")


def show(reader: StatementReader) -> Shown:
    """Answer SHOW, whose first word is taken. Raises: Refused, Unsupported."""
    for words, answered in _SHOWS:
        if reader.has(*words):
            found = answered(reader)
            reader.must_end()
            return found
    raise reader.wrong()


def _variables(is_global: bool) -> Callable[[StatementReader], Shown]:
    def answered(reader: StatementReader) -> Shown:
        rows = all_variables(reader.connection, is_global)
        return Listing(["Variable_name", "Value"], rows).filtered(reader).shown()

    return answered


def _statuses(reader: StatementReader) -> Shown:
    session = reader.connection
    version, cipher = session.tls
    rows: list[tuple[str, str]] = [("Ssl_cipher", cipher), ("Ssl_version", version)]
    if session.flavor is MARIADB:
        file, position = ("", "") if session.snapshot is None else map(str, session.end_and_executed()[0])
        rows[:0] = [("Binlog_snapshot_file", file), ("Binlog_snapshot_position", position)]
    return Listing(["Variable_name", "Value"], rows).filtered(reader).shown()


def _binlog_end(reader: StatementReader) -> Shown:
    session = reader.connection
    (file, position), executed = session.end_and_executed()
    names = ["File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB"]
    row: list[Value] = [file, position, "", ""]
    if session.flavor is not MARIADB:
        names.append("Executed_Gtid_Set")
        row.append(str(executed or ""))
    return shown(names, [row], [INTEGER if name == "Position" else TEXT for name in names])


def _binlog_files(reader: StatementReader) -> Shown:
    session = reader.connection
    files = session.served.files()
    if session.flavor is MARIADB:
        return shown(["Log_name", "File_size"], files, [TEXT, INTEGER])
    return shown(["Log_name", "File_size", "Encrypted"], [(*each, "No") for each in files], [TEXT, INTEGER, TEXT])


def _databases(reader: StatementReader) -> Shown:
    rows = [[name] for name in reader.connection.databases()]
    return Listing(["Database"], rows).filtered(reader).shown()


def _place(reader: StatementReader) -> str:
    """Take FROM and a database, if they come next; return the database, else the default."""
    return reader.connection.named_database(reader.name() if reader.has_one(*_IN) else None)


def _tables(is_full: bool) -> Callable[[StatementReader], Shown]:
    def answered(reader: StatementReader) -> Shown:
        database = _place(reader)
        pattern = reader.pattern_ahead()
        return catalog.tables_shown(reader.connection, database, is_full, pattern).filtered(reader).shown()

    return answered


def _table_statuses(reader: StatementReader) -> Shown:
    return catalog.statuses_shown(reader.connection, _place(reader)).filtered(reader).shown()


def _create_table(reader: StatementReader) -> Shown:
    definition = catalog.table_named(reader.connection, reader.qualified())
    table = definition.name.partition(".")[2]
    return shown(["Table", "Create Table"], [[table, catalog.create_table(definition)]])


def _create_database(reader: StatementReader) -> Shown:
    reader.has("IF", "NOT", "EXISTS")
    name = reader.connection.existing(reader.name())
    return shown(["Database", "Create Database"], [[name, catalog.create_database(name)]])


def _table_of(reader: StatementReader) -> list[str]:
    """Take FROM and a table, and FROM and its database, if they come next."""
    if not reader.has_one(*_IN):
        raise reader.wrong()
    names = reader.qualified()
    return [reader.name(), names[-1]] if reader.has_one(*_IN) else names


def _columns(is_full: bool) -> Callable[[StatementReader], Shown]:
    def answered(reader: StatementReader) -> Shown:
        definition = catalog.table_named(reader.connection, _table_of(reader))
        return catalog.columns_shown(definition, is_full).filtered(reader).shown()

    return answered


def _indexes(reader: StatementReader) -> Shown:
    definition = catalog.table_named(reader.connection, _table_of(reader))
    return catalog.indexes_shown(reader.connection, definition).filtered(reader).shown()


def _grants(reader: StatementReader) -> Shown:
    session = reader.connection
    if reader.has("FOR"):
        reader.must("CURRENT_USER")
        if reader.has("("):
            reader.must(")")
    rights = ["SELECT", "RELOAD", "REPLICATION SLAVE", "REPLICATION CLIENT"]
    given = ", ".join(rights if session.user.may_read else rights[2:])
    row = f"GRANT {given} ON *.* TO `{session.user.name}`@`%`"
    return shown([f"Grants for {session.user.name}@%"], [[row]])


def _warnings(reader: StatementReader) -> Shown:
    return shown(["Level", "Code", "Message"], list(reader.connection.warnings), [TEXT, INTEGER, TEXT])


_REPLICA_COLUMNS: Final = (
    "IO_State {0}_Host {0}_User {0}_Port Connect_Retry {0}_Log_File Read_{0}_Log_Pos Relay_Log_File Relay_Log_Pos"
    " Relay_{0}_Log_File {1}_IO_Running {1}_SQL_Running Last_Errno Last_Error Exec_{0}_Log_Pos Seconds_Behind_{0}"
)


def _replica_status(source: str, replica: str) -> Callable[[StatementReader], Shown]:
    """Return the status of a server that is no replica of MySQL: no row."""
    names = _REPLICA_COLUMNS.format(source, replica).split()
    return lambda reader: shown([f"{replica}_{names[0]}", *names[1:]], ())


def _collations(reader: StatementReader) -> Shown:
    return catalog.collations_shown(reader.connection).filtered(reader).shown()


_SHOWS: Final[list[tuple[tuple[str, ...], Callable[[StatementReader], Shown]]]] = [
    *((words, _binlog_end) for words in (("MASTER", "STATUS"), ("BINARY", "LOG", "STATUS"), ("BINLOG", "STATUS"))),
    *((words, _binlog_files) for words in (("BINARY", "LOGS"), ("MASTER", "LOGS"))),
    (("VARIABLES",), _variables(False)),
    (("SESSION", "VARIABLES"), _variables(False)),
    (("LOCAL", "VARIABLES"), _variables(False)),
    (("GLOBAL", "VARIABLES"), _variables(True)),
    *(((*scope, "STATUS"), _statuses) for scope in ((), ("SESSION",), ("LOCAL",), ("GLOBAL",))),
    (("DATABASES",), _databases),
    (("SCHEMAS",), _databases),
    (("TABLES",), _tables(False)),
    (("FULL", "TABLES"), _tables(True)),
    (("TABLE", "STATUS"), _table_statuses),
    (("CREATE", "TABLE"), _create_table),
    (("CREATE", "DATABASE"), _create_database),
    (("CREATE", "SCHEMA"), _create_database),
    *(((each,), _columns(False)) for each in ("COLUMNS", "FIELDS")),
    *((("FULL", each), _columns(True)) for each in ("COLUMNS", "FIELDS")),
    *(((each,), _indexes) for each in ("INDEX", "INDEXES", "KEYS")),
    (("GRANTS",), _grants),
    (("WARNINGS",), _warnings),
    (("SLAVE", "STATUS"), _replica_status("Master", "Slave")),
    (("ALL", "SLAVES", "STATUS"), _replica_status("Master", "Slave")),
    (("REPLICA", "STATUS"), _replica_status("Source", "Replica")),
    (("COLLATION",), _collations),
]
