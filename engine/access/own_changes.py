"""The changes of a transaction in a table, in the order of one of its indexes, to be merged into a scan.

Key words are kept as rows of a matrix, padded with the lowest word, and inverted for a descending scan, so that every
comparison here is ascending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access.disk_reading import read_rowid
from tidemark.engine.access.index_reads_kernels import may_have_changed, own_rows
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.key_words_kernels import LOWEST, encode_images
from tidemark.engine.memory.arena_layout import ENTRY_WORDS, OK, ST_MORE, ST_SPACE, ST_SPOOLED, X_CHANGES

if TYPE_CHECKING:
    from tidemark.engine.index.key_values import KeyShape
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

SLICE_ROWS = 1_000
LOOKED_AT_MAX = 100  # operations: about a microsecond
ENCODE_ROWS = 1_024
PLACE_WORDS = 3  # fragment number, ROWID, image offset


def key_matrix(shape: KeyShape, images: Words, offsets: Words, fixed_words: int, reverse: bool) -> Words:
    """Return key words of row images, for comparisons. Shapes: (images, words of the longest key)."""
    limit = shape.key_words
    parts: list[Words] = []
    for start in range(0, offsets.size, ENCODE_ROWS):
        some = np.ascontiguousarray(offsets[start : start + ENCODE_ROWS])
        out = np.zeros(some.size * (limit + 2) + limit + 2, dtype=np.int64)
        lengths = np.zeros(some.size, dtype=np.int64)
        encode_images(shape.descriptor, images, some, fixed_words, some.size, limit, out, lengths)
        width = int(lengths.max())
        words = out[: some.size * (limit + 2)].reshape(some.size, limit + 2)[:, :width].copy()
        words[np.arange(width) >= lengths[:, None]] = LOWEST
        parts.append(words)
    width = max((part.shape[1] for part in parts), default=shape.words)
    keys = np.concatenate([widened(part, width) for part in parts]) if parts else np.zeros((0, width), dtype=np.int64)
    return ~keys if reverse else keys


def widened(keys: Words, width: int, filling: int = LOWEST) -> Words:
    """Return keys padded to at least `width` words each."""
    more = width - keys.shape[1]
    return keys if more <= 0 else np.pad(keys, ((0, 0), (0, more)), constant_values=filling)


def compared(keys: Words, key: Words, filling: int) -> Words:
    """Return -1, 0 or 1 for each row of `keys`: how it compares with `key`."""
    keys = widened(keys, key.size, filling)
    result = np.zeros(len(keys), dtype=np.int64)
    for i in range(key.size):
        column = keys[:, i]
        result = np.where(result == 0, np.where(column < key[i], -1, np.where(column > key[i], 1, 0)), result)
    return result


def sorted_order(keys: Words) -> Words:
    """Return the order that sorts rows of key words; equal ones keep their order."""
    return np.lexsort(keys.T[::-1]) if keys.shape[1] else np.arange(len(keys))


def has_changed(txn: Transaction, table: Table) -> bool:
    """Whether a transaction may have changed or deleted rows of a table: a long one has, for all that is known here."""
    if not txn.desc or not int(txn.mem[txn.desc + X_CHANGES]):
        return False
    return bool(may_have_changed(txn.mem, table.table_id, txn.desc, LOOKED_AT_MAX))


def shows_others(txn: Transaction, table: Table) -> bool:
    """Whether a transaction may see other rows of a table than those that are committed now."""
    return txn.view is not None or has_changed(txn, table)


class OwnChanges:
    """Rows as their transaction sees them, between two bounds, sorted; taken from the front."""

    def __init__(
        self,
        table: Table,
        shape: KeyShape,
        txn: Transaction,
        low: Words,
        high: Words,
        reverse: bool,
        with_disk: bool,
        wanted: Words,
    ) -> None:
        """Gather the rows. wanted: by fragment number, whether its rows are requested; empty: all are."""
        self.filling = ~LOWEST if reverse else LOWEST
        places, entries = _gather(table, txn)
        fixed = table.format.fixed_words
        offsets = np.ascontiguousarray(places[:, 2])
        keys = key_matrix(shape, entries, offsets, fixed, False)
        chosen = (_against(keys, low) > 0) & (_against(keys, high) < 0)
        if wanted.size:
            numbers = places[:, 0]
            chosen &= (numbers < wanted.size) & (wanted[np.minimum(numbers, wanted.size - 1)] != 0)
        keys, places = keys[chosen], places[chosen]
        keys = ~keys if reverse else keys
        order = sorted_order(keys)
        self.keys, places = keys[order], places[order]
        self._lay_out(table, txn, places, entries, with_disk)

    def _lay_out(self, table: Table, txn: Transaction, places: Words, entries: Words, with_disk: bool) -> None:
        if with_disk:
            view = table.views.now(txn)
            parts = [read_rowid(table, int(number), int(rowid), view) for number, rowid, _ in places]
            keep = np.array([part.size > 0 for part in parts], dtype=bool)
            self.keys = self.keys[keep]
            parts = [part for part in parts if part.size]
        else:
            ends = np.append(places[:, 2], 0)
            parts = []
            for number in range(len(places)):
                begin = int(ends[number]) - ENTRY_WORDS
                size = ENTRY_WORDS + table.format.fixed_words
                if table.format.has_var:
                    size += int(entries[begin + size]) & ((1 << 32) - 1)
                parts.append(entries[begin : begin + size])
        sizes = np.array([part.size for part in parts], dtype=np.int64)
        self.entries = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        self.ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.position = 0

    @property
    def left(self) -> int:
        """The number of rows not taken yet."""
        return len(self.keys) - self.position

    def up_to(self, key: Words | None) -> int:
        """Return how many of the remaining rows sort before `key`, or equal to it; all if None."""
        if key is None:
            return self.left
        return int((compared(self.keys[self.position :], key, self.filling) <= 0).sum())

    def take(self, count: int) -> tuple[Words, Words, Words]:
        """Return (keys, entries, image offsets) of the next `count` rows."""
        first, last = self.position, self.position + count
        self.position = last
        begin = int(self.ends[first])
        offsets = self.ends[first:last] - begin + ENTRY_WORDS
        return self.keys[first:last], self.entries[begin : int(self.ends[last])], offsets


def _gather(table: Table, txn: Transaction) -> tuple[Words, Words]:
    """Return (fragment number, ROWID and image offset of each row; entries)."""
    places = np.zeros(64 * PLACE_WORDS, dtype=np.int64)
    entries = np.zeros(1_024, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
    status = ST_MORE
    while status != OK:
        status = int(own_rows(table.mem, table.table_id, txn.desc, txn.buf, SLICE_ROWS, places, entries, state))
        if status == ST_SPOOLED:
            txn.load_spooled()
        elif status == ST_SPACE:
            places = np.concatenate([places, np.zeros(places.size + 4_096 * PLACE_WORDS, dtype=np.int64)])
        elif status < ST_SPACE:
            entries = np.concatenate([entries, np.zeros(entries.size + ST_SPACE - status, dtype=np.int64)])
    count = int(state[1])
    return places[: count * PLACE_WORDS].reshape(count, PLACE_WORDS), entries


def _against(keys: Words, target: Words) -> Words:
    """Return -1 or 1 for each key: whether it is before or past a target; if the words are equal, the target's place
    decides.
    """
    words = target[ix.TG_KEY : ix.TG_KEY + int(target[ix.TG_WORDS])]
    result = compared(keys, words, LOWEST)
    tie = -1 if int(target[ix.TG_PLACE]) >= 0 else 1
    return np.where(result == 0, tie, result)
