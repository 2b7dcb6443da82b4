"""An ordered index in Python: created, filled, searched and dropped by the kernels of `engine/index/tree_*_kernels.py`.

The tree is in the arena, and commits change it (docs/internals/access.md, section 5). This module builds and checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.tree_build_kernels import (
    collect_keys,
    merge_runs,
    order_ties,
    tree_load,
    tree_load_finish,
)
from tidemark.engine.index.tree_check_kernels import tree_check, tree_check_free, tree_check_rows
from tidemark.engine.index.tree_reservation_kernels import tree_release, tree_reserve
from tidemark.engine.index.tree_scans_kernels import tree_estimate
from tidemark.engine.index.tree_setup_kernels import drop_tree, make_tree
from tidemark.engine.index.unique_setup_kernels import drop_unique
from tidemark.engine.memory.arena import memory_full, next_handle
from tidemark.engine.memory.arena_layout import F_ROWS, OK, S_POOL, ST_MORE
from tidemark.engine.memory.handles_kernels import descriptor_word, descriptor_words, withdraw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.memory.arena import Arena

    Words = NDArray[np.int64]

RESERVE_ENTRIES = 256
LOAD_ENTRIES = 8_192
SLICE_SLOTS = 512
SLICE_ENTRIES = 128  # each reads a row and descends the tree: about a microsecond with a cold cache
CHECK_SLOTS = 128
COLLECT_SLOTS = 1 << 16
DROP_NODES = 512
CHECK_LEAVES = 1
SLACK_WORDS = 2  # the encoder writes a value before it checks the limit

FAULTS = {
    ix.FAULT_ORDER: "entries are out of order",
    ix.FAULT_ROW: "an entry refers to no row",
    ix.FAULT_KEY: "an entry has a different key than its row",
    ix.FAULT_NODE: "a node's level, count or fill is wrong",
    ix.FAULT_LINK: "leaves are linked wrongly",
    ix.FAULT_SEPARATOR: "a separator does not separate",
    ix.FAULT_COUNT: "a counter is wrong",
    ix.FAULT_FREE: "the list of free blocks is broken",
    ix.FAULT_MISSING: "a row has no entry",
    ix.FAULT_TWICE: "two rows have one key, or a row has two entries",
}


class Run(NamedTuple):
    """Entries outside the tree: W consecutive planes of key words, `stride` words apart, and their places. `order`:
    entry numbers in key order.
    """

    words: Words
    places: Words
    order: Words
    stride: int


class Fault(NamedTuple):
    """The finding of a check: one of the FAULT_ numbers, its text, and an address or place."""

    number: int
    what: str
    evidence: int


def fault_in(state: Words) -> Fault | None:
    """Return what a check has found. state: CK_ words."""
    number = int(state[ix.CK_FAULT])
    return Fault(number, FAULTS[number], int(state[ix.CK_EVIDENCE])) if number else None


def drop_index(mem: Words, handle: int) -> None:
    """Withdraw an index, if it is not withdrawn yet, and free its memory. A repeated call continues, or does
    nothing.
    """
    withdraw(mem, handle)
    handle = next_handle(handle)
    if descriptor_word(mem, handle, ix.I_UNIQUE) > 0:
        drop_unique(mem, handle)
    while drop_tree(mem, handle, DROP_NODES) == ST_MORE:
        pass


class ArenaIndex:
    """What ordered and unique indexes have in common: shape and handle, and the rows of some fragments."""

    def __init__(self, arena: Arena, shape: KeyShape, fragments: Sequence[int]) -> None:
        """fragments: their handles. The derived class makes the index."""
        self.mem = arena.mem
        self.shape = shape
        self.fragments = tuple(fragments)
        self.handle = 0

    def _made(self, handle: int) -> None:
        if handle == 0:
            raise memory_full(self.mem, "another index")
        self.handle = handle

    def _collected(self, kernel: Callable[..., int], fragment: int, width: int, parts: int) -> tuple[Words, Words]:
        """Return what a kernel collects of a fragment's rows: `width` planes of words, and places. parts: of scratch
        memory. Shapes: (width, rows), (rows,).
        """
        room = max(0, int(descriptor_word(self.mem, fragment, F_ROWS))) + 1
        words = np.zeros(room * width, dtype=np.int64)
        places = np.zeros(room, dtype=np.int64)
        side = self._side(parts)
        state = np.array([0, COLLECT_SLOTS, 0], dtype=np.int64)
        while kernel(self.mem, self.handle, fragment, words, places, side, state) == ST_MORE:
            if state[2] == room:
                raise InvariantBroken("a fragment has more rows than it counts; run `tidemark check`")
            state[1] = COLLECT_SLOTS
        count = int(state[2])
        return words.reshape(width, room)[:, :count], places[:count]

    def _side(self, parts: int = 3) -> Words:
        return np.zeros(parts * (self.shape.key_words + SLACK_WORDS), dtype=np.int64)

    def _check_rows(
        self, kernel: Callable[..., int], fragments: Sequence[int] | None, between: Callable[[], None], state: Words
    ) -> int:
        """Check rows in slices, unless a fault was found before; return how many have been checked."""
        rows = 0
        for fragment in (self.fragments if fragments is None else fragments) if state[ix.CK_FAULT] == 0 else ():
            position = np.zeros(3, dtype=np.int64)
            status = ST_MORE
            while status == ST_MORE:
                between()
                position[1] = CHECK_SLOTS
                status = kernel(self.mem, self.handle, fragment, position, state)
            rows += int(position[2])
        return rows

    def drop(self) -> None:
        """Do `drop_index`."""
        drop_index(self.mem, self.handle)


class OrderedIndex(ArenaIndex):
    """One ordered index over the rows of some fragments."""

    def __init__(
        self,
        arena: Arena,
        shape: KeyShape,
        fragments: Sequence[int],
        state: int = ix.INDEX_READY,
        capacities: tuple[int, int] | None = None,
    ) -> None:
        """Create an empty index. fragments: their handles. capacities: entries of a leaf and children of an inner node,
        if fewer than fit.

        Raises: MemoryExhausted.
        """
        super().__init__(arena, shape, fragments)
        numbers = capacities or (ix.leaf_capacity(shape.words), ix.inner_capacity(shape.words))
        self._made(int(make_tree(self.mem, S_POOL, shape.descriptor_shape(state, *numbers), shape.constants)))

    # --- changes --------------------------------------------------------------------------------
    def reserve(self, entries: int) -> None:
        """Reserve the blocks that adding this many entries may need. Raises: MemoryExhausted, with nothing reserved."""
        done = 0
        while done < entries:
            step = min(RESERVE_ENTRIES, entries - done)
            if tree_reserve(self.mem, self.handle, step) != OK:
                self.release(done)
                what = f"{entries} more index {'entry' if entries == 1 else 'entries'}"
                raise memory_full(self.mem, what, "commit in parts, or ")
            done += step

    def release(self, entries: int) -> None:
        """Return a reservation."""
        while tree_release(self.mem, self.handle, entries, DROP_NODES) > 0:
            entries = 0

    # --- reading --------------------------------------------------------------------------------
    def estimate(self, low: Words, high: Words) -> int:
        """Estimate the number of entries between two bounds."""
        return max(0, int(tree_estimate(self.mem, self.handle, low, high)))

    # --- building -------------------------------------------------------------------------------
    def collect(self, fragment: int) -> Run:
        """Collect the key words and places of a fragment's rows, sorted. Runs without the GIL, so no thread may change
        the rows meanwhile: for a restart, with one thread for each fragment.
        """
        words, places = self._collected(collect_keys, fragment, self.shape.words, 3)
        return self._sorted(words.ravel(), places)

    def merge(self, runs: Sequence[Run]) -> Run:
        """Merge sorted runs into one."""
        runs = [run for run in runs if len(run.order)] or list(runs[:1])
        if len(runs) == 1:
            return runs[0]
        width = self.shape.words
        starts = np.cumsum([0, *(len(run.order) for run in runs)]).astype(np.int64)
        planes = [run.words.reshape(width, run.stride) for run in runs]
        words = np.concatenate(planes, axis=1).ravel()
        places = np.concatenate([run.places for run in runs])
        order = np.concatenate([run.order + start for run, start in zip(runs, starts[:-1], strict=True)])
        heads = np.stack([starts[:-1], starts[1:]], axis=1).ravel()
        merged = np.empty_like(order)
        count = len(order)
        side = self._side()
        merge_runs(self.mem, self.handle, words, count, places, order, heads, len(runs), merged, side)
        return Run(words, places, merged, count)

    def _sorted(self, words: Words, places: Words) -> Run:
        count = len(places)
        order = np.argsort(words[:count]).astype(np.int64, copy=False)
        work = np.empty_like(order)
        order_ties(self.mem, self.handle, words, count, places, order, count, work, self._side())
        # Sorted in memory too, so that merging and loading read sequentially.
        planes = np.take(words.reshape(self.shape.words, count), order, axis=1)
        return Run(planes.ravel(), places[order], np.arange(count, dtype=np.int64), count)

    def load(self, run: Run) -> None:
        """Fill an empty index with all its entries. Raises: MemoryExhausted; the caller must then drop it."""
        count = len(run.order)
        for start in range(0, count, LOAD_ENTRIES):
            stop = min(start + LOAD_ENTRIES, count)
            done = tree_load(self.mem, self.handle, run.words, run.stride, run.places, run.order, start, stop)
            if done < stop - start:
                raise memory_full(self.mem, "an index")
        tree_load_finish(self.mem, self.handle)

    # --- counters and checks --------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """Return the numbers of entries, nodes, blocks and changes so far; all negative if the index was dropped."""
        word: list[int] = self._words().tolist()
        return {
            "entries": word[ix.I_COUNT],
            "height": word[ix.I_HEIGHT],
            "leaves": word[ix.I_LEVELS],
            "inner_nodes": sum(word[ix.I_LEVELS + 1 : ix.I_LEVELS + ix.HEIGHT_MAX]),
            "free_blocks": word[ix.I_FREE_COUNT],
            "reserved": word[ix.I_RESERVED],
            "splits": word[ix.I_SPLITS],
            "joins": word[ix.I_JOINS],
            "inserted": word[ix.I_INSERTED],
            "deleted": word[ix.I_DELETED],
        }

    def check(
        self,
        is_counted: bool = True,
        between: Callable[[], None] = lambda: None,
        fragments: Sequence[int] | None = None,
    ) -> Fault | None:
        """Verify the tree, and that every row has its entry, in slices. Returns the first fault, or None. An index or
        fragment that is dropped meanwhile has no fault.

        is_counted: the index has entries of the rows of `fragments` (None: those given to the constructor) and no
        others. between: called before each slice.
        """
        state = np.zeros(ix.CK_WORDS, dtype=np.int64)
        cursor = self.shape.below()
        version = int(descriptor_word(self.mem, self.handle, ix.I_VERSION))
        status = ST_MORE
        while status == ST_MORE:
            between()
            status = tree_check(self.mem, self.handle, cursor, CHECK_LEAVES, state)
        if status == OK:
            status = tree_check_free(self.mem, self.handle, state)
        if status == OK:
            self._check_sums(state, version)
        rows = self._check_rows(tree_check_rows, fragments, between, state)
        words = self._words()
        if is_counted and state[ix.CK_FAULT] == 0 and words[ix.I_VERSION] == version and rows != words[ix.I_COUNT]:
            state[ix.CK_FAULT], state[ix.CK_EVIDENCE] = ix.FAULT_COUNT, rows
        return fault_in(state)

    def _words(self) -> Words:
        """Return the counters of the descriptor as of one instant; -1 each if the index was dropped."""
        words = np.full(ix.I_PATH, -1, dtype=np.int64)
        descriptor_words(self.mem, self.handle, 0, words)
        return words

    def _check_sums(self, state: Words, version: int) -> None:
        """Compare the descriptor's counters with the check's, unless the tree is no longer at `version`."""
        words = self._words()
        if words[ix.I_VERSION] != version:
            return
        levels = words[ix.I_LEVELS : ix.I_LEVELS + ix.HEIGHT_MAX]
        seen = state[ix.CK_LEVELS : ix.CK_LEVELS + ix.HEIGHT_MAX].copy()
        seen[0] = max(1, int(state[ix.CK_LEAVES]))
        if state[ix.CK_ENTRIES] != words[ix.I_COUNT] or (levels != seen).any():
            state[ix.CK_FAULT], state[ix.CK_EVIDENCE] = ix.FAULT_COUNT, state[ix.CK_ENTRIES]
