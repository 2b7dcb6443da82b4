"""Node restart, the joiner: rows of slices, deletes and groups, in a store that is not open yet
(docs/internals/node-group.md).

Each fragment has a position. Slots before it are copied: there the stream's groups are replayed strictly, as at a
restart. Changes at or past the position are left to the scan. Only rows there can be stale, and only such rows are ever
removed to make room for others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, MemoryExhausted
from tidemark.engine.log.redo_layout import KIND_DELETE, OPERATION_WORDS, pack_identity, pack_kind
from tidemark.engine.memory.arena_layout import COUNT_SHIFT, F_REPLAY_EPOCH, OK, ROWID_MASK, ST_SPACE
from tidemark.engine.store.disk_replay import DiskReplay
from tidemark.engine.store.node_copy_layout import F_UNCOPIED, N_NEXT, N_POSITION, N_USED, NODE_COPY_STATE_WORDS
from tidemark.engine.store.node_join_kernels import (
    executed_records,
    find_conflicting_rows,
    find_deleted,
    find_stale,
    records_of_slice,
    set_uncopied,
    stamp_slice,
)
from tidemark.engine.store.replay import PartsOutOfMemory, RecordDoesNotFit, Replay

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

ROWS_NOTED = 4_096


def copies_differ(what: str) -> InvariantBroken:
    """Return the error for something that shows that the copies cannot become equal."""
    return InvariantBroken(f"{what}: the copies differ; let this node join again with a full copy")


def join_memory_error() -> MemoryExhausted:
    """Return the error for a copy that is too large for this node."""
    return MemoryExhausted("the rows of the live node do not fit into data_memory; give this node as much as that one")


class JoinedRows:
    """Applies the rows of a live node to a store; one thread calls it. Each method that applies rows raises
    InvariantBroken if they do not fit, MemoryExhausted, and errors of disk columns.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mem = store.mem
        self._noted: Words = np.empty(ROWS_NOTED, dtype=np.int64)
        self.refresh_tables()

    def refresh_tables(self) -> None:
        """Read the store's tables as they are now. Call it after each change of definitions."""
        self._tables = self._store.tables.directory()
        self._replays: list[Replay | DiskReplay] = [Replay(self._store, self._tables)]
        on_disk = DiskReplay(self._store, self._tables)
        if on_disk.has_tables:
            self._replays.append(on_disk)

    def begin(self, fragment: int) -> None:
        """Set the position of a fragment to its start: no slot is copied."""
        set_uncopied(self._mem, fragment, 0)
        self._store.arena.set_word(fragment, F_REPLAY_EPOCH, 0)  # rows of a full copy may have any epochs

    def is_copied(self, fragment: int) -> bool:
        """Whether all slots of a fragment are copied."""
        return self._store.arena.word(fragment, F_UNCOPIED) == 0

    def take_deletes(self, words: Words, epoch: int) -> None:
        """Delete rows, given as items of the delete log, some perhaps deleted already."""
        self._delete_found(
            lambda out, state: find_deleted(self._mem, self._tables, words, words.size, out, state), epoch
        )

    def take_slice(self, table: Table, number: int, slots: tuple[int, int], words: Words, epoch: int) -> None:
        """Replace the rows of a fragment at ROWIDs slots[0] up to slots[1], which is excluded, by those of a slice, and
        set the position to slots[1]. epoch: the one that was open on the live node when it read the slice.
        """
        fragment, stop = table.by_number[number], words.size
        if self._store.arena.word(fragment, F_UNCOPIED) != slots[0] + 1:
            raise copies_differ(
                f"a slice of {table.name} begins at {slots[0]}, which the copy has not reached or has passed"
            )
        identity = pack_identity(table.table_id, number, table.definition.version)
        gone = self._find(
            1, lambda out, state: find_conflicting_rows(self._mem, fragment, words, stop, out, state), slots[0]
        )
        self._replay_deletes([(identity, np.unique(gone))], epoch)
        state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
        records: Words = np.empty(2 * stop, dtype=np.int64)
        self._check_status(records_of_slice(self._mem, fragment, words, stop, identity, records, state), table)
        self._replay(records, int(state[N_USED]), epoch)
        self._check_status(stamp_slice(self._mem, fragment, words, stop), table)
        set_uncopied(self._mem, fragment, slots[1])

    def take_records(self, words: Words, start: int, stop: int, epoch: int) -> None:
        """Remove the stale rows that conflict with the records words[start:stop], then replay their operations on
        copied slots strictly. Operations on other slots are left to the scan.
        """
        if start == stop:
            return
        place = (self._mem, self._tables, words, start, stop)
        self._delete_found(lambda out, state: find_stale(*place, out, state), epoch)
        state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
        records: Words = np.empty(stop - start, dtype=np.int64)
        if executed_records(*place, records, state) != OK:
            raise copies_differ(f"a group has an impossible record at word {int(state[N_NEXT])}")
        self._replay(records, int(state[N_USED]), epoch)

    @staticmethod
    def _check_status(status: int, table: Table) -> None:
        if status != OK:
            raise copies_differ(f"a slice of {table.name} does not fit the rows in its place (status {status})")

    def _find(self, unit: int, find: Callable[[Words, Words], int], position: int = 0) -> Words:
        """Return the words that `find` notes, in units of `unit` words. The array grows until they fit; `find` changes
        nothing, so it can be called again.
        """
        while True:
            state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
            state[N_POSITION] = position
            status = int(find(self._noted, state))
            if status == OK:
                return self._noted[: int(state[N_USED])].copy()
            if status > ST_SPACE:
                raise copies_differ(f"the record at word {int(state[N_NEXT])} does not fit the rows (status {status})")
            self._noted = np.empty(2 * self._noted.size + unit, dtype=np.int64)

    def _delete_found(self, find: Callable[[Words, Words], int], epoch: int) -> None:
        """Delete the rows that `find` notes as pairs (word 1 of a record, ROWID); a pair may appear twice."""
        pairs = self._find(2, find).reshape(-1, 2)
        self._replay_deletes(
            [(int(each), np.unique(pairs[pairs[:, 0] == each, 1])) for each in np.unique(pairs[:, 0])], epoch
        )

    def _replay_deletes(self, rows: list[tuple[int, Words]], epoch: int) -> None:
        """Delete rows, given by word 1 of a record and their ROWIDs."""
        for identity, rowids in rows:
            records: Words = np.empty(rowids.size * OPERATION_WORDS, dtype=np.int64)
            records[0::OPERATION_WORDS] = pack_kind(KIND_DELETE, 0, OPERATION_WORDS)
            records[1::OPERATION_WORDS] = identity
            records[2::OPERATION_WORDS] = rowids | 1 << COUNT_SHIFT
            records[3::OPERATION_WORDS] = 0
            self._replay(records, records.size, epoch)

    def _replay(self, records: Words, stop: int, epoch: int) -> None:
        if not stop:
            return
        try:
            for replay in self._replays:
                replay.run(records, 0, stop, epoch)
        except PartsOutOfMemory as error:
            raise join_memory_error() from error
        except RecordDoesNotFit as error:
            rowid = int(records[error.at + 2]) & ROWID_MASK
            raise copies_differ(f"a record for ROWID {rowid} does not fit (status {error.status})") from error
