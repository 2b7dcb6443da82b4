"""A unique index in Python: created, filled, checked and dropped by the kernels of `engine/index/unique_*_kernels.py`.

The entries are in the arena; operations, commits and rollbacks change them (docs/internals/access.md, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.ordered import LOAD_ENTRIES, ArenaIndex, Fault, fault_in
from tidemark.engine.index.unique_check_kernels import check_unique_entries, check_unique_rows, unique_counters
from tidemark.engine.index.unique_setup_kernels import collect_unique, load_unique, make_unique, reserve_unique
from tidemark.engine.memory.arena import memory_full
from tidemark.engine.memory.arena_layout import OK, S_POOL, ST_MORE

if TYPE_CHECKING:
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.memory.arena import Arena, Words


class UniqueHash(ArenaIndex):
    """The hash of one unique index over the rows of some fragments."""

    def __init__(self, arena: Arena, shape: KeyShape, fragments: Sequence[int], seed: int, state: int) -> None:
        """Create an empty index. fragments: their handles. Raises: MemoryExhausted."""
        super().__init__(arena, shape, fragments)
        words = shape.descriptor_shape(state, ix.LEAF_CAPACITY_MIN, ix.INNER_CAPACITY_MIN)
        self._made(int(make_unique(self.mem, S_POOL, words, shape.constants, seed)))

    # --- filling --------------------------------------------------------------------------------
    def collect(self, fragment: int) -> tuple[Words, Words]:
        """Collect the tags and places of a fragment's rows. Runs without the GIL, so no thread may change the rows
        meanwhile: for a restart, with one thread for each fragment.
        """
        tags, places = self._collected(collect_unique, fragment, 1, 2)
        return tags[0], places

    def load(self, runs: Sequence[tuple[Words, Words]]) -> None:
        """Fill an empty index with all its entries. Raises: MemoryExhausted; the caller must then drop it."""
        expected = sum(len(tags) for tags, _ in runs)
        at = 0
        while expected and at >= 0:
            at = reserve_unique(self.mem, self.handle, expected, at)
        for tags, places in runs:
            for start in range(0, len(tags), LOAD_ENTRIES):
                stop = min(start + LOAD_ENTRIES, len(tags))
                if load_unique(self.mem, self.handle, tags, places, start, stop) != OK:
                    raise memory_full(self.mem, "an index")

    # --- counters and checks --------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """Return the numbers of entries, segments and blocks; -1 each if the index was dropped."""
        _, entries, segments, blocks = self._counters()
        return {"entries": entries, "segments": segments, "blocks": blocks}

    def _counters(self) -> list[int]:
        """Return [version, entries, segments, blocks] as of one instant; -1 each if the index was dropped."""
        words = np.full(4, -1, dtype=np.int64)
        unique_counters(self.mem, self.handle, words)
        counters: list[int] = words.tolist()
        return counters

    def check(self, between: Callable[[], None] = lambda: None, fragments: Sequence[int] | None = None) -> Fault | None:
        """Verify that rows and entries agree, in slices. Returns the first fault, or None. An index or fragment that is
        dropped meanwhile has no fault.

        between: called before each slice. fragments: None for those given to the constructor.
        """
        state = np.zeros(ix.CU_WORDS, dtype=np.int64)
        version = self._counters()[0]
        status = ST_MORE
        while status == ST_MORE:
            between()
            status = check_unique_entries(self.mem, self.handle, state)
        now, entries, _, _ = self._counters()
        if status == OK and now == version and state[ix.CU_ENTRIES] != entries:
            state[ix.CK_FAULT], state[ix.CK_EVIDENCE] = ix.FAULT_COUNT, state[ix.CU_ENTRIES]
        self._check_rows(check_unique_rows, fragments, between, state)
        return fault_in(state)
