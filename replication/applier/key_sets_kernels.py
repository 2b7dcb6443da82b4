"""Sets of canonical keys: which rows of a batch were seen before.

The kernels run on private memory. `slots` is an open-addressing hash table, which the caller sizes so that a batch
never fills it. A slot is 0 if it is free, else 1 + the word at which the record of its key begins in `data`. Words KS_…
of the state count the space used.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.sealed.keyed_hash_kernels import headed_hash
from tidemark.replication.applier import key_sets_layout as W


@helper
def _slot_of(head, words, start, length, slots, data, seed):
    """Return the slot of a key, or the free slot where it belongs."""
    mask = slots.size - 1
    at = headed_hash(head, words, start, length, seed) & mask
    while slots[at] != 0:
        record = slots[at] - 1
        if data[record] == head:
            same = 0
            while same < length and data[record + W.KS_HEAD_WORDS + same] == words[start + same]:
                same += 1
            if same == length:
                return at
        at = (at + 1) & mask
    return at


@helper
def _bounds(offsets, stride, row, words):
    """Return (first word, words) of a key; (0, -1) if it is outside of `words`."""
    first = offsets[row] if offsets.size else row * stride
    length = offsets[row + 1] - first if offsets.size else stride
    if first < 0 or length < 0 or length > W.KS_LENGTH_MASK or first + length > words.size:
        return 0, -1
    return first, length


@helper
def _has_rows(offsets, start, stop):
    """Whether a batch has rows [start, stop)."""
    return 0 <= start <= stop and (offsets.size == 0 or stop < offsets.size)


@kernel("int64(int64, int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def add_keys(table, words, offsets, stride, start, stop, slots, data, state):
    """Add keys [start, stop) of a table, up to the first that is already in the set; return its row, `stop` if there is
    none. `offsets` has one word more than there are keys, or is empty: then each key has `stride` words. Return
    KEY_SET_BROKEN if a key is outside of `words` or there is too little room.
    """
    if not _has_rows(offsets, start, stop) or state[W.KS_KEYS] + (stop - start) >= slots.size:
        return W.KEY_SET_BROKEN
    for row in range(start, stop):
        first, length = _bounds(offsets, stride, row, words)
        record = state[W.KS_WORDS]
        if length < 0 or record + W.KS_HEAD_WORDS + length > data.size:
            return W.KEY_SET_BROKEN
        head = table << W.KS_TABLE_SHIFT | length
        at = _slot_of(head, words, first, length, slots, data, state[W.KS_SEED])
        if slots[at] != 0:
            return row
        slots[at] = record + 1
        data[record] = head
        for i in range(length):
            data[record + W.KS_HEAD_WORDS + i] = words[first + i]
        state[W.KS_WORDS] = record + W.KS_HEAD_WORDS + length
        state[W.KS_KEYS] += 1
    return stop


@kernel("int64(int64, int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def find_keys(table, words, offsets, stride, slots, data, state, out):
    """Set out[i] to 1 if key i of a table is in the set, else to 0. Return how many are in the set;
    KEY_SET_BROKEN if a key is outside of `words`.
    """
    if not _has_rows(offsets, 0, out.size):
        return W.KEY_SET_BROKEN
    found = 0
    for row in range(out.size):
        first, length = _bounds(offsets, stride, row, words)
        if length < 0:
            return W.KEY_SET_BROKEN
        head = table << W.KS_TABLE_SHIFT | length
        out[row] = 1 if slots[_slot_of(head, words, first, length, slots, data, state[W.KS_SEED])] != 0 else 0
        found += out[row]
    return found


@kernel("int64(int64[::1], int64[::1], int64[::1])", nogil=True)
def rehash_keys(slots, data, state):
    """Fill a larger, empty hash table with all keys in `data`. Return their number."""
    record = 0
    count = 0
    mask = slots.size - 1
    while record < state[W.KS_WORDS]:
        length = data[record] & W.KS_LENGTH_MASK
        at = headed_hash(data[record], data, record + W.KS_HEAD_WORDS, length, state[W.KS_SEED]) & mask
        while slots[at] != 0:
            at = (at + 1) & mask
        slots[at] = record + 1
        record += W.KS_HEAD_WORDS + length
        count += 1
    return count
