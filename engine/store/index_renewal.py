"""Indexes over a column that gets a wider type, built anew beside those in force; one step puts them in their place
(ADR 0045).

The new parts are announced, and trees are filled, as for a new index. A crash or an error before the end leaves the old
ones. What commits change meanwhile is in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import SchemaInvalid, Unsupported
from tidemark.engine.index.index_layout import LISTED_MAX
from tidemark.engine.index.stored import StoredIndex, StoredUnique, kinds_of
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.store.index_build import IndexBuild, TreeFilling, drop_parts
from tidemark.engine.store.schema_changes import renewed_indexes
from tidemark.engine.store.unique_build import HashFilling

if TYPE_CHECKING:
    from tidemark.engine.index.stored import AnyIndex
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

    # Returns the definition after the change, for a version of the table; it may refuse, at each step.
    Change = Callable[[Table, "IndexRenewals"], TableDefinition]


class _HeldFilling(HashFilling):
    """How a hash is filled whose column gets its values just now, from rows whose writers wait.

    Before they wait a row may still have the value of another one, or none. So all rows are walked, each time; nothing
    is enforced before the new place is in force.
    """

    def walk(self, table: Table) -> None:
        self.walked = -1
        super(HashFilling, self).walk(table)


class _Renewal(IndexBuild):
    """One index that is built anew."""

    adding = "its column was being widened"

    def __init__(self, store: Store, name: str, definition: IndexDefinition, is_held: bool) -> None:
        fillings = {StoredIndex: TreeFilling, StoredUnique: _HeldFilling if is_held else HashFilling}
        super().__init__(store.schema, name, definition, None, fillings)

    def announce(self, table: Table, view: Table) -> None:
        self._table = table
        self._make_parts(table, view)

    def fill_tree(self, table: Table) -> None:
        for filling in self._fillings:
            if isinstance(filling, TreeFilling):
                filling.walk(table)


class IndexRenewals:
    """The indexes that read a column which gets a wider type, from their announcement to the publication."""

    def __init__(self, store: Store, table: Table, change: Change, is_held: bool) -> None:
        """Prepare a change; no index is looked at yet. is_held: writers of the table wait while `walk` and `publish`
        are called.
        """
        self._store, self._table, self._change, self._is_held = store, table, change, is_held
        self._builds: list[_Renewal] = []
        self._replaced: list[AnyIndex] = []

    @property
    def _parts(self) -> list[AnyIndex]:
        return [part for build in self._builds for part in build.parts]

    def others(self, table: Table) -> tuple[IndexDefinition, ...]:
        """Return the indexes that others are building."""
        mine = self._parts
        return tuple(each.definition for each in table.building if each not in mine)

    def begin(self) -> None:
        """Announce the new parts, wait until all open transactions maintain them, and fill the trees. Raises:
        LockTimeout, MemoryExhausted, Unsupported, and errors of the change.
        """
        store = self._store
        with store.schema.changing():
            table = self._table.newest
            table.check()
            after = self._change(table, self)
            wanted = renewed_indexes(table.definition, after)
            _check_room(table, wanted)
            view = table.altered(after)
            for definition in wanted:
                build = _Renewal(store, table.name, definition, self._is_held)
                self._builds.append(build)
                build.announce(table, view)
        for build in self._builds:
            build.begin_filling(table)
            build.fill_tree(table.newest)

    def walk(self, table: Table) -> None:
        """Add the entries of the rows that have none. Raises: as `Filling.walk_fragment`."""
        for build in self._builds:
            build.walk(table)

    def publish(self, table: Table) -> bool:
        """Log the change and show it with its indexes, in one step; False if a fragment is not walked yet. The caller
        holds the latch of schema changes. Durable on return. Raises: SchemaInvalid if other indexes read the column
        now, and errors of the change.
        """
        store, built = self._store, self._parts
        after = self._change(table, self)
        self._check_same(table, after)
        if not all(build.is_walked(table) for build in self._builds):
            return False
        view = table.with_parts(after, built)
        if view.format.numbered is not None:
            store.sequences.look_again(table.table_id)  # it may continue past the narrower type
        replaced = [part for build in self._builds for part in table.parts_of(build.definition.name)]

        def show() -> None:
            view.publish_parts(built)
            store.tables.replace(table, view)
            view.withdraw_parts(replaced)
            self._replaced = replaced

        store.schema.log({"alter": json.loads(after.to_json())}, show)
        return True

    def _check_same(self, table: Table, after: TableDefinition) -> None:
        wanted = renewed_indexes(table.definition, after)
        layout = compute_layout(after)
        is_same = wanted == tuple(build.definition for build in self._builds)
        if not is_same or any(part.moved_columns(after, layout) for part in self._parts):
            raise SchemaInvalid(
                f"indexes of {table.name} were changed while one of their columns was being widened; try again",
                table=table.name,
            )

    def end(self) -> None:
        """Free the parts that were replaced, or those that were not published."""
        for build in self._builds:
            build.undo()
        drop_parts(self._replaced)


def change_and_renew(store: Store, table: Table, change: Change) -> None:
    """Change a column in whose rows no byte changes, and the indexes that read it. Durable on return; after an error
    all is what it was. Raises: LockTimeout, MemoryExhausted, Unsupported, and errors of the change.
    """
    renewals = IndexRenewals(store, table, change, is_held=False)
    users = store.users
    try:
        users.pin(renewals)  # fragments dropped meanwhile keep their rows
        renewals.begin()
        while not _publish(store, table, renewals):
            renewals.walk(table.newest)
    finally:
        renewals.end()
        users.unpin(renewals)


def _publish(store: Store, table: Table, renewals: IndexRenewals) -> bool:
    with store.schema.changing():
        newest = table.newest
        newest.check()
        return renewals.publish(newest)


def _check_room(table: Table, wanted: tuple[IndexDefinition, ...]) -> None:
    """Check that a table can list the new parts beside all others. Raises: Unsupported."""
    held = len(table.listed_indexes()) + len(table.building)
    more = sum(len(kinds_of(each)) for each in wanted)
    if held + more > LISTED_MAX:
        raise Unsupported(
            f"{table.name} has {held} trees and hashes of indexes, and {more} more would be built to widen the column,"
            f" beyond {LISTED_MAX}; drop an index, and create it again afterwards",
            table=table.name,
        )
