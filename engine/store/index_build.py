"""Indexes created and dropped while transactions run (docs/internals/access.md, 7).

Order: create the index in memory and announce it, so that transactions that begin from now on reserve entries in it;
wait for older transactions; add the entries of all rows, in slices; then log and publish the index in one step. A crash
or an error before that leaves no index.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import IndexExists, InvariantBroken, LockTimeout, MemoryExhausted, NoSuchTable
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.lists_kernels import announce_index, withdraw_index
from tidemark.engine.index.ordered import SLICE_ENTRIES, SLICE_SLOTS
from tidemark.engine.index.stored import StoredIndex, drop_unlisted
from tidemark.engine.index.tree_build_kernels import tree_add_rows
from tidemark.engine.memory.arena_layout import OK, ST_MORE, X_GENERATION
from tidemark.engine.memory.handles_kernels import descriptor_word, set_descriptor_word
from tidemark.engine.schema.types_base import counted

if TYPE_CHECKING:
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.store.schema_log import SchemaLog
    from tidemark.engine.table.table import AnyIndex, Table

Progress = Callable[[int, int, str], None]
POLL_SECONDS = 0.001
NAMED_MAX = 3  # transactions in a message
SLICE_SECONDS = 0.000_15
SLICE_ENTRIES_MIN = 16


class IndexBuild:
    """One online build."""

    def __init__(self, store: SchemaLog, name: str, definition: IndexDefinition, progress: Progress | None) -> None:
        """Prepare the build. name: of the table. progress: called with (rows done, total rows, "rows")."""
        self._store = store
        self._name = name
        self._definition = definition
        self._progress = progress
        self._table: Table | None = None
        self._index: AnyIndex | None = None
        self._walked = -1  # number of the last fragment with entries of all its rows
        self._rows = 0
        self._entries = SLICE_ENTRIES_MIN  # size of the next slice

    def run(self) -> None:
        """Build the index. Durable on return. Raises: see `Store.create_index`; after an error there is no index."""
        store = self._store
        try:
            store.pin(self)  # fragments dropped meanwhile keep their rows
            table, index = self._announce()
            self._wait_for_older(table, index)
            while not self._publish(table, index):
                self._walk(table, index)
        except BaseException:
            self._undo()
            raise
        finally:
            store.unpin(self)

    def _announce(self) -> tuple[Table, AnyIndex]:
        store, definition = self._store, self._definition
        store.await_schema_room()
        with store.schema_latch:
            store.failure.check()
            self._table = table = store.table(self._name)
            if definition.name in {*table.indexes, *table.uniques, *table.building}:
                raise IndexExists(
                    f"table {table.name} has an index {definition.name}; choose another name, or drop that index first",
                    table=table.name,
                    index=definition.name,
                )
            before = table.definition
            waiting = tuple(each.definition for each in table.building.values())
            replace(before, indexes=(*before.indexes, *waiting, definition))  # raises if the definition is invalid
            self._index = index = table.make_index(definition, ix.INDEX_ANNOUNCED)
            table.announce(index)
            if announce_index(store.mem, table.handle, index.tree.handle) != OK:
                raise MemoryExhausted("data_memory has no room for another index; enlarge data_memory")
            store.index_generation += 1
            return table, index

    def _check(self, table: Table) -> None:
        self._store.failure.check()
        if table.is_dropped:
            raise NoSuchTable(
                f"table {table.name} was dropped while its index was being built; see tables()", table=table.name
            )

    def _wait_for_older(self, table: Table, index: AnyIndex) -> None:
        """Wait until every transaction that reserves nothing for the index has ended."""
        store = self._store
        self._wait_for(table, index, int(descriptor_word(store.mem, index.tree.handle, ix.I_BIRTH)))
        set_descriptor_word(store.mem, index.tree.handle, ix.I_STATE, ix.INDEX_BUILDING)

    def _wait_for(self, table: Table, index: AnyIndex, birth: int) -> None:
        """Wait until every transaction of an older generation has ended. Raises: LockTimeout."""
        store = self._store
        deadline = store.locks.deadline()
        while True:
            store.end_abandoned()
            older = [place for place in store.open_now() if int(store.mem[place.desc + X_GENERATION]) < birth]
            if not older:
                return
            self._check(table)
            if store.clock.monotonic() >= deadline:
                named = [store.locks.named(place.txid) for place in older[:NAMED_MAX] if place.txid]
                is_own = any(place.thread == threading.get_ident() for place in older)
                raise LockTimeout(
                    f"{counted(len(older), 'transaction')} begun before index {index.name} did not end within"
                    f" {store.options.lock_timeout_ms:,} ms: {', '.join(named)}{' (this thread has one)' * is_own};"
                    " end or kill what is open and try again",
                    table=table.name,
                    index=index.name,
                    holders=[place.txid for place in older],
                )
            store.clock.sleep(POLL_SECONDS)

    def _walk(self, table: Table, index: AnyIndex) -> None:
        """Add the entries of all rows of fragments not walked yet, in order of fragment number."""
        for number in sorted(table.by_number):
            if number > self._walked:
                self._walk_fragment(table, index, number)
                self._walked = number

    def _walk_fragment(self, table: Table, index: AnyIndex, number: int) -> None:
        if not isinstance(index, StoredIndex):
            raise InvariantBroken("a unique index was walked as an ordered one; report this")
        mem, tree = self._store.mem, index.tree
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        clock = self._store.clock
        while status == ST_MORE:
            self._check(table)
            fragment = table.by_number.get(number)
            if fragment is None:
                return  # dropped meanwhile; its entries are removed before its memory is freed
            entries = self._entries
            tree.reserve(entries)
            state[1], state[2] = SLICE_SLOTS, entries
            began = clock.monotonic()
            status = tree_add_rows(mem, tree.handle, fragment, state)
            self._adapt(clock.monotonic() - began)
            tree.release(entries)
            if status not in (OK, ST_MORE):
                raise self._store.fail(
                    InvariantBroken(f"the build of an index met a broken invariant (status {status}); reopen the store")
                )
            self._report(table, entries - int(state[2]))
            clock.sleep(0)  # lets waiting threads run

    def _adapt(self, seconds: float) -> None:
        """Adapt the size of the next slice to the allowed time: comparisons of equal key words read rows, which takes
        longer.
        """
        if seconds > SLICE_SECONDS:
            self._entries = max(SLICE_ENTRIES_MIN, self._entries // 2)
        elif seconds < SLICE_SECONDS / 4:
            self._entries = min(SLICE_ENTRIES, 2 * self._entries)

    def _report(self, table: Table, rows: int) -> None:
        self._rows += rows
        if self._progress is not None and rows:
            self._progress(self._rows, max(table.count(), self._rows), "rows")

    def _publish(self, table: Table, index: AnyIndex) -> bool:
        """Log the definition and publish the index to scans, in one step; False if a fragment is not walked yet."""
        store = self._store
        store.await_schema_room()
        with store.schema_latch:
            self._check(table)
            table = table.newest
            if any(number > self._walked for number in table.by_number):
                return False
            before = table.definition
            after = replace(before, version=before.version + 1, indexes=(*before.indexes, index.definition))
            store.log_schema(
                {"alter": json.loads(after.to_json())}, lambda: table.publish_definition(after, {index.name: index})
            )
            return True

    def _undo(self) -> None:
        """Remove an index that was not published. A KeyboardInterrupt is ignored: every step can be repeated."""
        while True:
            try:
                self._withdraw()
                return
            except KeyboardInterrupt:
                continue

    def _withdraw(self) -> None:
        table, index = self._table, self._index
        with self._store.schema_latch:
            if table is None or index is None:
                drop_unlisted(self._store.mem)
                return
            if index in (table.indexes.get(index.name), table.uniques.get(index.name)):
                return
            withdraw_index(self._store.mem, table.handle, index.tree.handle)
            table.withdraw(index)
            index.drop()


def drop_index(store: SchemaLog, table_name: str, name: str) -> None:
    """Drop an index, see `Store.drop_index`."""
    store.await_schema_room()
    with store.schema_latch:
        store.failure.check()
        table = store.table(table_name)
        index = table.any_index(name)
        before = table.definition
        kept = tuple(each for each in before.indexes if each.name != name)
        after = replace(before, version=before.version + 1, indexes=kept)
        try:
            store.log_schema({"alter": json.loads(after.to_json())}, lambda: table.remove_index(after, index))
        finally:
            # After publication the index is gone, even if the wait for the disk failed. A KeyboardInterrupt is raised
            # later: each step can be repeated.
            interrupt: KeyboardInterrupt | None = None
            while table.definition is after:
                try:
                    index.drop()
                    break
                except KeyboardInterrupt as error:
                    interrupt = error
            if interrupt is not None:
                raise interrupt
