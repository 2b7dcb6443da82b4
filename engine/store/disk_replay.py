"""UNDO and REDO of disk columns on private memory, with the pages that each record needs (D7, D8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.disk_reading import exchange_pins
from tidemark.engine.base.errors import NoSuchTable, PageDamaged
from tidemark.engine.disk.cache_layout import FRESH_PAGE
from tidemark.engine.log.redo_layout import TABLE_MASK
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.store.disk_replay_kernels import replay_disk_group, undo_records
from tidemark.engine.store.disk_replay_layout import R_DONE, R_OFFSET, R_PAGE, REPLAY_STATE_WORDS
from tidemark.engine.store.replay import PartsOutOfMemory, RecordDoesNotFit, tables_with

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

UNDO_FLUSH_WORDS = a.PAGE_WORDS + 64  # more than one replay step needs in the UNDO buffer, with the largest pages
HELD_MAX = 8  # pages kept for one record that needs several


class DiskReplay:
    """Undoes changes of pages, and replays REDO records of tables with disk columns through cache and UNDO log."""

    def __init__(self, store: Store, tables: Words) -> None:
        """tables: handles by table number, 0 for tables to be skipped."""
        self._store = store
        self._disk = store.disk
        self._tables = tables
        self._replayed = tables_with(store, tables, has_disk=True)
        self._state = np.zeros(REPLAY_STATE_WORDS, dtype=np.int64)
        self.undone = 0
        self.skipped = 0  # UNDO records of changes that the pages do not have

    # --- UNDO ------------------------------------------------------------------------------------
    def undo(self, words: Words, offsets: Words, newest: int, lcp_lsn: int) -> int:
        """Undo the changes of records offsets[newest], offsets[newest - 1], … of one group. Return the index of the
        mark before which it stopped, or -1. lcp_lsn: LSN of the local checkpoint's mark. Raises: PageDamaged.
        """
        state = np.array([newest, 0, 0, 0], dtype=np.int64)
        held: list[int] = []
        try:
            mem, tables = self._store.mem, self._tables
            while (status := int(undo_records(mem, tables, words, offsets, lcp_lsn, state))) == a.ST_PAGE:
                exchange_pins(self._disk, held, [int(state[3]) | FRESH_PAGE])
        finally:
            self._disk.release(held)
            self.undone += int(state[1])
            self.skipped += int(state[2])
        if status not in (a.OK, a.ST_MORE):
            raise self._damaged(int(state[3]))
        return int(state[0])

    # --- REDO ------------------------------------------------------------------------------------
    @property
    def has_tables(self) -> bool:
        """Whether any table has disk columns."""
        return bool(self._replayed.any())

    @property
    def operations(self) -> int:
        """How many operations it has replayed."""
        return int(self._state[R_DONE])

    def run(self, words: Words, start: int, stop: int, epoch: int) -> None:
        """Replay the records words[start:stop] of a group. Raises: as `Replay.run`, and PageDamaged; errors of disk
        reads, and of disk space.
        """
        mem, state = self._store.mem, self._state
        txn = self._store.arena.take_descriptor()
        mem[txn : txn + 32] = 0
        state[R_OFFSET] = start
        held: list[int] = []
        try:
            while True:
                at = int(state[R_OFFSET])
                status = int(replay_disk_group(mem, txn, self._replayed, words, at, stop, epoch, state))
                if status == a.OK:
                    return
                if int(state[R_OFFSET]) != at or len(held) > HELD_MAX:
                    self._disk.release(held)
                    held = []
                held.extend(self._settle(status, words))
        finally:
            self._disk.release(held)
            self._store.arena.free_descriptor(txn)

    def _settle(self, status: int, words: Words) -> list[int]:
        """Provide the page, extent or UNDO room that the replay of a record lacks; return the pages held for it."""
        at, page = int(self._state[R_OFFSET]), int(self._state[R_PAGE])
        if status == a.ST_PAGE:
            try:
                self._disk.hold([page | FRESH_PAGE])
            except NoSuchTable as error:  # no table is dropped now: the control file gives the page to none (F112)
                raise self._damaged(page) from error
            return [page | FRESH_PAGE]
        if status == a.ST_UNDO:
            if self._disk.can_write:
                self._disk.undo.make_room(UNDO_FLUSH_WORDS)
            else:
                self._disk.drop_undo_records()
            return []
        if status == a.ST_EXTENT:
            self._disk.extend(self._store.tables.by_id[int(words[at + 1]) & TABLE_MASK].fragments[0])
            return []
        if status == a.ST_MEMORY:
            raise PartsOutOfMemory
        if status == a.ST_DAMAGED:
            raise self._damaged(page)
        raise RecordDoesNotFit(at, status)

    def _damaged(self, page: int) -> PageDamaged:
        file, offset = self._disk.space.place(page)
        return PageDamaged(
            f"page at offset {offset} of {file.name} does not fit the UNDO log; restore the store from a backup",
            file=file.name,
            page=page,
            offset=offset,
        )
