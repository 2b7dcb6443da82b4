"""The engine assembled: arena, tables, locks, log and epochs of one open store, and the life of its transactions.

Restart (`recovery`) builds a Store from what the files hold; the face (`tidemark`) gives it threads. Nothing in here
starts a thread or decides when.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from engine.disk.tablespaces import DEFAULT_BYTES, DEFAULT_NAME, PAGE_BYTES, TablespaceDefinition
from engine.errors import (
    LimitExceeded,
    NoSuchTable,
    RedoOverloaded,
    StoreFailed,
    TableExists,
    TablespaceExists,
    TablespaceInUse,
)
from engine.ids import first_txid
from engine.index.online import IndexBuild, drop_index
from engine.kernels.commit import abort_step, begin_transaction, reserve_redo
from engine.layout.arena import OK, S_INDEX_GENERATION, S_REDO_FREE, S_REDO_RESERVED, X_GENERATION
from engine.layout.disk import UNDO_MARK_WORDS
from engine.layout.redo import KIND_SCHEMA, KIND_TRANSACTION, TRANSACTION_WORDS, pack_kind
from engine.limits import TRANSACTIONS_OPEN_MAX
from engine.locks import LockTable
from engine.row_layout import check_disk_part_fits
from engine.schema import TableDefinition, qualified_name
from engine.table import DroppedFragment, PartitionChange, Table
from engine.transaction import BUFFER_WORDS, PAD_WORDS, Place, Transaction

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.disk.columns import DiskColumns
    from engine.disk.space import Space
    from engine.epoch import EpochClock
    from engine.failure import Failure
    from engine.index_definition import IndexDefinition
    from engine.log.redo import RedoLog
    from engine.memory.arena import Arena, Words
    from engine.options import Options
    from engine.partition import Partition

T = TypeVar("T", bound=Transaction)

SPARE_PLACES = 64
REDO_POLL_SECONDS = 0.05
# Free in the log before a schema change begins: more than all but the longest definitions take.
SCHEMA_ROOM_WORDS = 4_096


class BeforeImages(Protocol):
    """The hook for before-images: where commits copy old rows for a running local checkpoint."""

    current: Words  # empty while none runs; word 0 counts the words used

    def room(self, words: int) -> Words:
        """`current` with room for `words` more words; the caller holds the commit latch."""
        ...


class NoBeforeImages:
    """Nobody asks for before-images."""

    def __init__(self) -> None:
        self.current: Words = np.zeros(0, dtype=np.int64)

    def room(self, words: int) -> Words:
        """Nothing: no local checkpoint runs."""
        return self.current


class Store:
    """Everything transactions need. Made empty; `attach` gives it log and epochs once restart knows where they are."""

    log: RedoLog
    epochs: EpochClock
    disk: DiskColumns = None  # type: ignore[assignment]  # None for ever in a view of a local checkpoint

    def __init__(self, arena: Arena, options: Options, clock: Clock, failure: Failure, seed: int) -> None:
        self.arena = arena
        self.mem = arena.mem
        self.options = options
        self.clock = clock
        self.failure = failure
        self.seed = seed
        self.latch = threading.Lock()
        self.schema_latch = threading.Lock()
        self.locks = LockTable(self.mem, clock, options.lock_timeout_ms, failure)
        self.no_words: Words = np.zeros(0, dtype=np.int64)
        self.transaction_words = options.transaction_memory_bytes // 8
        self.waits_for_disk = options.durability == "commit"
        self.tables: dict[str, Table] = {}
        self.by_id: dict[int, Table] = {}
        self.next_table_id = 1
        self.sink: BeforeImages = NoBeforeImages()
        self.on_redo_full: Callable[[], None] = lambda: None
        self._slots = itertools.count(1)
        self._spare_slots: list[int] = []
        self._spare_places: list[Place] = []
        self._txids = itertools.count(1)
        self._newest_txid = 0
        # What was dropped, and the open transactions and scans that may still be looking at its memory.
        self._dropped: list[tuple[Table | DroppedFragment, set[object]]] = []
        self._pins: set[object] = set()
        self.index_generation = 0  # raised behind the kernel that announces an index, for `begin`

    def attach(self, log: RedoLog, epochs: EpochClock, incarnation: int) -> None:
        """Give the store its log and clock; from here on it can commit."""
        self.log = log
        self.epochs = epochs
        self._newest_txid = int(first_txid(incarnation)) - 1
        self._txids = itertools.count(self._newest_txid + 1)

    @property
    def space(self) -> Space:
        """The tablespaces."""
        return self.disk.space

    # --- transactions ----------------------------------------------------------------------------
    def next_txid(self) -> int:
        """A transaction id never given before."""
        self._newest_txid = next(self._txids)
        return self._newest_txid

    def txid_limit(self) -> int:
        """Ids from here on have not been given."""
        return self._newest_txid + 1

    def begin(self, any_value: int = 0, author: int = 0, kind: type[T] = Transaction) -> T:  # type: ignore[assignment]
        """Begin a transaction of the calling thread, of a subclass `kind` if the face has one.

        Raises: StoreFailed, RedoOverloaded, MemoryExhausted, LimitExceeded.
        """
        if self.failure.first is not None:
            self.failure.check()
        try:
            place = self._spare_places.pop()
        except IndexError:
            place = self._new_place()
        slot, desc, _, _ = place
        tail_word = any_value | author << 32
        generation = self.index_generation
        try:
            if begin_transaction(self.mem, desc, slot, tail_word, BUFFER_WORDS + PAD_WORDS) != OK:
                self.wait_for_redo(
                    lambda: bool(begin_transaction(self.mem, desc, slot, tail_word, BUFFER_WORDS + PAD_WORDS) == OK)
                )
            txn = kind(self, place)
            self.locks.by_slot[slot] = txn
            if self.index_generation != generation:
                # An index was announced, and whoever builds it may not have seen this one among those to wait for.
                self.mem[desc + X_GENERATION] = self.mem[S_INDEX_GENERATION]
        except BaseException:
            # Ctrl-C among others: nobody will ever end this one, so its promises are given back here (F117).
            abort_step(self.mem, desc, self.no_words, 1)
            self._spare_places.append(place)
            raise
        return txn

    def _new_place(self) -> Place:
        slot = next(self._slots) if not self._spare_slots else self._spare_slots.pop()
        try:
            if slot > TRANSACTIONS_OPEN_MAX:
                raise LimitExceeded(f"{TRANSACTIONS_OPEN_MAX} transactions are open; end some")
            desc = self.arena.take_descriptor()
        except BaseException:
            self._spare_slots.append(slot)
            raise
        buf = np.zeros(BUFFER_WORDS, dtype=np.int64)
        return slot, desc, buf, buf.data.cast("B")

    def retire(self, txn: Transaction) -> None:
        """Take back what a transaction that ends used; once only, wherever a signal falls."""
        place = txn.place
        if self.locks.by_slot.get(place[0]) is not txn:
            return
        del self.locks.by_slot[place[0]]
        txn.is_ended = True  # before its place can be another's
        if self._dropped:
            self._reclaim(txn)
        if txn.buf is place[2] and len(self._spare_places) < SPARE_PLACES:
            self._spare_places.append(place)
        else:
            self.arena.give_descriptor(place[1])
            self._spare_slots.append(place[0])

    def promise_redo(self, desc: int, words: int) -> None:
        """Promise an open transaction more room in the log, waiting for a local checkpoint if need be."""
        if reserve_redo(self.mem, desc, words) != OK:
            self.wait_for_redo(lambda: bool(reserve_redo(self.mem, desc, words) == OK))

    def wait_for_redo(self, is_promised: Callable[[], bool]) -> None:
        """Ask for a local checkpoint and wait until the promise can be given; RedoOverloaded past `lock_timeout_ms`."""
        deadline = self.locks.deadline()
        while True:
            self.on_redo_full()
            if is_promised():
                return
            self.failure.check()
            if self.clock.monotonic() >= deadline:
                raise self._redo_overloaded()
            self.clock.sleep(REDO_POLL_SECONDS)

    def _redo_overloaded(self) -> RedoOverloaded:
        return RedoOverloaded(
            f"the REDO log ({self.log.geometry.capacity_bytes} bytes) is full and no local checkpoint freed it in time;"
            " run the transaction again or make the store with a larger redo_log"
        )

    # --- memory of what was dropped ---------------------------------------------------------------
    def pin(self, holder: object) -> None:
        """Keep the memory of what is dropped from now on until `unpin`: a scan or a local checkpoint looks at it."""
        self._pins.add(holder)

    def unpin(self, holder: object) -> None:
        """The holder looks at no table any more."""
        self._pins.discard(holder)
        if self._dropped:
            self._reclaim(holder)

    def _reclaim(self, gone: object) -> None:
        with self.schema_latch:
            for dropped, users in self._dropped:
                users.discard(gone)
                if not users:
                    dropped.drop()
            self._dropped = [entry for entry in self._dropped if entry[1]]

    def has_dropped_fragments(self, table: Table) -> bool:
        """Whether somebody may still look at a dropped partition of a table."""
        return any(isinstance(each, DroppedFragment) and each.table is table for each, _ in list(self._dropped))

    def fail(self, error: StoreFailed) -> StoreFailed:
        """Kill the store; returns the error to raise."""
        self.failure.latch(error)
        return error

    # --- schema ----------------------------------------------------------------------------------
    def table(self, name: str) -> Table:
        """The table of this name. Raises: NoSuchTable."""
        found = self.tables.get(name)
        if found is None:
            found = self.tables.get(qualified_name(name))
        if found is None:
            raise NoSuchTable(f"table {name!r} does not exist; see tables()", table=name)
        return found

    def install_table(self, definition: TableDefinition) -> Table:
        """Make a table in memory (creation and restart)."""
        table = self._make_table(definition)
        self.tables[definition.name] = table
        self.by_id[definition.table_id] = table
        self.next_table_id = max(self.next_table_id, definition.table_id + 1)
        return table

    def remove_table(self, table: Table) -> None:
        """Forget a table and give back its memory (drop and restart)."""
        del self.tables[table.name]
        del self.by_id[table.table_id]
        table.drop()

    def create_table(self, definition: TableDefinition) -> Table:
        """Make a table, schema record first (D15). Durable on return. Raises: TableExists, MemoryExhausted,
        StoreFailed.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            if definition.name in self.tables:
                raise TableExists(f"table {definition.name} exists; drop it first or choose another name")
            numbered = replace(definition, table_id=self.next_table_id, version=1, **self._tablespace_for(definition))
            # In memory first, under a name nobody sees: what can fail for lack of memory fails before the log knows.
            table = self._make_table(numbered)
            self.next_table_id += 1
            mark = (lambda: self.disk.undo.record_create(table.table_id)) if table.format.has_disk else None
            try:
                self.log_schema({"create": json.loads(numbered.to_json())}, lambda: self._publish(table), mark)
            except BaseException:
                if table.table_id not in self.by_id:
                    table.drop()
                raise
            return table

    def _make_table(self, definition: TableDefinition) -> Table:
        tablespace = None
        if definition.has_disk and self.disk is not None:
            tablespace = self.space.named(definition.tablespace or DEFAULT_NAME).address
        return Table(self.arena, definition, self.seed, self.disk, tablespace)

    def _publish(self, table: Table) -> None:
        self.tables[table.name] = table
        self.by_id[table.table_id] = table

    def drop_table(self, name: str) -> None:
        """Drop a table. Durable on return. Raises: NoSuchTable, StoreFailed."""
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            table = self.table(name)

            def forget() -> None:
                del self.tables[table.name]
                del self.by_id[table.table_id]
                table.is_dropped = True

            mark = (lambda: self.disk.undo.record_drop(table.table_id)) if table.format.has_disk else None
            self.log_schema({"drop": table.table_id, "name": table.name}, forget, mark)
            self._release(table)

    def _release(self, dropped: Table | DroppedFragment) -> None:
        """Give back the memory of what was dropped, when everybody who may be looking at it has gone."""
        users: set[object] = {*self.locks.by_slot.values(), *self._pins}
        if users:
            self._dropped.append((dropped, users))
        else:
            dropped.drop()

    # --- partitions ------------------------------------------------------------------------------
    def add_partition(self, name: str, partition: str, bound: Any) -> None:
        """Give a table another partition: behind its last range, or for values no list has. Durable on return.

        Raises: NoSuchTable, SchemaInvalid, LimitExceeded, MemoryExhausted, StoreFailed.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            table = self.table(name)
            self._change_partitions(table, table.definition.partition.plus(partition, bound))

    def drop_partition(self, name: str, partition: str) -> None:
        """Drop a partition and its rows. Durable on return. Raises: NoSuchTable, NoSuchPartition, SchemaInvalid,
        MemoryExhausted, StoreFailed.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            table = self.table(name)
            table.numbers_of([partition])
            self._change_partitions(table, table.definition.partition.minus(partition))

    def _change_partitions(self, table: Table, partition: Partition) -> None:
        """The whole new definition is logged, then seen."""
        before = table.definition
        change = table.prepare(replace(before, version=before.version + 1, partition=partition))
        begun: list[PartitionChange] = []

        def publish() -> None:
            begun.append(change)
            table.apply(change)

        try:
            self.log_schema({"alter": json.loads(change.definition.to_json())}, publish)
        finally:
            # A full log, or Ctrl-C while it made room: nothing happened. Ctrl-C behind that: it is in the log.
            if not begun:
                table.forsake(change)
            else:
                table.apply(change)
                if change.gone:
                    self._release(DroppedFragment(table, change.gone))

    # --- indexes ---------------------------------------------------------------------------------
    def create_index(
        self, name: str, definition: IndexDefinition, progress: Callable[[int, int, str], None] | None = None
    ) -> None:
        """Build an ordered index of a table while transactions go on. Durable on return; whatever ends it before, there
        is no index. Raises: NoSuchTable, IndexExists, NoSuchColumn, SchemaInvalid, LockTimeout, MemoryExhausted,
        StoreFailed.
        """
        IndexBuild(self, name, definition, progress).run()

    def drop_index(self, name: str, index: str) -> None:
        """Drop an index of a table. Durable on return. Raises: NoSuchTable, NoSuchIndex, StoreFailed."""
        drop_index(self, name, index)

    def _tablespace_for(self, definition: TableDefinition) -> dict[str, Any]:
        """The tablespace of a new table with disk columns, as a field of its definition; `main` is made if it is asked
        for first. Raises: NoSuchTablespace, StorageFull, MemoryExhausted.
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
        """Make a tablespace with one data file, the file first, then the schema record (D15). Durable on return.

        Raises: TablespaceExists, StorageFull, MemoryExhausted, SchemaInvalid, LimitExceeded, StoreFailed.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            self._make_tablespace(definition, size_bytes)

    def _make_tablespace(self, definition: TablespaceDefinition, size_bytes: int) -> None:
        if definition.name in self.space.by_name:
            raise TablespaceExists(f"tablespace {definition.name} exists; choose another name, or add_datafile() to it")
        self.disk.begin_first()
        made = self.space.make(definition, size_bytes, self.clock.wall_us())
        change = {"tablespace": json.loads(made.definition.to_json())}
        self.log_schema(change, lambda: self.space.publish(made))

    def add_datafile(self, name: str, size_bytes: int) -> None:
        """Add a data file to a tablespace, the file first. Durable on return. Raises: NoSuchTablespace, and as
        `create_tablespace`.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            tablespace = self.space.named(name)
            made = self.space.make_file(tablespace, size_bytes, self.clock.wall_us())
            change = {"datafile": made.file_id, "tablespace_id": tablespace.definition.tablespace_id}
            self.log_schema(change, lambda: self.space.publish_file(tablespace, made))

    def drop_tablespace(self, name: str) -> None:
        """Drop a tablespace no table lies in. Durable on return; its files are removed when no kept local checkpoint
        names it. Raises: NoSuchTablespace, TablespaceInUse, StorageFull, MemoryExhausted, StoreFailed.
        """
        self.await_schema_room()
        with self.schema_latch:
            self.failure.check()
            tablespace = self.space.named(name)
            tables = [each for each in self.tables.values() if each.definition.tablespace == name]
            if tables or self.space.is_used(tablespace):
                who = f"table {tables[0].name}" if tables else "a dropped table that transactions still look at"
                raise TablespaceInUse(
                    f"tablespace {name} is in use by {who}; drop the table, end the transactions", tablespace=name
                )
            self.disk.forget_pages(tablespace)
            change = {"drop_tablespace": tablespace.definition.tablespace_id}
            self.log_schema(change, lambda: self.space.forget(tablespace))

    def await_schema_room(self) -> None:
        """Wait until the log has room for the record of a schema change; not with `schema_latch` held, which the end of
        a local checkpoint may need. Raises: RedoOverloaded, StoreFailed.
        """
        if not self._has_redo(SCHEMA_ROOM_WORDS):
            self.wait_for_redo(lambda: self._has_redo(SCHEMA_ROOM_WORDS))

    def _has_redo(self, words: int) -> bool:
        return int(self.mem[S_REDO_RESERVED]) + words <= int(self.mem[S_REDO_FREE])

    def log_schema(
        self, change: dict[str, Any], publish: Callable[[], None], mark: Callable[[], int] | None = None
    ) -> None:
        """Log a change and make it seen. mark: what may still refuse it, and leaves a mark in the UNDO log.

        Raises: RedoOverloaded, and nothing happened: what is kept back of the log serves groups in flight.
        """
        body = json.dumps(change, sort_keys=True, ensure_ascii=False).encode()
        padded = -(-len(body) // 8)
        words = TRANSACTION_WORDS + 2 + padded
        if not self._has_redo(words + PAD_WORDS):
            raise self._redo_overloaded()
        if mark is not None:
            # Others may take the room before we have the latch: what is kept back for marks serves one such change,
            # and one local checkpoint, before somebody comes here again and flushes.
            self.disk.undo.make_room(UNDO_MARK_WORDS)
        with self.latch:
            fill = self.log.room(words)
            if mark is not None:
                mark()
            self.epochs.used()
            at = int(fill[0])
            fill[at : at + words] = 0
            fill[at] = pack_kind(KIND_TRANSACTION, 0, words)
            fill[at + 1] = self.next_txid()
            fill[at + 2] = 1
            fill[at + TRANSACTION_WORDS] = pack_kind(KIND_SCHEMA, 0, 2 + padded)
            fill[at + TRANSACTION_WORDS + 1] = len(body)
            start = (at + TRANSACTION_WORDS + 2) * 8
            fill.data.cast("B")[start : start + len(body)] = body
            fill[0] = at + words
            fill[1] += 1
            self.mem[S_REDO_FREE] -= words
            publish()
            ticket = self.log.sequence
        self.log.wait(ticket)
