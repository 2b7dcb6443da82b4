"""The tables of one store, by name and by number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, MemoryExhausted
from tidemark.engine.disk.tablespaces import DEFAULT_NAME
from tidemark.engine.memory.arena_layout import CAPTURE_CHANGED, CAPTURE_NONE, CAPTURE_WHOLE
from tidemark.engine.schema.names import no_such_table, qualified_name
from tidemark.engine.table.table import Table
from tidemark.engine.txn import before_images_kernels

if TYPE_CHECKING:
    from tidemark.engine.disk.columns import DiskColumns
    from tidemark.engine.memory.arena import Arena, Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.txn.views import Views


def set_capture(table: Table, capture: int) -> None:
    """Set which before-images the operations on a table log, a CAPTURE_ value. Does nothing for a dropped table."""
    if capture not in (CAPTURE_NONE, CAPTURE_CHANGED, CAPTURE_WHOLE):
        raise InvariantBroken(f"{table.name} cannot capture images in the way {capture}; report this")
    before_images_kernels.set_capture(table.mem, table.handle, capture)


class Tables:
    """The tables of one store."""

    def __init__(self, arena: Arena, seed: int, disk: DiskColumns | None, views: Views) -> None:
        """seed: of the hash over primary keys. disk: None in a view of a local checkpoint."""
        self._arena = arena
        self._disk = disk
        self._views = views
        self.seed = seed
        self.by_name: dict[str, Table] = {}  # by qualified name
        self.by_id: dict[int, Table] = {}  # by number
        self.next_id = 1
        # By the names that callers have used, and in full. Replaced when a table gets another name or version, so that
        # a lookup that began before writes into the former dictionary.
        self.known: dict[str, Table] = {}
        # Returns which before-images a table logs for followers; called when the table is made.
        self.capture_of: Callable[[TableDefinition], int] = lambda definition: CAPTURE_NONE
        # Creates a table when it is first named; not called with the latch of schema changes held.
        self.make_named: Callable[[str], Table | None] = lambda name: None

    def named(self, name: str) -> Table:
        """Return the table of this name. Raises: NoSuchTable."""
        known = self.known
        try:
            found = known.get(name)
        except TypeError:  # an unhashable object, which `qualified_name` refuses
            found = None
        if found is None:
            qualified = qualified_name(name)
            found = self.by_name.get(qualified) or self.make_named(qualified)
            if found is None:
                raise no_such_table(name, self.by_name)
            known[name] = known[found.name] = found
        return found

    def with_unique_index(self) -> Words:
        """Return the numbers of the tables that have a unique index, built or being built."""
        tables = list(self.by_id.values())
        return np.array([each.table_id for each in tables if each.unique_columns], dtype=np.int64)

    def directory(self) -> Words:
        """Return table handles by table number, for all numbers ever assigned; 0 for dropped tables.

        Raises: MemoryExhausted.
        """
        count = max(self.next_id, max(self.by_id, default=0) + 1)
        try:
            directory = np.zeros(count, dtype=np.int64)
        except MemoryError:
            raise MemoryExhausted(
                f"{count} table numbers have been used, and there is no memory for a directory of them; copy the"
                " tables into a new store"
            ) from None
        for table_id, table in self.by_id.items():
            directory[table_id] = table.handle
        return directory

    def make(self, definition: TableDefinition) -> Table:
        """Return a new, empty table that has no name yet. Raises: MemoryExhausted, NoSuchTablespace."""
        tablespace = None
        if definition.has_disk and self._disk is not None:
            tablespace = self._disk.space.named(definition.tablespace or DEFAULT_NAME).address
        table = Table(self._arena, definition, self.seed, self._disk, self._views, tablespace)
        capture = self.capture_of(definition)
        if capture:
            set_capture(table, capture)
        return table

    def publish(self, table: Table) -> None:
        """Show a table under its name and its number."""
        self.by_name[table.name] = table
        self.by_id[table.table_id] = table

    def replace(self, table: Table, view: Table) -> None:
        """Show a new version of a table to all later lookups. Cannot fail."""
        view.publish()
        self.by_id[view.table_id] = view
        if table.name == view.name:
            self.by_name[view.name] = view
        else:  # in one step: a reader always finds the table under exactly one name
            kept = {name: each for name, each in self.by_name.items() if each.table_id != view.table_id}
            self.by_name = {**kept, view.name: view}
        self.known = {}

    def forget(self, table: Table) -> None:
        """Show a table no more. Repeating the call changes nothing."""
        self.by_name.pop(table.name, None)
        self.known = {}
        self.by_id.pop(table.table_id, None)

    def install(self, definition: TableDefinition) -> Table:
        """Make and publish a table in memory (restart)."""
        table = self.make(definition)
        self.publish(table)
        self.next_id = max(self.next_id, definition.table_id + 1)
        return table

    def remove(self, table: Table) -> None:
        """Forget a table and free its memory (restart)."""
        self.forget(table)
        table.drop()
