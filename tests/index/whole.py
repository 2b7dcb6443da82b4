"""An ordered index with entries added, removed and read by place: what commits and scans do, without rows around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import encode_row, side_part
from tidemark.engine.index.ordered import SLICE_ENTRIES, SLICE_SLOTS, OrderedIndex
from tidemark.engine.index.tree_build_kernels import tree_add_rows
from tidemark.engine.index.tree_changes_kernels import add_row, remove_row
from tidemark.engine.index.tree_scans_kernels import entries_between, move_cursor
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.handles_kernels import descriptor_of

SCAN_ENTRIES = 4_096


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64[::1], int64[::1])")
def encode_places(mem, tree, places, count, limit, out, lengths):  # type: ignore[no-untyped-def]
    """Encode the key words of the rows at `places` into `out`, `limit` + 2 words apart; write to lengths[i] how many
    row i has. Return `count`, or ST_DROPPED.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return a.ST_DROPPED
    for i in range(count):
        lengths[i] = encode_row(
            mem, tree, places[i], mem, side_part(mem, tree, ix.SIDE_VALUE), out, i * (limit + 2), limit
        )
    return count


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def tree_insert_run(mem, tree, places, start, stop):  # type: ignore[no-untyped-def]
    """Add the entries of the rows at places[start:stop], which must be reserved; returns the number added.

    Skips an entry that exists: an online build may meet a row after its commit. ST_INVARIANT if no room was reserved.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return a.ST_DROPPED
    added = 0
    for i in range(start, stop):
        status = add_row(mem, tree, places[i])
        if status == a.OK:
            added += 1
        elif status != a.ST_DUPLICATE:
            return status
    return added


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def tree_delete_run(mem, tree, places, start, stop):  # type: ignore[no-untyped-def]
    """Remove the entries of the rows at places[start:stop]; returns the number removed."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return a.ST_DROPPED
    removed = 0
    for i in range(start, stop):
        if remove_row(mem, tree, places[i]) == a.OK:
            removed += 1
    return removed


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def tree_scan(mem, tree, cursor, bound, reverse, limit, places, keys):  # type: ignore[no-untyped-def]
    """Read the places of the next entries between `cursor` and `bound`, at most `limit`, and move the cursor to the
    last. keys: empty, or room for W words for each. Returns the number of entries, fewer than `limit` at the end, or
    ST_DROPPED.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return a.ST_DROPPED
    done, leaf, number = entries_between(mem, tree, cursor, bound, reverse, limit, places, keys)
    if done > 0:
        move_cursor(mem, tree, leaf, number, cursor)
    return done


def entries_of(
    index: OrderedIndex,
    low: Any = None,
    high: Any = None,
    reverse: bool = False,
    batch: int = SCAN_ENTRIES,
    with_keys: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Yield places, and the W key words of each, in batches. The index may change between two batches."""
    low = index.shape.below() if low is None else low
    high = index.shape.above() if high is None else high
    cursor, bound = (high, low) if reverse else (low, high)
    cursor = cursor.copy()
    places = np.zeros(batch, dtype=np.int64)
    keys = np.zeros(batch * index.shape.words if with_keys else 0, dtype=np.int64)
    while True:
        found = tree_scan(index.mem, index.handle, cursor, bound, reverse, batch, places, keys)
        if found > 0:
            yield places[:found].copy(), keys[: found * index.shape.words].copy()
        if found < batch:
            return


class WholeIndex(OrderedIndex):
    """One ordered index over the rows of some fragments."""

    def insert(self, places: Sequence[int] | Any) -> int:
        """Add the entries of the rows at places, which must be reserved; return the number of new entries."""
        every = np.asarray(places, dtype=np.int64)
        added = 0
        for start in range(0, len(every), SLICE_ENTRIES):
            stop = min(start + SLICE_ENTRIES, len(every))
            done = tree_insert_run(self.mem, self.handle, every, start, stop)
            if done < 0:
                raise InvariantBroken("an index was given more entries than were reserved; report this")
            added += done
        return added

    def delete(self, places: Sequence[int] | Any) -> int:
        """Remove the entries of the rows at places; returns the number removed."""
        every = np.asarray(places, dtype=np.int64)
        return sum(
            tree_delete_run(self.mem, self.handle, every, start, min(start + SLICE_ENTRIES, len(every)))
            for start in range(0, len(every), SLICE_ENTRIES)
        )

    def scan(
        self, low: Any = None, high: Any = None, reverse: bool = False, batch: int = SCAN_ENTRIES
    ) -> Iterator[Any]:
        """Yield places between two bounds, in batches of up to `batch`. The index may change between two batches."""
        for places, _ in entries_of(self, low, high, reverse, batch, False):
            yield places

    def scan_keys(
        self, low: Any = None, high: Any = None, reverse: bool = False, batch: int = SCAN_ENTRIES
    ) -> Iterator[tuple[Any, Any]]:
        """Like `scan`, with the W key words of each entry."""
        return entries_of(self, low, high, reverse, batch, True)

    def build(self) -> None:
        """Fill an empty index from all fragments, as a restart does. Raises: MemoryExhausted."""
        self.load(self.merge([self.collect(fragment) for fragment in self.fragments]))

    def build_online(self) -> Iterator[int]:
        """Fill an index in slices between which rows may change; yields the number of rows added by each. Raises:
        MemoryExhausted.
        """
        for fragment in self.fragments:
            state = np.zeros(3, dtype=np.int64)
            status = a.ST_MORE
            while status == a.ST_MORE:
                self.reserve(SLICE_ENTRIES)
                state[1], state[2] = SLICE_SLOTS, SLICE_ENTRIES
                status = tree_add_rows(self.mem, self.handle, fragment, state)
                self.release(SLICE_ENTRIES)
                if status not in (a.OK, a.ST_MORE):
                    raise InvariantBroken(f"the build of an index ended with status {status}; report this")
                yield SLICE_ENTRIES - int(state[2])
