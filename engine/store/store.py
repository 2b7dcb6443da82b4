"""The assembled engine: one open store, its tables and their schema changes, and its transactions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.snapshot import Snapshots
from tidemark.engine.base.errors import (
    TableExists,
    TablespaceExists,
    TablespaceInUse,
)
from tidemark.engine.disk.disk_layout import UNDO_CREATE, UNDO_DROP
from tidemark.engine.disk.tablespaces import DEFAULT_BYTES, DEFAULT_NAME, PAGE_BYTES, TablespaceDefinition
from tidemark.engine.index.stored import StoredIndex, StoredUnique
from tidemark.engine.schema.row_shape import check_disk_part_fits
from tidemark.engine.store.index_build import IndexBuild, TreeFilling, drop_index
from tidemark.engine.store.schema_log import SchemaLog
from tidemark.engine.store.sequences import Sequences
from tidemark.engine.store.unique_build import HashFilling
from tidemark.engine.table.table import DroppedFragment, Table
from tidemark.engine.txn.transactions import Transactions

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.schema.partition import Partition
    from tidemark.engine.txn.resources import Resources


class Store:
    """An open store: its parts, and the changes of its schema, each logged first (D15)."""

    def __init__(self, resources: Resources) -> None:
        """Make the parts, without rows."""
        self.resources = resources
        self.transactions = Transactions(resources)
        self.schema = SchemaLog(resources)
        self.sequences = resources.sequences = Sequences()
        self.snapshots = Snapshots(resources)
        self.arena = resources.arena
        self.mem = resources.mem
        self.options = resources.options
        self.clock = resources.clock
        self.failure = resources.failure
        self.latch = resources.latch
        self.locks = resources.locks
        self.log = resources.log
        self.room = resources.room
        self.epochs = resources.epochs
        self.spools = resources.spools
        self.disk = resources.disk
        self.space = resources.disk.space
        self.deletes = resources.deletes
        self.tables = resources.tables
        self.users = resources.users

    def create_table(self, definition: TableDefinition) -> Table:
        """Create a table, schema record first (D15). Durable on return. Raises: TableExists, MemoryExhausted,
        StoreFailed.
        """
        with self.schema.changing():
            if definition.name in self.tables.by_name:
                raise TableExists(f"table {definition.name} exists; choose another name, or drop that table first")
            numbered = replace(definition, table_id=self.tables.next_id, version=1, **self._tablespace_for(definition))
            # In memory first, without a visible name: if memory is exhausted, the call fails before anything is logged.
            table = self.tables.make(numbered)
            self.tables.next_id += 1
            mark = (lambda: self.disk.undo.record_table(UNDO_CREATE, table.table_id)) if table.format.has_disk else None
            try:
                self.schema.log({"create": json.loads(numbered.to_json())}, lambda: self.tables.publish(table), mark)
            except BaseException:
                if table.table_id not in self.tables.by_id:
                    table.drop()
                raise
            return table

    def drop_table(self, name: str) -> None:
        """Drop a table. Durable on return. Raises: NoSuchTable, StoreFailed."""
        with self.schema.changing():
            table = self.tables.named(name)

            def forget() -> None:
                self.tables.forget(table)
                table.mark_dropped()

            mark = (lambda: self.disk.undo.record_table(UNDO_DROP, table.table_id)) if table.format.has_disk else None
            try:
                self.schema.log({"drop": table.table_id, "name": table.name}, forget, mark)
            finally:
                if table.is_dropped:
                    self.users.release(table)
        if table.format.numbered is not None:
            self.sequences.drop(self.resources, table.table_id)

    # --- partitions ------------------------------------------------------------------------------
    def add_partition(self, name: str, partition: str, bound: Any) -> None:
        """Add a partition to a table: after its last range, or for values that no list has. Durable on return.

        Raises: NoSuchTable, SchemaInvalid, LimitExceeded, MemoryExhausted, StoreFailed.
        """
        self.change_partitions(name, lambda table: table.definition.partition.with_partition(partition, bound))

    def drop_partition(self, name: str, partition: str) -> None:
        """Drop a partition and its rows. Durable on return. Raises: NoSuchTable, NoSuchPartition, SchemaInvalid,
        MemoryExhausted, StoreFailed.
        """

        def without(table: Table) -> Partition:
            table.numbers_of([partition])
            return table.definition.partition.without_partition(partition)

        self.change_partitions(name, without)

    def change_partitions(self, name: str, changed: Callable[[Table], Partition]) -> None:
        """Change the partitions of a table to the result of `changed`. Durable on return. Raises: NoSuchTable,
        MemoryExhausted, StoreFailed, and errors of `changed`.
        """
        with self.schema.changing():
            table = self.tables.named(name)
            before = table.definition
            change = table.prepare(replace(before, version=before.version + 1, partition=changed(table)))
            try:
                self.schema.log({"alter": json.loads(change.definition.to_json())}, lambda: table.apply(change))
            finally:
                # A full log, or Ctrl-C while waiting for room: nothing has changed. Ctrl-C after that: the change is
                # logged.
                if table.definition is not change.definition:
                    table.discard_change(change)
                elif change.gone:
                    self.users.release(DroppedFragment(table, change.gone))

    # --- indexes ---------------------------------------------------------------------------------
    def create_index(
        self, name: str, definition: IndexDefinition, progress: Callable[[int, int, str], None] | None = None
    ) -> None:
        """Build an index of a table while transactions run. Durable on return; after an error there is no index.
        Raises: NoSuchTable, IndexExists, NoSuchColumn, SchemaInvalid, LockTimeout, MemoryExhausted, StoreFailed; for a
        unique index DuplicateKey, if two rows have the same key.
        """
        fillings: dict[Any, Any] = {StoredIndex: TreeFilling, StoredUnique: HashFilling}
        IndexBuild(self.schema, name, definition, progress, fillings).run()

    def drop_index(self, name: str, index: str) -> None:
        """Drop an index of a table. Durable on return. Raises: NoSuchTable, NoSuchIndex, StoreFailed."""
        drop_index(self.schema, name, index)

    def _tablespace_for(self, definition: TableDefinition) -> dict[str, Any]:
        """Return the tablespace of a new table with disk columns as a field of its definition; create `main` if it is
        needed and missing. Raises: NoSuchTablespace, StorageFull, MemoryExhausted.
        """
        if not definition.has_disk:
            return {}
        name = definition.tablespace or DEFAULT_NAME
        if definition.tablespace is None and name not in self.space.by_name:
            check_disk_part_fits(definition, PAGE_BYTES)
            self._make_tablespace(TablespaceDefinition(0, name), DEFAULT_BYTES)
        tablespace = self.space.named(name).definition
        check_disk_part_fits(definition, tablespace.page_bytes)
        return {"tablespace": tablespace.name}

    # --- tablespaces -----------------------------------------------------------------------------
    def create_tablespace(self, definition: TablespaceDefinition, size_bytes: int) -> None:
        """Create a tablespace with one data file, the file first, then the schema record (D15). Durable on return.

        Raises: TablespaceExists, StorageFull, MemoryExhausted, SchemaInvalid, LimitExceeded, StoreFailed.
        """
        with self.schema.changing():
            self._make_tablespace(definition, size_bytes)

    def _make_tablespace(self, definition: TablespaceDefinition, size_bytes: int) -> None:
        if definition.name in self.space.by_name:
            raise TablespaceExists(f"tablespace {definition.name} exists; choose another name, or add_datafile() to it")
        self.disk.begin_first()
        made = self.space.make(definition, size_bytes, self.clock.wall_us())
        change = {"tablespace": json.loads(made.definition.to_json()), "size_bytes": size_bytes}
        self.schema.log(change, lambda: self.space.publish(made))

    def add_datafile(self, name: str, size_bytes: int) -> None:
        """Add a data file to a tablespace, the file first. Durable on return. Raises: NoSuchTablespace, and the errors
        of `create_tablespace`.
        """
        with self.schema.changing():
            tablespace = self.space.named(name)
            made = self.space.make_file(tablespace, size_bytes, self.clock.wall_us())
            number = tablespace.definition.tablespace_id
            change = {"datafile": made.file_id, "tablespace_id": number, "size_bytes": size_bytes}
            self.schema.log(change, lambda: self.space.publish_file(tablespace, made))

    def drop_tablespace(self, name: str) -> None:
        """Drop a tablespace that holds no table. Durable on return; its files are removed when no kept local checkpoint
        names it. Raises: NoSuchTablespace, TablespaceInUse, StorageFull, MemoryExhausted, StoreFailed.
        """
        with self.schema.changing():
            tablespace = self.space.named(name)
            tables = [each for each in self.tables.by_name.values() if each.definition.tablespace == name]
            if tables or self.space.is_used(tablespace):
                who = f"table {tables[0].name}" if tables else "a dropped table that transactions still read"
                raise TablespaceInUse(
                    f"tablespace {name} is in use by {who}; end the transactions that use it, or drop its tables first",
                    tablespace=name,
                )
            self.disk.forget_pages(tablespace)
            change = {"drop_tablespace": tablespace.definition.tablespace_id}
            try:
                self.schema.log(change, lambda: self.space.forget(tablespace))
            finally:
                if name not in self.space.by_name:
                    self.space.release(tablespace)
