"""Schema changes from the log of another node, applied here as users made them there (docs/internals/node-group.md).

The record of a change has its numbers, versions and sizes. If the change gives different ones here, the copies have
diverged: `Store.applying` compares the two records.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import InvariantBroken, TablespaceInUse
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.index_renewal import change_and_renew
from tidemark.engine.store.schema_changes import change_columns, is_change_of_columns, renewed_indexes

if TYPE_CHECKING:
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

USE_POLL_SECONDS = 0.02


def apply_change(store: Store, change: dict[str, Any]) -> None:
    """Apply a change. Durable on return: data files it creates. Raises: errors of the change; InvariantBroken."""
    with store.schema.applying(change):
        if "create" in change:
            definition = _definition(change["create"])
            store.tables.next_id = max(store.tables.next_id, definition.table_id)
            store.create_table(definition)
        elif "alter" in change:
            _alter(store, _definition(change["alter"]))
        elif "tablespace" in change:
            tablespace = TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
            store.space.next_tablespace_id = max(store.space.next_tablespace_id, tablespace.tablespace_id)
            store.space.next_file_id = max(store.space.next_file_id, *tablespace.file_ids)
            store.create_tablespace(tablespace, change["size_bytes"])
        elif "datafile" in change:
            store.space.next_file_id = max(store.space.next_file_id, change["datafile"])
            store.add_datafile(_tablespace(store, change["tablespace_id"]), change["size_bytes"])
        elif "drop_tablespace" in change:
            _drop_tablespace(store, _tablespace(store, change["drop_tablespace"]))
        else:
            store.drop_table(_table(store, change["drop"]).name)


def _definition(value: dict[str, Any]) -> TableDefinition:
    return TableDefinition.from_json(json.dumps(value).encode())


def _table(store: Store, table_id: int) -> Table:
    table = store.tables.by_id.get(table_id)
    if table is None:
        raise InvariantBroken(
            f"the primary changes table number {table_id}, which does not exist here; copy the store from it"
        )
    return table


def _tablespace(store: Store, tablespace_id: int) -> str:
    for each in store.space.definitions():
        if each.tablespace_id == tablespace_id:
            return each.name
    raise InvariantBroken(
        f"the primary changes tablespace number {tablespace_id}, which does not exist here; copy the store from it"
    )


def _alter(store: Store, after: TableDefinition) -> None:
    table = _table(store, after.table_id)
    before = table.definition
    if table.is_change_of_indexes(after):
        names = {each.name for each in before.indexes}
        gone = names - {each.name for each in after.indexes}
        if gone:
            store.drop_index(table.name, gone.pop())
        else:
            store.create_index(table.name, next(each for each in after.indexes if each.name not in names))
    elif table.is_change_of_partitions(after):
        store.change_partitions(table.name, lambda _: after.partition)
    elif is_change_of_columns(before, after) and renewed_indexes(before, after):
        change_and_renew(store, table, lambda _, __: after)
    elif is_change_of_columns(before, after):
        change_columns(store, table.name, lambda _: after)
    else:
        raise InvariantBroken(
            f"version {after.version} of table {after.name} cannot follow version {before.version}, which is here;"
            " copy the store from the primary"
        )


def _drop_tablespace(store: Store, name: str) -> None:
    """Wait for readers of this node that still use a dropped table in a tablespace, then drop it. Raises:
    TablespaceInUse.
    """
    deadline = store.locks.deadline()
    while True:
        try:
            return store.drop_tablespace(name)
        except TablespaceInUse:
            if store.clock.monotonic() >= deadline:
                raise
        store.clock.sleep(USE_POLL_SECONDS)
