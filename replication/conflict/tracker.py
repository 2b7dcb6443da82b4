"""Dependencies between the transactions of one epoch transaction, for functions that reject whole transactions.

A transaction depends on another if it wrote a row next after it; a mark goes forward along such edges, never backward.
Nothing outlives the epoch: later epochs are caught by the refreshed rows. Work is done in batches by kernels over
private memory; memory grows with the keys of the epoch, `memory_bytes` says how much, `memory_limit_bytes` bounds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InvariantBroken, PeerError, TransactionTooLarge
from engine.kernels.dependencies import mark_transactions, read_marks, rehash_dependencies, track_keys
from engine.layout.dependencies import (
    D_EDGES,
    D_KEY_WORDS,
    D_KEYS,
    D_MARKED,
    D_MAY_REPEAT,
    D_TRANSACTIONS,
    DEPENDENCY_BROKEN,
    DEPENDENCY_REPEATED,
    DEPENDENCY_STATE_WORDS,
    EDGE_WORDS,
    K_DATA,
    TRANSACTION_WORDS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.int64]

WORD_BYTES = 8
_SLOTS_MIN = 1 << 10


def pack_keys(parts: Sequence[tuple[NDArray[np.uint8], Words]]) -> tuple[Words, Words]:
    """Keys of several parts as words that differ whenever keys differ: each part is its length and its bytes.

    `parts`: for each key column the bytes of all rows and where each row's begin, with one offset more than rows.
    Returns (words, offsets in words). Shapes: offsets has one entry more than rows.
    """
    lengths = np.stack([np.diff(offsets) for _, offsets in parts], axis=1)
    words = 1 + -(-lengths // WORD_BYTES)
    ends = np.cumsum(words.reshape(-1))
    starts = (ends - words.reshape(-1)).reshape(words.shape)
    packed = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.int64)
    packed[starts] = lengths
    octets = packed.view(np.uint8)
    for number, (data, offsets) in enumerate(parts):
        rows = lengths[:, number]
        target = (starts[:, number] + 1) * WORD_BYTES - offsets[:-1]
        source = np.arange(offsets[0], offsets[-1], dtype=np.int64)
        octets[np.repeat(target, rows) + source] = data[source]
    return packed, np.concatenate([np.zeros(1, dtype=np.int64), starts[1:, 0], ends[-1:]]).astype(np.int64)


def _slots_for(entries: int) -> int:
    """Slots of a hash table that is at most two thirds full."""
    return max(_SLOTS_MIN, 1 << (entries * 3 // 2).bit_length())


class DependencyTracker:
    """One epoch transaction. Transaction ids are signed words; -1, all ones, is the invalid id, which tells nothing."""

    def __init__(self, memory_limit_bytes: int = 1 << 40) -> None:
        self._limit = memory_limit_bytes
        self._state: Words = np.zeros(DEPENDENCY_STATE_WORDS, dtype=np.int64)
        self._names: Words = np.zeros(_SLOTS_MIN, dtype=np.int64)
        self._slots: Words = np.zeros(_SLOTS_MIN, dtype=np.int64)
        self._transactions: Words = np.zeros(0, dtype=np.int64)
        self._keys: Words = np.zeros(0, dtype=np.int64)
        self._edges: Words = np.zeros(0, dtype=np.int64)
        self._stack: Words = np.zeros(0, dtype=np.int64)

    @property
    def transactions(self) -> int:
        """Transactions seen."""
        return int(self._state[D_TRANSACTIONS])

    @property
    def marked(self) -> int:
        """Transactions marked."""
        return int(self._state[D_MARKED])

    @property
    def keys(self) -> int:
        """Different keys seen."""
        return int(self._state[D_KEYS])

    @property
    def edges(self) -> int:
        """Dependencies kept; one that is found several times in a row is kept once."""
        return int(self._state[D_EDGES])

    @property
    def memory_bytes(self) -> int:
        """Memory reserved."""
        arrays = (self._names, self._slots, self._transactions, self._keys, self._edges, self._stack)
        return sum(each.nbytes for each in arrays)

    def _grown(self, array: Words, words: int) -> Words:
        if array.size >= words:
            return array
        grown = np.zeros(max(words, array.size * 5 // 4), dtype=np.int64)
        grown[: array.size] = array
        return grown

    def _reserve(self, writes: int, key_words: int) -> None:
        """Room for so many more writes, whatever they are."""
        transactions = self.transactions + writes
        keys = self.keys + writes
        names, slots = _slots_for(transactions), _slots_for(keys)
        needed = int(self._state[D_KEY_WORDS]) + writes * K_DATA + key_words
        words = (
            max(names, self._names.size)
            + max(slots, self._slots.size)
            + transactions * (TRANSACTION_WORDS + 1)
            + needed
            + (self.edges + writes) * EDGE_WORDS
        )
        if words * WORD_BYTES > self._limit:
            raise TransactionTooLarge(
                f"dependencies of the epoch's {keys} keys need {words * WORD_BYTES} bytes, more than {self._limit};"
                " raise the limit",
                keys=keys,
            )
        self._transactions = self._grown(self._transactions, transactions * TRANSACTION_WORDS)
        self._stack = self._grown(self._stack, transactions)
        self._keys = self._grown(self._keys, needed)
        self._edges = self._grown(self._edges, (self.edges + writes) * EDGE_WORDS)
        if names > self._names.size or slots > self._slots.size:
            self._names = np.zeros(max(names, self._names.size), dtype=np.int64)
            self._slots = np.zeros(max(slots, self._slots.size), dtype=np.int64)
            rehash_dependencies(self._names, self._transactions, self._slots, self._keys, self._state)

    def track(self, ids: Words, tables: Words, keys: Words, offsets: Words, is_passed_on: bool = False) -> None:
        """Take over writes in the order of events; keys as `pack_keys` gives them.

        is_passed_on: the source had them from other servers; what it applied in one transaction may have a change of a
        row for each of them. Raises: PeerError if another transaction writes a key twice (an epoch's events hold one
        change of a row for each transaction), TransactionTooLarge beyond the memory limit.
        """
        self._reserve(len(ids), int(offsets[-1]) if len(ids) else 0)
        self._state[D_MAY_REPEAT] = is_passed_on
        taken = track_keys(
            ids,
            tables,
            keys,
            offsets,
            self._names,
            self._transactions,
            self._slots,
            self._keys,
            self._edges,
            self._state,
            self._stack,
        )
        if taken == DEPENDENCY_BROKEN:
            raise InvariantBroken("keys given to the dependency tracker lie outside of their data; report this")
        if taken < 0:
            row = DEPENDENCY_REPEATED - taken
            raise PeerError(
                f"transaction {int(ids[row]):#x} changes a row of table {int(tables[row])} twice in one epoch; the"
                " applier stops, the source's binlog is wrong",
                row=row,
            )

    def mark(self, ids: Words) -> int:
        """Mark transactions, and what depends on them; returns how many were not marked before."""
        self._reserve(len(ids), 0)
        return int(mark_transactions(ids, self._names, self._transactions, self._edges, self._state, self._stack))

    def is_marked(self, ids: Words) -> NDArray[np.bool_]:
        """Which of the ids are marked. Shape: as `ids`."""
        out = np.zeros(len(ids), dtype=np.int64)
        read_marks(ids, self._names, self._transactions, out)
        return out.astype(np.bool_)
