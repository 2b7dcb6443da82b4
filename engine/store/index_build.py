"""Indexes created and dropped while transactions run (docs/internals/access.md, 7).

Order: create the index in memory and announce it, so that transactions that begin from now on reserve entries in it;
wait for older transactions; add the entries of all rows, in slices; then log and publish the index in one step. A crash
or an error before that leaves no index. A unique index that is ordered has two parts, a tree and a hash. Both are
announced, then each is filled, the hash last: it refuses writers from then on. One step publishes both.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tidemark.engine.base.errors import IndexExists, InvariantBroken, LockTimeout, NoSuchTable
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.lists_kernels import announce_index, withdraw_index
from tidemark.engine.index.ordered import SLICE_ENTRIES, SLICE_SLOTS
from tidemark.engine.index.stored import drop_unlisted, kinds_of
from tidemark.engine.index.tree_build_kernels import tree_add_rows
from tidemark.engine.memory.arena import memory_full
from tidemark.engine.memory.arena_layout import OK, ST_MORE, X_GENERATION
from tidemark.engine.memory.handles_kernels import descriptor_word, set_descriptor_word
from tidemark.engine.txn.spool import whole
from tidemark.engine.txn.transaction import end_abandoned
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.engine.index.stored import AnyIndex, StoredIndex
    from tidemark.engine.schema.check_definition import CheckDefinition
    from tidemark.engine.schema.index_definition import IndexDefinition
    from tidemark.engine.store.schema_log import SchemaLog
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.resources import Resources

Progress = Callable[[int, int, str], None]
POLL_SECONDS = 0.001
NAMED_MAX = 3  # transactions in a message
SLICE_SECONDS = 0.000_15
SLICE_ENTRIES_MIN = 16


def wait_for_older(
    store: Resources, check: Callable[[], None], table: Table, birth: int, what: str, /, **evidence: str
) -> None:
    """Wait until every transaction of an older generation has ended. check: raises what ends the wait. what, evidence:
    of the error. Raises: LockTimeout.
    """
    deadline = store.locks.deadline()
    while True:
        end_abandoned(store)
        older = [place for place in store.locks.open_now() if int(store.mem[place.desc + X_GENERATION]) < birth]
        if not older:
            return
        check()
        if store.clock.monotonic() >= deadline:
            named = [store.locks.named(place.txid) for place in older[:NAMED_MAX] if place.txid]
            is_own = any(place.thread == threading.get_ident() for place in older)
            raise LockTimeout(
                f"{counted(len(older), 'transaction')} begun before {what} did not end within"
                f" {store.options.lock_timeout_ms:,} ms: {', '.join(named)}{' (this thread has one)' * is_own};"
                " end or kill what is open and try again",
                table=table.name,
                **evidence,
                holders=[place.txid for place in older],
            )
        store.clock.sleep(POLL_SECONDS)


class OnlineBuild(ABC):
    """What is added to a table while transactions run: announced to them first, published when all rows agree."""

    kind: ClassVar[str]  # of what is added, for messages
    adding: str  # what happens to it, for messages

    def __init__(self, schema: SchemaLog, name: str, definition: CheckDefinition | IndexDefinition) -> None:
        """name: of the table."""
        self.resources = schema.resources
        self._schema = schema
        self._name = name
        self._about = f"{self.kind} {definition.name}"
        self._evidence = {self.kind: definition.name}
        self._table: Table | None = None

    def run(self) -> None:
        """Do all of it. Durable on return; after an error nothing is left of it. Raises: NoSuchTable, LockTimeout,
        StoreFailed, and what `_build` raises.
        """
        users = self.resources.users
        try:
            users.pin(self)  # fragments dropped meanwhile keep their rows
            self._build()
        except BaseException:
            self.undo()
            raise
        finally:
            users.unpin(self)

    @abstractmethod
    def _build(self) -> None:
        """Announce, wait for older transactions, go through the rows, publish."""

    def undo(self) -> None:
        """Remove what was announced and not published. A KeyboardInterrupt is ignored: every step can be repeated."""
        while True:
            try:
                self._withdraw()
                return
            except KeyboardInterrupt:
                continue

    @abstractmethod
    def _withdraw(self) -> None:
        """Remove what was announced and not published."""

    def check(self, table: Table) -> None:
        """Raises: NoSuchTable, StoreFailed."""
        self.resources.failure.check()
        if table.is_dropped:
            raise NoSuchTable(f"table {table.name} was dropped while {self.adding}; see tables()", table=table.name)

    def wait_for_older(self, table: Table, birth: int) -> None:
        """Wait until every transaction of an older generation has ended. Raises: LockTimeout, and as `check`."""
        wait_for_older(self.resources, lambda: self.check(table), table, birth, self._about, **self._evidence)


class IndexBuild(OnlineBuild):
    """One online build of an index."""

    kind = "index"
    adding = "its index was being built"

    def __init__(
        self,
        schema: SchemaLog,
        name: str,
        definition: IndexDefinition,
        progress: Progress | None,
        fillings: Mapping[type[AnyIndex], type[Filling]],
    ) -> None:
        """Prepare the build. name: of the table. progress: called with (rows done, total rows, "rows"). fillings: how
        each kind of part is filled.
        """
        super().__init__(schema, name, definition)
        self.definition = definition
        self._progress = progress
        self._kinds = {kind: fillings[kind] for kind in kinds_of(definition)}
        self.parts: list[AnyIndex] = []
        self._fillings: list[Filling] = []

    def _build(self) -> None:
        table = self._announce()
        self.begin_filling(table)
        while not self._publish(table):
            self.walk(table)

    def begin_filling(self, table: Table) -> None:
        """Wait until all open transactions maintain what was announced. Raises: LockTimeout, and as `check`."""
        self._fillings = [self._kinds[type(part)](self, part) for part in self.parts]
        for filling in self._fillings:
            filling.wait_for_older(table)

    def walk(self, table: Table) -> None:
        """Add the entries of the rows that have none. Raises: as `Filling.walk_fragment`."""
        for filling in self._fillings:
            filling.walk(table)

    def is_walked(self, table: Table) -> bool:
        """Whether the rows of all fragments have entries."""
        walked = min(filling.walked for filling in self._fillings)
        return all(number <= walked for number in table.by_number)

    def _announce(self) -> Table:
        resources, definition = self.resources, self.definition
        with self._schema.changing():
            self._table = table = resources.tables.named(self._name)
            waiting = tuple(dict.fromkeys(each.definition for each in table.building))
            if definition.name in {*table.indexes, *table.uniques, *(each.name for each in waiting)}:
                raise IndexExists(
                    f"table {table.name} has an index {definition.name}; choose another name, or drop that index first",
                    table=table.name,
                    index=definition.name,
                )
            before = table.definition
            replace(before, indexes=(*before.indexes, *waiting, definition))  # raises if the definition is invalid
            self._make_parts(table, table)
            return table

    def _make_parts(self, table: Table, view: Table) -> None:
        """Create the parts as they are in a version `view` of the table, and announce them. Raises: MemoryExhausted,
        SchemaInvalid.
        """
        resources = self.resources
        for kind in self._kinds:
            part = view.make_index(self.definition, kind, ix.INDEX_ANNOUNCED)
            self.parts.append(part)
            table.announce(part)
            if announce_index(resources.mem, table.handle, part.tree.handle) != OK:
                raise memory_full(resources.mem, "another index")
            resources.index_generation += 1

    def report(self, table: Table) -> None:
        """Tell the caller how many rows are done: each part is filled from all rows."""
        if self._progress is not None:
            done = sum(filling.rows for filling in self._fillings)
            self._progress(done, max(len(self._fillings) * table.count(), done), "rows")

    def _publish(self, table: Table) -> bool:
        """Log the definition and publish the index to scans, in one step; False if a fragment is not walked yet."""
        parts = self.parts
        with self._schema.changing():
            self.check(table)
            table = table.newest
            if not self.is_walked(table):
                return False
            before = table.definition
            after = replace(before, version=before.version + 1, indexes=(*before.indexes, self.definition))
            self._schema.log({"alter": json.loads(after.to_json())}, lambda: table.publish_definition(after, parts))
            return True

    def _withdraw(self) -> None:
        table, mem = self._table, self.resources.mem
        with self._schema.latch:
            drop_unlisted(mem)
            if table is None or not {*table.indexes.values(), *table.uniques.values()}.isdisjoint(self.parts):
                return
            for part in self.parts:
                withdraw_index(mem, table.handle, part.tree.handle)
                table.withdraw(part)
                part.drop()


class Filling(ABC):
    """How a part of an index gets the entries of all rows."""

    def __init__(self, build: IndexBuild, index: AnyIndex) -> None:
        """index: announced."""
        self.build = build
        self.index = index
        self.walked = -1  # number of the last fragment with entries of all its rows
        self.rows = 0

    def wait_for_older(self, table: Table) -> None:
        """Wait until every transaction that reserves nothing for the index has ended. Raises: LockTimeout."""
        mem, handle = self.build.resources.mem, self.index.tree.handle
        self.build.wait_for_older(table, int(descriptor_word(mem, handle, ix.I_BIRTH)))
        set_descriptor_word(mem, handle, ix.I_STATE, ix.INDEX_BUILDING)

    def walk(self, table: Table) -> None:
        """Add the entries of all rows of fragments not walked yet, in order of fragment number."""
        for number in sorted(table.by_number):
            if number > self.walked:
                self.walk_fragment(table, number)
                self.walked = number

    @abstractmethod
    def walk_fragment(self, table: Table, number: int) -> None:
        """Add the entries of the rows of one fragment."""

    def report(self, table: Table, status: int, rows: int) -> None:
        """Count rows that are done, and let waiting threads run. status: of the kernel. Raises: InvariantBroken."""
        store = self.build.resources
        if status not in (OK, ST_MORE):
            raise store.failure.latch(
                InvariantBroken(f"the build of an index met a broken invariant (status {status}); reopen the store")
            )
        if rows:
            self.rows += rows
            self.build.report(table)
        store.clock.sleep(0)


class TreeFilling(Filling):
    """How the tree of an ordered index is filled."""

    index: StoredIndex
    _entries = SLICE_ENTRIES_MIN  # size of the next slice

    def walk_fragment(self, table: Table, number: int) -> None:
        store, tree = self.build.resources, self.index.tree
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        clock = store.clock
        while status == ST_MORE:
            self.build.check(table)
            fragment = table.by_number.get(number)
            if fragment is None:
                return  # dropped meanwhile; its entries are removed before its memory is freed
            entries = self._entries
            tree.reserve(entries)
            state[1], state[2] = SLICE_SLOTS, entries
            began = clock.monotonic()
            status = tree_add_rows(store.mem, tree.handle, fragment, state)
            self._adapt(clock.monotonic() - began)
            tree.release(entries)
            self.report(table, status, entries - int(state[2]))

    def _adapt(self, seconds: float) -> None:
        """Adapt the size of the next slice to the allowed time: comparisons of equal key words read rows, which takes
        longer.
        """
        if seconds > SLICE_SECONDS:
            self._entries = max(SLICE_ENTRIES_MIN, self._entries // 2)
        elif seconds < SLICE_SECONDS / 4:
            self._entries = min(SLICE_ENTRIES, 2 * self._entries)


def drop_parts(parts: Sequence[AnyIndex]) -> None:
    """Free withdrawn parts of indexes. A KeyboardInterrupt is raised later: each step can be repeated."""
    whole(lambda: [part.drop() for part in parts])


def drop_index(schema: SchemaLog, table_name: str, name: str) -> None:
    """Drop an index, see `Store.drop_index`."""
    with schema.changing():
        table = schema.resources.tables.named(table_name)
        parts = table.parts_of(name)
        before = table.definition
        kept = tuple(each for each in before.indexes if each.name != name)
        after = replace(before, version=before.version + 1, indexes=kept)
        try:
            schema.log({"alter": json.loads(after.to_json())}, lambda: table.remove_index(after, parts))
        finally:
            # After publication the index is gone, even if the wait for the disk failed.
            if table.definition is after:
                drop_parts(parts)
