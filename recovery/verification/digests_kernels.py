"""Digests of rows: values are folded column by column into two lanes for each row, and summed by range
(docs/verify.md).

The kernels run on private memory. A row has two lanes, one word each. A fold is a bijection of the word for a given
lane, and of the lane for a given word: rows that differ in exactly one word never have equal digests.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words, word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.columns_kernels import bit
from tidemark.engine.rows.lcp_kernels import checked_entry_words
from tidemark.engine.sealed.checksums_kernels import P1, P2, P3, P4, P5, avalanche64, rotate, shift_right
from tidemark.recovery.backup import entries_layout as I

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)


@helper
def fold_first(lane, word):
    """Fold a word into lane 0."""
    return rotate(lane + word * P2, 31) * P1


@helper
def fold_second(lane, word):
    """Fold a word into lane 1."""
    return rotate((lane ^ word) * P4, 29) * P2


@helper
def fold_null(lanes, row):
    """Fold a NULL into both lanes of a row."""
    lanes[2 * row] = rotate(lanes[2 * row] ^ P5, 17) * P3
    lanes[2 * row + 1] = rotate(lanes[2 * row + 1] + P1, 43) * P5


@helper
def is_valid(validity, first_bit, row):
    """Whether a row has a value; without a bitmap, every row has one."""
    return validity.size == 0 or bit(validity, first_bit + row) != 0


@helper
def has_bits(validity, first_bit, count):
    """Whether a bitmap covers all rows."""
    return validity.size == 0 or (first_bit >= 0 and first_bit + count <= validity.size * 8)


@kernel("int64(int64[::1], int64)", nogil=True)
def begin_digests(lanes, count):
    """Initialize the lanes of rows. Return count, or -1 for invalid bounds."""
    if count < 0 or 2 * count > lanes.size:
        return -1
    for row in range(count):
        lanes[2 * row] = P4
        lanes[2 * row + 1] = P5
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), int64, Array(uint8, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def fold_words(lanes, words, units, validity, first_bit, count):
    """Fold a column of `units` words in each row. Return count, or -1 for invalid bounds."""
    if count < 0 or units < 1 or 2 * count > lanes.size or count * units > words.size:
        return -1
    if not has_bits(validity, first_bit, count):
        return -1
    for row in range(count):
        if not is_valid(validity, first_bit, row):
            fold_null(lanes, row)
            continue
        first = lanes[2 * row]
        second = lanes[2 * row + 1]
        for unit in range(units):
            word = words[row * units + unit]
            first = fold_first(first, word)
            second = fold_second(second, word)
        lanes[2 * row] = first
        lanes[2 * row + 1] = second
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), "
    "Array(uint8, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def fold_bytes(lanes, words, ends, validity, first_bit, count):
    """Fold a column of strings: row i has the bytes [ends[i], ends[i + 1]) of `words`. `words` needs one word more than
    the bytes fill. Return count, or -1 for invalid bounds.
    """
    if count < 0 or 2 * count > lanes.size or count >= ends.size or not has_bits(validity, first_bit, count):
        return -1
    for row in range(count):
        if ends[row] < 0 or ends[row] > ends[row + 1] or ends[row + 1] > (words.size - 1) * 8:
            return -1
    for row in range(count):
        if not is_valid(validity, first_bit, row):
            fold_null(lanes, row)
            continue
        at = ends[row]
        left = ends[row + 1] - at
        first = fold_first(lanes[2 * row], left)
        second = fold_second(lanes[2 * row + 1], left)
        while left > 0:
            shift = (at & 7) * 8
            word = word_at(words, at >> 3)
            if shift:
                word = shift_right(word, shift) | (word_at(words, (at >> 3) + 1) << (64 - shift))
            if left < 8:
                word &= (1 << (left * 8)) - 1
            first = fold_first(first, word)
            second = fold_second(second, word)
            at += 8
            left -= 8
        lanes[2 * row] = first
        lanes[2 * row + 1] = second
    return count


@kernel("int64(int64[::1], int64)", nogil=True)
def finish_digests(lanes, count):
    """Finalize the lanes of completely folded rows. Return count, or -1 for invalid bounds."""
    if count < 0 or 2 * count > lanes.size:
        return -1
    for row in range(count):
        lanes[2 * row] = avalanche64(lanes[2 * row])
        lanes[2 * row + 1] = avalanche64(lanes[2 * row + 1])
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1], int64)", nogil=True)
def sum_digests(sums, lanes, ranges, count):
    """Add each row to the sums of its range, unless that is negative. Return the number of rows added, or -1 at an
    invalid range.
    """
    if count < 0 or 2 * count > lanes.size or count > ranges.size:
        return -1
    added = 0
    for row in range(count):
        at = ranges[row] * I.SUM_WORDS
        if at < 0:
            continue
        if at + I.SUM_WORDS > sums.size:
            return -1
        sums[at] += 1
        sums[at + 1] += lanes[2 * row]
        sums[at + 2] += lanes[2 * row + 1]
        added += 1
    return added


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def copy_entries(words, start, stop, shape, out, offsets, state):
    """Copy the entries of one fragment in words[max(start, state[B_NEXT]):stop] to out[state[B_USED]:], and write the
    offsets of images to offsets[state[B_ENTRIES]:].

    shape: [fixed words, has var, table, fragment]. OK; ST_SPACE - words needed if out or offsets are full; ST_INVARIANT
    at state[B_NEXT].
    """
    at = max(start, state[I.B_NEXT])
    while at < stop:
        state[I.B_NEXT] = at
        size = checked_entry_words(shape[0], shape[1], words, at, stop)
        if size < 0 or _entry_table(words[at + 2]) != shape[2] or _entry_fragment(words[at + 2]) != shape[3]:
            return A.ST_INVARIANT
        if state[I.B_USED] + size > out.size or state[I.B_ENTRIES] >= offsets.size:
            return A.ST_SPACE - size
        move_words(words, at, out, state[I.B_USED], size)
        offsets[state[I.B_ENTRIES]] = state[I.B_USED] + A.ENTRY_WORDS
        state[I.B_USED] += size
        state[I.B_ENTRIES] += 1
        at += size
    state[I.B_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def copy_of_fragment(words, start, stop, shapes, table, fragment, out, offsets, state):
    """Like `copy_entries`, for a copies file of a local checkpoint, which has entries of any table and fragment; others
    are skipped. shapes: as for `load_copies`.
    """
    at = max(start, state[I.B_NEXT])
    while at < stop:
        state[I.B_NEXT] = at
        if at + A.ENTRY_WORDS > stop:
            return A.ST_INVARIANT
        found = _entry_table(words[at + 2])
        shape = found * A.ENTRY_SHAPE_WORDS
        if shape >= shapes.size or _entry_fragment(words[at + 2]) >= shapes[shape + 2]:
            return A.ST_INVARIANT
        size = checked_entry_words(shapes[shape], shapes[shape + 1], words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if found == table and _entry_fragment(words[at + 2]) == fragment:
            if state[I.B_USED] + size > out.size or state[I.B_ENTRIES] >= offsets.size:
                return A.ST_SPACE - size
            move_words(words, at, out, state[I.B_USED], size)
            offsets[state[I.B_ENTRIES]] = state[I.B_USED] + A.ENTRY_WORDS
            state[I.B_USED] += size
            state[I.B_ENTRIES] += 1
        at += size
    state[I.B_NEXT] = stop
    return A.OK
