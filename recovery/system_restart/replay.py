"""Replays the REDO log after the checkpoints: schema records first, then rows, fragments in parallel (D8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import RedoDamaged, Rejected, SysfileDamaged
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.log.records import InvalidRecord, schema_of
from tidemark.engine.log.redo_layout import KIND_SCHEMA, TRANSACTION_WORDS
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.replay import Replay
from tidemark.engine.store.schema_changes import is_change_of_columns
from tidemark.engine.types.base import is_int
from tidemark.recovery.system_restart.load import run_parts

if TYPE_CHECKING:
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.delete_log import DeleteLog
    from tidemark.recovery.system_restart.spool import Spooled

    Adopt = Callable[[Table], None]


def schema_changes(groups: list[GroupRead]) -> list[tuple[int, dict[str, Any]]]:
    """Return (epoch, change) of every schema record, in log order. Raises: RedoDamaged."""
    return [
        (group.epoch, schema_change(group, frame.at + TRANSACTION_WORDS, frame.end))
        for group in groups
        for frame in group.transaction_frames(KIND_SCHEMA)
    ]


def schema_change(group: GroupRead, at: int, stop: int) -> dict[str, Any]:
    """Return the schema record in words[at:stop] of a group. The content of an intact group is checked too (F112).

    Raises: RedoDamaged.
    """
    start = (at + 2) * 8
    try:
        change = schema_of(group.words, at, stop)
        if "create" in change or "alter" in change:
            definition_in(change)
        elif "tablespace" in change:
            TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
        elif "datafile" in change:
            if not is_int(change["datafile"]) or not is_int(change["tablespace_id"]):
                raise TypeError("a data file must be added by its number and that of its tablespace")
        elif not is_int(change["drop_tablespace" if "drop_tablespace" in change else "drop"]):
            raise TypeError("tables and tablespaces must be dropped by their number")
    except (InvalidRecord, ValueError, LookupError, TypeError, RecursionError, Rejected) as error:
        raise RedoDamaged(
            f"the schema record at LSN {group.lsn + start} is invalid ({error}); restore from a backup", lsn=group.lsn
        ) from error
    return change


def definition_in(change: dict[str, Any]) -> TableDefinition:
    """Return the table definition in a "create" or "alter" record. Raises: SchemaInvalid."""
    return TableDefinition.from_json(json.dumps(change["create" if "create" in change else "alter"]).encode())


def apply_schema(
    store: Store, changes: list[tuple[int, dict[str, Any]]], known_epoch: int, adopt: Adopt | None = None
) -> None:
    """Apply the log's schema changes from after the checkpoint. What the log drops is removed at once: replay skips
    operations on it. adopt: called with each table that has new fragments, which allocate from the store's only pool
    otherwise. Raises: RedoDamaged, SysfileDamaged, MemoryExhausted.
    """
    try:
        _apply_schema(store, changes, known_epoch, adopt)
    except Rejected as error:
        # A record was valid when it was written, so one that names a missing object is damaged (F112).
        raise RedoDamaged(
            f"a schema record does not fit the tables before it ({error.message}); restore from a backup"
        ) from error


def _apply_schema(
    store: Store, changes: list[tuple[int, dict[str, Any]]], known_epoch: int, adopt: Adopt | None
) -> None:
    dropped = {change["drop"] for _, change in changes if "drop" in change}
    # Drops first: a table created later may have the name of one dropped before.
    for table_id in dropped:
        table = store.tables.by_id.get(table_id)
        if table is not None:
            store.tables.remove(table)
    _apply_tablespaces(store, [change for epoch, change in changes if epoch > known_epoch])
    for epoch, change in changes:
        if "alter" in change:
            definition = definition_in(change)
            if definition.table_id not in dropped:
                alter_table(store, definition, adopt)
        elif "create" in change and epoch > known_epoch:
            definition = definition_in(change)
            store.tables.next_id = max(store.tables.next_id, definition.table_id + 1)
            if definition.table_id not in dropped:
                table = store.tables.install(definition)
                if adopt is not None:
                    adopt(table)


def alter_table(store: Store, definition: TableDefinition, adopt: Adopt | None = None) -> None:
    """Change a table to the next version of its definition, unless it has that already. adopt: as in `apply_schema`.
    Raises: RedoDamaged.
    """
    table = store.tables.by_id.get(definition.table_id)
    if table is not None and definition.version <= table.definition.version:
        return
    is_next = table is not None and definition.version == table.definition.version + 1
    if table is not None and is_next and table.is_change_of_indexes(definition):
        table.publish_definition(definition, ())  # its trees are built after the last operation
        return
    if table is not None and is_next and is_change_of_columns(table.definition, definition):
        store.tables.replace(table, table.altered(definition))
        return
    if table is None or not is_next or not table.is_change_of_partitions(definition):
        raise RedoDamaged(
            f"the log has version {definition.version} of table {definition.name}, but no version that it can follow;"
            " restore from a backup"
        )
    change = table.prepare(definition)
    table.apply(change)
    if change.gone:
        table.drop_fragment(change.gone)  # memory is private: no other thread can see it
    if adopt is not None:
        adopt(table)


def _apply_tablespaces(store: Store, changes: list[dict[str, Any]]) -> None:
    """Open tablespaces and data files created after the checkpoint; forget dropped tablespaces, which hold no table.

    The files of tablespaces that were both created and dropped after the checkpoint may be gone.
    """
    space = store.space
    if not store.disk.is_started and any("tablespace" in change for change in changes):
        raise SysfileDamaged(
            "the sysfile says that there is no UNDO log, the log that there are tablespaces; restore the store from a"
            " backup"
        )
    dropped = {change["drop_tablespace"] for change in changes if "drop_tablespace" in change}
    for tablespace in space.tablespaces():
        if tablespace.definition.tablespace_id in dropped:
            space.forget(tablespace)
            space.release(tablespace)
    for change in changes:
        if "tablespace" in change:
            definition = TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
            space.number(definition)
            if definition.tablespace_id not in dropped:
                space.restore(definition)
        elif "datafile" in change:
            space.next_file_id = max(space.next_file_id, change["datafile"] + 1)
            space.restore_file(change["tablespace_id"], change["datafile"])


def replay(store: Store, groups: list[GroupRead], spooled: Spooled, parts: int, directory: Words) -> int:
    """Replay all groups strictly, for the tables in `directory`; return the number of operations. Raises:
    RedoDamaged.
    """
    replays = [Replay(store, directory, part, parts) for part in range(parts)]

    def work(part: int) -> None:
        for group in groups:
            for some in spooled.records(group):
                some.replay(replays[part])

    run_parts(parts, work)
    return sum(each.operations for each in replays)


def note_deletes(deletes: DeleteLog | None, groups: list[GroupRead], spooled: Spooled, after: int) -> None:
    """Begin the delete log, which is in memory only, with the replayed deletes: all those after epoch `after`."""
    if deletes is None:
        return
    deletes.begin_after(after)
    for group in groups:
        for some in spooled.records(group):
            deletes.note_records(some.words, some.start, some.stop, group.epoch)
