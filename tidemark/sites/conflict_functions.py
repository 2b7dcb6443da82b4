"""`Database.set_conflict_function`: the row of `mysql.ndb_replication` and the exceptions table of one table, checked
before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Rejected, SchemaInvalid, TableExists
from tidemark.engine.schema.names import alternatives, is_system_table, no_such_column
from tidemark.engine.types import UInt32, UInt64
from tidemark.replication.settings.binlog_type import FULL_USE_UPDATE
from tidemark.replication.settings.conflict_function import BY_NAME, COLUMN, ConflictFunction, parse
from tidemark.replication.settings.exceptions_table import exceptions_definition, plan_exceptions
from tidemark.replication.settings.match import EXACT, ReplicationRow, find_row, quality_of
from tidemark.replication.settings.setup import RESOLVE_TYPES, exceptions_of, set_up
from tidemark.replication.settings.system_tables import NDB_REPLICATION, NDB_REPLICATION_TABLE
from tidemark.session import Transaction

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.replication.channel.endpoint import Endpoint

_log = logging.getLogger("tidemark")


def set_conflict_function(
    endpoint: Endpoint,
    make: Callable[[TableDefinition], object],
    table: str,
    function: str | None,
    exceptions: bool,
) -> None:
    """See `Database.set_conflict_function`. make: creates a table."""
    store, binlog = endpoint.store, endpoint.binlog
    definition = store.tables.named(table).definition
    if is_system_table(definition.name):
        raise SchemaInvalid(f"{definition.name} has no conflict function; name a table of rows", table=definition.name)
    server_id = endpoint.settings.server_id
    if not server_id:
        raise Rejected(
            "the row of mysql.ndb_replication names the site, and this store was opened without one; open it with"
            " server_id=N",
            option="server_id",
        )
    spec = None if function is None else spec_of(definition, function)
    database, _, name = definition.name.partition(".")
    row = ReplicationRow(database, name, server_id, FULL_USE_UPDATE, spec)
    known = {each: found.definition for each, found in list(store.tables.by_name.items())}
    made = [] if NDB_REPLICATION in known else [NDB_REPLICATION_TABLE]
    recorded = exceptions_of(definition.name, known)
    if recorded is None and exceptions:
        recorded = exceptions_definition(definition)
        made.append(recorded)
    elif recorded is not None and exceptions:
        for fault in plan_exceptions(definition, recorded)[1]:
            raise SchemaInvalid(f"{fault.text}; drop the table, it is made again", table=recorded.name)
    setup = set_up(definition, row, endpoint.settings, recorded)
    for fault in setup.faults:
        raise SchemaInvalid(fault.text, table=definition.name, rule=fault.rule, column=fault.column)
    if binlog is not None:
        binlog.check_logged(definition)
    for each in made:
        try:
            make(each)
        except TableExists:
            _log.debug("another thread has made %s", each.name)
    _write(endpoint, row)
    if binlog is not None:
        binlog.set_up(definition)
    for remark in setup.remarks:
        _log.warning("%s: %s", definition.name, remark.text)
    for channel in list(endpoint.channels.values()):
        if channel.is_applying:
            _log.warning("%s: channel %s decides by the new row after its next start", definition.name, channel.name)


def spec_of(definition: TableDefinition, function: object) -> str:
    """Return the `conflict_fn` for a function as a user writes it, parentheses optional. Raises: SchemaInvalid,
    NoSuchColumn.
    """
    if not isinstance(function, str):
        raise SchemaInvalid(f'the function must be text such as "NDB$EPOCH_TRANS", or None; got {function!r}')
    name, opened, _ = function.strip().partition("(")
    found = BY_NAME.get(name.strip())
    if found is None:
        raise SchemaInvalid(
            f"there is no conflict function {name.strip()!r}; {alternatives(name.strip().upper(), BY_NAME)}",
            function=function,
        )
    fitting = [column.name for column in definition.columns if column.type in RESOLVE_TYPES]
    if not opened and found.argument == COLUMN:
        advice = f"{found.name}({fitting[0] if fitting else 'column'})"
        raise SchemaInvalid(f'{found.name} compares a column; give "{advice}"', function=function)
    parsed = parse(function if opened else f"{found.name}()")
    if found.argument == COLUMN:
        _check_column(definition, parsed, fitting)
    return f"{found.name}({'' if parsed.argument is None else parsed.argument})"


def _check_column(definition: TableDefinition, function: ConflictFunction, fitting: list[str]) -> None:
    column = next((each for each in definition.columns if each.name == function.column), None)
    if column is None:
        raise no_such_column(definition.name, function.column, (each.name for each in definition.columns))
    if column.type not in RESOLVE_TYPES:
        fits = f"columns that fit are {', '.join(fitting)}" if fitting else "add one with add_column"
        raise SchemaInvalid(
            f"{function.name} compares {UInt32!r} or {UInt64!r}, and {definition.name}.{column.name} is"
            f" {column.type!r}; {fits}",
            table=definition.name,
            column=column.name,
        )


def _write(endpoint: Endpoint, row: ReplicationRow) -> None:
    """Write the row, in place of the one that names this table and site exactly, if there is one."""
    place = (row.database, row.table, row.server_id)
    rows = endpoint.replication_rows()
    exact = [each for each in rows if quality_of(each, *place) == EXACT]
    if len(exact) > 1:
        raise SchemaInvalid(
            f"rows {', '.join(sorted(each.key for each in exact))} of {NDB_REPLICATION} name one table; delete all but"
            " one"
        )
    named = exact[0] if exact else row
    key = (_bytes(named.database), _bytes(named.table), named.server_id)
    changes = {
        "binlog_type": row.binlog_type,
        "conflict_fn": None if row.conflict_fn is None else _bytes(row.conflict_fn),
    }
    with endpoint.store.transactions.begin(kind=Transaction) as txn:
        if exact:
            txn.update(NDB_REPLICATION, key, changes)
        else:
            txn.insert(NDB_REPLICATION, dict(zip(("db", "table_name", "server_id"), key, strict=True)) | changes)
    rows = [*(each for each in rows if each not in exact), row]
    for name in list(endpoint.store.tables.by_name):
        if is_system_table(name) or name == f"{row.database}.{row.table}":
            continue
        if find_row(rows, *name.partition(".")[::2], row.server_id).row is row:
            text = "the row of %s.%s also matches %s, for _ stands for any character; give %s a row of its own"
            _log.warning(text, row.database, row.table, name, name)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
