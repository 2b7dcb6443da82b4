"""A set of canonical keys of any tables, in private memory, and selections of encoded keys. No Python per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.column_buffers import NO_WORDS
from tidemark.engine.base.errors import InvariantBroken, TransactionTooLarge
from tidemark.engine.rows.columnar import EncodedKeys
from tidemark.engine.types.base import counted
from tidemark.replication.applier import key_sets_layout as w
from tidemark.replication.applier.key_sets_kernels import add_keys, find_keys, rehash_keys
from tidemark.replication.conflict.tracker import SLOTS_MIN, longest_run, slots_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.int64]


def slice_keys(keys: EncodedKeys, start: int, stop: int) -> EncodedKeys:
    """Return the keys [start, stop), without a copy."""
    if keys.key_offsets.size:
        return EncodedKeys(keys.keys, 0, 0, keys.key_offsets[start : stop + 1], stop - start)
    stride = keys.key_stride
    return EncodedKeys(keys.keys[start * stride : stop * stride], stride, keys.key_words, NO_WORDS, stop - start)


def offsets_of(keys: EncodedKeys) -> Words:
    """Return the offsets of keys in any form, one entry more than keys."""
    if keys.key_offsets.size:
        return keys.key_offsets
    return np.arange(keys.count + 1, dtype=np.int64) * keys.key_stride


class KeySet:
    """Keys with their tables. Memory grows up to a limit; it holds the keys, 8 bytes more for each, and slots."""

    def __init__(self, seed: int, memory_limit_bytes: int = 1 << 40) -> None:
        """`seed` is that of the store's hashes: a signed word that no peer knows."""
        self._limit = memory_limit_bytes
        self._slots: Words = np.zeros(SLOTS_MIN, dtype=np.int64)
        self._data: Words = np.zeros(SLOTS_MIN, dtype=np.int64)
        self._state: Words = np.zeros(w.KEY_SET_STATE_WORDS, dtype=np.int64)
        self._state[w.KS_SEED] = seed

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self._state[w.KS_KEYS])

    @property
    def longest_probe(self) -> int:
        """The most slots that a look-up reads, not counting the free one at the end."""
        return longest_run(self._slots)

    def clear(self) -> None:
        """Remove all keys."""
        if self.count:
            self._state[[w.KS_KEYS, w.KS_WORDS]] = 0
            self._slots[:] = 0

    def _reserve(self, rows: int, words: int) -> None:
        needed = int(self._state[w.KS_WORDS]) + words + rows * w.KS_HEAD_WORDS
        size = self._data.size if needed <= self._data.size else max(needed, 2 * self._data.size)
        slots = max(self._slots.size, slots_for(self.count + rows))
        if 8 * (size + slots) > self._limit:
            raise TransactionTooLarge(
                f"an epoch transaction has more than {counted(self.count, 'row')} in conflict or waiting for others,"
                f" whose keys exceed {self._limit} bytes; nothing of it was applied; open the store with a larger"
                " transaction_memory",
                keys=self.count,
            )
        if size > self._data.size:
            grown = np.zeros(size, dtype=np.int64)
            grown[: self._data.size] = self._data
            self._data = grown
        if slots > self._slots.size:
            self._slots = np.zeros(slots, dtype=np.int64)
            rehash_keys(self._slots, self._data, self._state)

    def add(self, table_id: int, keys: EncodedKeys, start: int = 0) -> int:
        """Add keys from row `start` on, up to the first that is already in the set; return its row, or the number of
        rows.

        Raises: TransactionTooLarge past the memory limit; no key is added then.
        """
        rows = keys.count - start
        words = int(keys.key_offsets[-1] - keys.key_offsets[start]) if keys.key_offsets.size else rows * keys.key_stride
        self._reserve(rows, words)
        place = (table_id, keys.keys, keys.key_offsets, keys.key_stride, start, keys.count)
        return _checked(int(add_keys(*place, self._slots, self._data, self._state)))

    def holds(self, table_id: int, keys: EncodedKeys) -> NDArray[np.bool_]:
        """Return which of the keys are in the set. Shape: (keys,)."""
        out = np.zeros(keys.count, dtype=np.int64)
        if self.count:
            place = (table_id, keys.keys, keys.key_offsets, keys.key_stride)
            _checked(int(find_keys(*place, self._slots, self._data, self._state, out)))
        found: NDArray[np.bool_] = out != 0
        return found


def _checked(status: int) -> int:
    if status == w.KEY_SET_BROKEN:
        raise InvariantBroken("keys given to a set are outside their data; report this")
    return status
