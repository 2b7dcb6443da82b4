"""Dependencies between the transactions of one epoch transaction, for functions that reject whole transactions.

If two transactions write a row one after the other, the second depends on the first. A mark spreads from a transaction
to those that depend on it, never back. Nothing outlives the epoch: refreshed rows show conflicts of later epochs.
Kernels work in batches on private memory; `memory_limit_bytes` bounds it, `memory_bytes` is its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, TransactionTooLarge
from tidemark.replication.conflict import dependencies_layout as w
from tidemark.replication.conflict.dependencies_kernels import (
    mark_transactions,
    read_marks,
    rehash_dependencies,
    track_keys,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]


WORD_BYTES = 8
TRACKED_ROWS = 512  # rows, or words of keys, tracked in one call; room is reserved as if all were new
TRACKED_WORDS = 1 << 10
PARTS_MAX = 1 << 8
SLOTS_MIN = 1 << 10  # of a hash table in private memory, which kernels fill and search


def slots_for(entries: int) -> int:
    """Return the number of slots for a table that is at most two thirds full."""
    return max(SLOTS_MIN, 1 << (entries * 3 // 2).bit_length())


def longest_run(slots: Words) -> int:
    """Return the length of the longest run of used slots: no look-up reads more, except the free one at the end."""
    free = np.flatnonzero(slots == 0)
    if not free.size:
        return slots.size
    return int(np.diff(free, append=free[0] + slots.size).max()) - 1


def _grown_size(array: Words, words: int) -> int:
    """Return the size of an array that must hold `words` words. Sizes double, so that no more words are copied in total
    than the array finally holds.
    """
    return array.size if array.size >= words else max(words, 2 * array.size)


def _grown(array: Words, words: int) -> Words:
    if array.size == words:
        return array
    grown = np.zeros(words, dtype=np.int64)
    grown[: array.size] = array
    return grown


class DependencyTracker:
    """The dependencies of one epoch transaction. Transaction ids are signed words; -1, all ones, is the invalid id,
    which identifies no transaction.

    `memory_limit_bytes` bounds everything; half of it is for keys. Whenever keys need more than this half, the tracker
    leaves out half of the keys that it still tracks, chosen by hash; for them, the epoch transaction is read again
    (`begin_part`). Transactions and dependencies are kept between parts; a dependency that is found again is stored
    again.
    """

    def __init__(self, seed: int, memory_limit_bytes: int = 1 << 40, parts_max: int = PARTS_MAX) -> None:
        """`seed` is the store's, for the hashes: a signed word that no peer knows."""
        self._parts_max = parts_max
        self._left: list[tuple[int, int]] = []
        self._half = memory_limit_bytes // 2
        self._state: Words = np.zeros(w.DEPENDENCY_STATE_WORDS, dtype=np.int64)
        self._state[w.D_SEED] = seed
        self._names: Words = np.zeros(SLOTS_MIN, dtype=np.int64)
        self._slots: Words = np.zeros(SLOTS_MIN, dtype=np.int64)
        self._transactions: Words = np.zeros(0, dtype=np.int64)
        self._keys: Words = np.zeros(0, dtype=np.int64)
        self._edges: Words = np.zeros(0, dtype=np.int64)
        self._stack: Words = np.zeros(0, dtype=np.int64)
        self._keys_before = 0

    @property
    def transactions(self) -> int:
        """The number of transactions seen."""
        return int(self._state[w.D_TRANSACTIONS])

    @property
    def marked(self) -> int:
        """The number of transactions marked."""
        return int(self._state[w.D_MARKED])

    @property
    def keys(self) -> int:
        """The number of distinct keys seen."""
        return self._keys_before + int(self._state[w.D_KEYS])

    @property
    def edges(self) -> int:
        """The number of dependencies stored; one that is found several times in a row is stored once."""
        return int(self._state[w.D_EDGES])

    @property
    def memory_bytes(self) -> int:
        """The memory reserved; the operating system provides it at first use."""
        graph = (self._names, self._transactions, self._edges, self._stack)
        return sum(each.nbytes for each in (*graph, self._slots, self._keys))

    @property
    def longest_probe(self) -> int:
        """The most slots that a look-up of a key or a transaction reads, not counting the free one at the end."""
        return max(longest_run(self._names), longest_run(self._slots))

    def begin_part(self) -> bool:
        """Begin to track a part of the keys left out, in the next reading; return False if no keys were left out."""
        if not self._left:
            return False
        self._keys_before = self.keys
        self._state[[w.D_PART, w.D_PARTS]] = self._left.pop()
        self._state[[w.D_KEYS, w.D_KEY_WORDS]] = 0
        self._slots[:] = 0
        return True

    def _split(self) -> None:
        """Leave out half of the keys of this part."""
        part, parts = int(self._state[w.D_PART]), max(1, int(self._state[w.D_PARTS]))
        if 2 * parts > self._parts_max:
            raise TransactionTooLarge(
                f"keys of an epoch transaction exceed the {self._half} bytes they may take while dependencies are"
                f" tracked in {parts} parts; nothing was applied, open the store with a larger transaction_memory",
                keys=self.keys,
            )
        self._left.append((part + parts, 2 * parts))
        self._state[w.D_PARTS] = 2 * parts
        self._rehash(self._names.size, self._slots.size)

    def _reserve_graph(self, writes: int) -> None:
        """Reserve room for `writes` more transactions and dependencies."""
        transactions = self.transactions + writes
        names = max(slots_for(transactions), self._names.size)
        sizes = [
            _grown_size(self._transactions, transactions * w.TRANSACTION_WORDS),
            _grown_size(self._stack, transactions),
            _grown_size(self._edges, (self.edges + writes) * w.EDGE_WORDS),
        ]
        if (names + sum(sizes)) * WORD_BYTES > self._half:
            raise TransactionTooLarge(
                f"an epoch transaction of {self.transactions} transactions with {self.edges} dependencies, all of"
                f" which a transactional conflict function needs, exceeds the {self._half} bytes they may take;"
                " nothing of it was applied, open the store with a larger transaction_memory",
                transactions=self.transactions,
            )
        self._transactions = _grown(self._transactions, sizes[0])
        self._stack = _grown(self._stack, sizes[1])
        self._edges = _grown(self._edges, sizes[2])
        if names > self._names.size:
            self._rehash(names, self._slots.size)

    def _reserve_keys(self, writes: int, key_words: int) -> None:
        """Reserve room for `writes` more keys."""
        while True:
            slots = max(slots_for(int(self._state[w.D_KEYS]) + writes), self._slots.size)
            size = _grown_size(self._keys, int(self._state[w.D_KEY_WORDS]) + writes * w.K_DATA + key_words)
            if (slots + size) * WORD_BYTES <= self._half:
                break
            self._split()
        self._keys = _grown(self._keys, size)
        if slots > self._slots.size:
            self._rehash(self._names.size, slots)

    def _rehash(self, names: int, slots: int) -> None:
        self._names = np.zeros(names, dtype=np.int64)
        self._slots = np.zeros(slots, dtype=np.int64)
        rehash_dependencies(self._names, self._transactions, self._slots, self._keys, self._state)

    def track(self, ids: Words, tables: Words, keys: Words, offsets: Words) -> None:
        """Track writes in the order of events; keys as `pack_keys` returns them.

        Raises: TransactionTooLarge past the memory limit; the tracker is unusable afterwards.
        """
        start = 0
        while start < len(ids):
            stop = min(start + TRACKED_ROWS, len(ids))
            if stop - start > 1 and offsets.size > stop:
                most = int(np.searchsorted(offsets, offsets[start] + TRACKED_WORDS, "right")) - 1
                stop = min(max(most, start + 1), stop)
            self._track(ids, tables, keys, offsets, start, stop)
            start = stop

    def _track(self, ids: Words, tables: Words, keys: Words, offsets: Words, start: int, stop: int) -> None:
        some = offsets[start : stop + 1]
        self._reserve_graph(stop - start)
        self._reserve_keys(stop - start, max(0, int(some[-1] - some[0])))
        taken = track_keys(
            ids[start:stop],
            tables[start:stop],
            keys,
            some,
            self._names,
            self._transactions,
            self._slots,
            self._keys,
            self._edges,
            self._state,
            self._stack,
        )
        if taken == w.DEPENDENCY_BROKEN:
            raise InvariantBroken("keys given to the dependency tracker are outside their data; report this")

    def mark(self, ids: Words) -> int:
        """Mark transactions and those that depend on them; return the number of new marks."""
        self._reserve_graph(len(ids))
        return int(mark_transactions(ids, self._names, self._transactions, self._edges, self._state, self._stack))

    def is_marked(self, ids: Words) -> NDArray[np.bool_]:
        """Return which of the ids are marked. Shape: as `ids`."""
        out = np.zeros(len(ids), dtype=np.int64)
        read_marks(ids, self._names, self._transactions, self._state, out)
        return out.astype(np.bool_)
