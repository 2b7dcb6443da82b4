"""Unique indexes created while transactions run (docs/internals/access.md, 7).

The steps are those of ordered indexes, but a second announcement follows the first; from then on, operations take
entries. The walk fails if two committed rows have the same key. A writer that meanwhile finds its key in another row
may continue; then the rows are walked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.row_operations import duplicate
from tidemark.engine.base.errors import DuplicateKey, InvariantBroken, LockTimeout, MemoryExhausted
from tidemark.engine.index.ordered import SLICE_ENTRIES, SLICE_SLOTS
from tidemark.engine.index.unique_setup_kernels import begin_unique, enforce_unique, walk_unique
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_BUSY, ST_MEMORY, ST_MORE, ST_UNIQUE
from tidemark.engine.store.index_build import NAMED_MAX, POLL_SECONDS, IndexBuild

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import AnyIndex, Table

WALKS_MAX = 3  # after this many walks with suspects, writers are refused before the next walk
EVIDENCE_WORDS = 1 << 16


class UniqueBuild(IndexBuild):
    """One online build of a unique index."""

    def _wait_for_older(self, table: Table, index: AnyIndex) -> None:
        """Wait until all open transactions take entries. The second announcement is made after all transactions from
        before the first have ended: then every commit removes the entries of the images that it replaces.
        """
        super()._wait_for_older(table, index)
        store = self._store
        generation = int(begin_unique(store.mem, index.tree.handle))
        store.index_generation += 1
        self._wait_for(table, index, generation)

    def _walk(self, table: Table, index: AnyIndex) -> None:
        super()._walk(table, index)
        walks = 0
        while enforce_unique(self._store.mem, index.tree.handle, int(walks >= WALKS_MAX)) != OK:
            walks += 1
            self._walked = -1
            self._rows = 0
            super()._walk(table, index)

    def _walk_fragment(self, table: Table, index: AnyIndex, number: int) -> None:
        store = self._store
        state = np.zeros(3, dtype=np.int64)
        out = np.zeros(EVIDENCE_WORDS, dtype=np.int64)
        deadline: float | None = None
        status = ST_MORE
        while status != OK:
            self._check(table)
            fragment = table.by_number.get(number)
            if fragment is None:
                return  # dropped meanwhile; its entries are removed before its memory is freed
            state[1], state[2] = SLICE_SLOTS, SLICE_ENTRIES
            status = walk_unique(store.mem, index.tree.handle, fragment, state, out)
            if status == ST_UNIQUE:
                raise self._violated(table, out)
            if status == ST_MEMORY:
                raise MemoryExhausted("data_memory has no room for another index; enlarge data_memory")
            if status == ST_BUSY:
                deadline = store.locks.deadline() if deadline is None else deadline
                self._pause(table, deadline)
                continue
            deadline = None
            if status not in (OK, ST_MORE):
                raise store.fail(
                    InvariantBroken(f"the build of an index met a broken invariant (status {status}); reopen the store")
                )
            self._report(table, SLICE_ENTRIES - int(state[2]))
            store.clock.sleep(0)  # lets waiting threads run

    def _pause(self, table: Table, deadline: float) -> None:
        """Wait briefly for a transaction that has locked a row which may have the key of another row. Raises:
        LockTimeout.
        """
        store = self._store
        if store.clock.monotonic() >= deadline:
            holders = [each["txid"] for each in store.holders()]
            named = ", ".join(store.locks.named(txid) for txid in holders[:NAMED_MAX])
            raise LockTimeout(
                f"a transaction holds a row that may have a duplicate key of index {self._definition.name}, and did"
                f" not end within {store.options.lock_timeout_ms} ms; those with the oldest locks: {named}; end or kill"
                " it and try again",
                table=table.name,
                index=self._definition.name,
                holders=holders,
            )
        store.clock.sleep(POLL_SECONDS)

    def _violated(self, table: Table, entry: Words) -> DuplicateKey:
        """Return the error for two rows with the same key. entry: the index entry of one of them."""
        view = entry.data.cast("B")
        error = duplicate(
            table, self._definition, table.format.decode_columns(view, ENTRY_WORDS, self._definition.columns), None
        )
        key = table.format_key(error.key)
        return DuplicateKey(
            f"{table.name}: two rows have key {key}, unique index {self._definition.name} cannot be built; change one",
            **error.evidence,
        )
