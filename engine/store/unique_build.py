"""Hashes of unique indexes filled while transactions run (docs/internals/access.md, 7).

The steps are those of trees, but a second announcement follows the first; from then on, operations take
entries. The walk fails if two committed rows have the same key. A writer that meanwhile finds its key in another row
may continue; then the rows are walked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.statuses import duplicate
from tidemark.engine.base.errors import DuplicateKey, LockTimeout
from tidemark.engine.index.ordered import SLICE_ENTRIES, SLICE_SLOTS
from tidemark.engine.index.unique_setup_kernels import begin_unique, enforce_unique, walk_unique
from tidemark.engine.memory.arena import memory_full
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_BUSY, ST_MEMORY, ST_MORE, ST_UNIQUE
from tidemark.engine.store.index_build import NAMED_MAX, POLL_SECONDS, Filling

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table

WALKS_MAX = 3  # after this many walks with suspects, writers are refused before the next walk
EVIDENCE_WORDS = 1 << 16


class HashFilling(Filling):
    """How the hash of a unique index is filled."""

    def wait_for_older(self, table: Table) -> None:
        """Wait until all open transactions take entries. The second announcement is made after all transactions from
        before the first have ended: then every commit removes the entries of the images that it replaces.
        """
        super().wait_for_older(table)
        store = self.build.resources
        generation = int(begin_unique(store.mem, self.index.tree.handle))
        store.index_generation += 1
        self.build.wait_for_older(table, generation)

    def walk(self, table: Table) -> None:
        """Add the entries of all rows of fragments not walked yet, then refuse writers that give two rows one key."""
        super().walk(table)
        walks = 0
        while enforce_unique(self.build.resources.mem, self.index.tree.handle, int(walks >= WALKS_MAX)) != OK:
            walks += 1
            self.walked = -1
            self.rows = 0
            super().walk(table)

    def walk_fragment(self, table: Table, number: int) -> None:
        """Check the rows of one fragment, and take the entries of those without one. Raises: DuplicateKey,
        LockTimeout, MemoryExhausted.
        """
        store, handle = self.build.resources, self.index.tree.handle
        state = np.zeros(3, dtype=np.int64)
        out = np.zeros(EVIDENCE_WORDS, dtype=np.int64)
        deadline: float | None = None
        status = ST_MORE
        while status != OK:
            self.build.check(table)
            fragment = table.by_number.get(number)
            if fragment is None:
                return  # dropped meanwhile; its entries are removed before its memory is freed
            state[1], state[2] = SLICE_SLOTS, SLICE_ENTRIES
            status = walk_unique(store.mem, handle, fragment, state, out)
            if status == ST_UNIQUE:
                raise self._violated(table, out)
            if status == ST_MEMORY:
                raise memory_full(store.mem, "another index")
            if status == ST_BUSY:
                deadline = store.locks.deadline() if deadline is None else deadline
                self._pause(table, deadline)
                continue
            deadline = None
            self.report(table, status, SLICE_ENTRIES - int(state[2]))

    def _pause(self, table: Table, deadline: float) -> None:
        """Wait briefly for a transaction that has locked a row which may have the key of another row. Raises:
        LockTimeout.
        """
        store, name = self.build.resources, self.build.definition.name
        if store.clock.monotonic() >= deadline:
            holders = [each["txid"] for each in store.locks.holders()]
            named = ", ".join(store.locks.named(txid) for txid in holders[:NAMED_MAX])
            raise LockTimeout(
                f"a transaction holds a row that may have a duplicate key of index {name}, and did"
                f" not end within {store.options.lock_timeout_ms} ms; those with the oldest locks: {named}; end or kill"
                " it and try again",
                table=table.name,
                index=name,
                holders=holders,
            )
        store.clock.sleep(POLL_SECONDS)

    def _violated(self, table: Table, entry: Words) -> DuplicateKey:
        """Return the error for two rows with the same key. entry: the index entry of one of them."""
        view, definition = entry.data.cast("B"), self.build.definition
        error = duplicate(table, definition, table.format.decode_columns(view, ENTRY_WORDS, definition.columns), None)
        key = table.format_key(error.key)
        return DuplicateKey(
            f"{table.name}: two rows have key {key}, unique index {definition.name} cannot be built; change one",
            **error.evidence,
        )
