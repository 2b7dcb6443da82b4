"""Kernels of the variable parts of rows: canonical keys with variable pieces, and var parts; private memory only.

`row_offsets` are word positions of images, `ends` are count + 1 offsets as in Arrow. Every kernel checks lengths before
it uses them and returns a negative status if they are invalid; then the caller drops the output. A kernel that copies
what another has measured relies on the checks of that one.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.objects_kernels import copy_elements
from tidemark.engine.rows.columns_kernels import bit
from tidemark.engine.schema import row_layout as R

_WORD_MASK = (1 << 32) - 1


@kernel("int64(int64[::1], Array(int64, 1, 'C', readonly=True), int64)", nogil=True)
def add_key_words(totals, offsets, count):
    """Add the words of a variable key piece (length word, padded bytes) to every row's total; returns count or -1."""
    if count > totals.size or count >= offsets.size:
        return -1
    for row in range(count):
        totals[row] += 1 + ((offsets[row + 1] - offsets[row] + 7) >> 3)
    return count


@kernel("int64(int64[::1], Array(int64, 1, 'C', readonly=True), int64)", nogil=True)
def sum_offsets(offsets, totals, count):
    """Write offsets (count + 1) from sizes; returns the sum or -1."""
    if count >= offsets.size or count > totals.size:
        return -1
    end = 0
    offsets[0] = 0
    for row in range(count):
        end += totals[row]
        offsets[row + 1] = end
    return end


@kernel("int64(int64[::1], int64[::1], Array(int64, 1, 'C', readonly=True), int64, int64)", nogil=True)
def append_key_words(keys, cursor, source, units, count):
    """Append a key piece of fixed size (`units` words) to every row's key and advance `cursor`; returns count or -1."""
    if count > cursor.size or units * count > source.size:
        return -1
    for row in range(count):
        at = cursor[row]
        if at < 0 or at + units > keys.size:
            return -1
        copy_elements(keys, at, source, row * units, units)
        cursor[row] = at + units
    return count


@kernel(
    "int64(int64[::1], uint8[::1], int64[::1], Array(uint8, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), int64)",
    nogil=True,
)
def append_key_bytes(keys, keys_bytes, cursor, source, offsets, count):
    """Append a variable key piece to every row's key; returns count or -1. The caller has zeroed `keys`; `keys_bytes`
    is the same memory.
    """
    if count > cursor.size or count >= offsets.size:
        return -1
    for row in range(count):
        at = cursor[row]
        begin = offsets[row]
        size = offsets[row + 1] - begin
        words = 1 + ((size + 7) >> 3)
        if at < 0 or begin < 0 or size < 0 or at + words > keys.size or begin + size > source.size:
            return -1
        keys[at] = size
        copy_elements(keys_bytes, (at + 1) * 8, source, begin, size)
        cursor[row] = at + words
    return count


@kernel("int64(int64[::1], int64[::1], Array(int64, 1, 'C', readonly=True), int64, int64)", nogil=True)
def walk_key_words(target, cursor, keys, units, count):
    """Read the next key piece of fixed size of every row and advance `cursor`; returns count or -1."""
    if count > cursor.size or units * count > target.size:
        return -1
    for row in range(count):
        at = cursor[row]
        if at < 0 or at + units > keys.size:
            return -1
        copy_elements(target, row * units, keys, at, units)
        cursor[row] = at + units
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64)", nogil=True
)
def measure_key_bytes(ends, cursor, keys, count):
    """Write the offsets (count + 1) of every row's next key piece, a variable one; returns the bytes of all, or -1."""
    if count > cursor.size or count >= ends.size:
        return -1
    end = 0
    ends[0] = 0
    for row in range(count):
        at = cursor[row]
        if at < 0 or at >= keys.size:
            return -1
        size = keys[at]
        if size < 0 or size > (keys.size - at - 1) * 8:
            return -1
        end += size
        ends[row + 1] = end
    return end


@kernel(
    "int64(uint8[::1], int64[::1], Array(int64, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64)",
    nogil=True,
)
def walk_key_bytes(target, cursor, ends, keys_bytes, count):
    """Copy the pieces that `measure_key_bytes` measured and advance `cursor`; returns count or -1."""
    if count > cursor.size or count >= ends.size or ends[count] > target.size:
        return -1
    for row in range(count):
        size = ends[row + 1] - ends[row]
        copy_elements(target, ends[row], keys_bytes, (cursor[row] + 1) * 8, size)
        cursor[row] += 1 + ((size + 7) >> 3)
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(uint8, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def add_lengths(totals, offsets, validity, bit_offset, count):
    """Add the bytes of a var column to every row's total (NULL takes none); returns the largest total or -1."""
    if count > totals.size or count >= offsets.size:
        return -1
    if validity.size > 0 and count > 0 and (bit_offset + count - 1) >> 3 >= validity.size:
        return -1
    largest = 0
    for row in range(count):
        if validity.size == 0 or bit(validity, bit_offset + row) == 1:
            totals[row] += offsets[row + 1] - offsets[row]
        largest = max(largest, totals[row])
    return largest


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64, int64)",
    nogil=True,
)
def lay_out_rows(row_offsets, totals, key_offsets, fixed_words, var_count, count):
    """Write the word offsets (count + 1) of images with var parts; returns the total words or -1. `key_offsets` is
    empty if keys are in the fixed image.
    """
    if count >= row_offsets.size or count > totals.size or (key_offsets.size > 0 and count >= key_offsets.size):
        return -1
    rest = fixed_words + R.VAR_HEADER_WORDS + ((var_count + 1) >> 1)
    end = 0
    row_offsets[0] = 0
    for row in range(count):
        end += rest + ((totals[row] + 7) >> 3)
        if key_offsets.size > 0:
            end += key_offsets[row + 1] - key_offsets[row]
        row_offsets[row + 1] = end
    return end


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], Array(int64, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64, int64)",
    nogil=True,
)
def place_rows(images, row_offsets, ends_at, fixed, keys, key_offsets, fixed_words, var_count, count):
    """Write fixed images, var headers and keys, and zero the rest; returns count or -1. `ends_at` gets the word of each
    row's end offsets.
    """
    if count >= row_offsets.size or count > ends_at.size or fixed_words * count > fixed.size:
        return -1
    if key_offsets.size > 0 and (count >= key_offsets.size or key_offsets[count] > keys.size):
        return -1
    if count > 0 and row_offsets[count] > images.size:
        return -1
    for row in range(count):
        at = row_offsets[row]
        words = row_offsets[row + 1] - at - fixed_words
        key_words = 0
        if key_offsets.size > 0:
            key_words = key_offsets[row + 1] - key_offsets[row]
        if at < 0 or key_words < 0 or words < R.VAR_HEADER_WORDS + key_words + ((var_count + 1) >> 1):
            return -1
        copy_elements(images, at, fixed, row * fixed_words, fixed_words)
        at += fixed_words
        images[at] = (
            words
            | var_count << R.VAR_COUNT_SHIFT
            | key_words << R.VAR_KEY_WORDS_SHIFT
            | R.VAR_VERSION << R.VAR_VERSION_SHIFT
        )
        at += R.VAR_HEADER_WORDS
        if key_words > 0:
            copy_elements(images, at, keys, key_offsets[row], key_words)
            at += key_words
        ends_at[row] = at
        for i in range(at, row_offsets[row + 1]):
            images[i] = 0
    return count


@kernel(
    "int64(int64[::1], uint8[::1], int64[::1], Array(int64, 1, 'C', readonly=True),"
    " Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64)",
    nogil=True,
)
def append_var_column(
    images, images_bytes, cursor, ends_at, source, offsets, validity, bit_offset, ordinal, var_count, count
):
    """Append a var column to every row: its end offset and its bytes; returns count or -1. `cursor` counts the bytes of
    each row so far.
    """
    if count > cursor.size or count > ends_at.size or count >= offsets.size or ordinal >= var_count:
        return -1
    if validity.size > 0 and count > 0 and (bit_offset + count - 1) >> 3 >= validity.size:
        return -1
    ends_words = (var_count + 1) >> 1
    for row in range(count):
        at = ends_at[row]
        end = cursor[row]
        flag = 0
        if validity.size > 0 and bit(validity, bit_offset + row) == 0:
            flag = R.VAR_NULL_BIT
        else:
            begin = offsets[row]
            size = offsets[row + 1] - begin
            to = (at + ends_words) * 8 + end
            if begin < 0 or size < 0 or begin + size > source.size or to < 0 or to + size > images_bytes.size:
                return -1
            copy_elements(images_bytes, to, source, begin, size)
            end += size
            cursor[row] = end
        if at < 0 or at + ends_words > images.size:
            return -1
        images[at + (ordinal >> 1)] |= (end | flag) << ((ordinal & 1) << 5)
    return count


@helper
def _var_start(images, at):
    """Return the word of the end offsets of the var part at word `at`, or -1 if its header is invalid."""
    if at < 0 or at >= images.size:
        return -1
    header = images[at]
    words = header & R.VAR_WORDS_MASK
    key_words = (header >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK
    columns = (header >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    if header < 0 or at + words > images.size or R.VAR_HEADER_WORDS + key_words + ((columns + 1) >> 1) > words:
        return -1
    return at + R.VAR_HEADER_WORDS + key_words


@helper
def _var_end(images, ends_at, ordinal):
    if ordinal < 0:
        return 0
    return (images[ends_at + (ordinal >> 1)] >> ((ordinal & 1) << 5)) & _WORD_MASK


@kernel(
    "int64(int64[::1], uint8[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64,"
    " int64, int64, int64)",
    nogil=True,
)
def measure_var_column(ends, bitmap, images, row_offsets, fixed_words, ordinal, default_bytes, count):
    """Write offsets (count + 1) and validity (zeroed before) of a var column; returns its nulls, or -1 - row if
    damaged.

    Rows older than the column get the default: `default_bytes` long, -1 if it is NULL.
    """
    if count >= ends.size or count > row_offsets.size or (count + 7) >> 3 > bitmap.size:
        return -1
    nulls = 0
    total = 0
    ends[0] = 0
    for row in range(count):
        at = row_offsets[row] + fixed_words
        ends_at = _var_start(images, at)
        if ends_at < 0:
            return -1 - row
        columns = (images[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
        size = default_bytes
        if ordinal < columns:
            room = (at + (images[at] & R.VAR_WORDS_MASK) - ends_at - ((columns + 1) >> 1)) * 8
            end = _var_end(images, ends_at, ordinal)
            size = (end & R.VAR_END_MASK) - (_var_end(images, ends_at, ordinal - 1) & R.VAR_END_MASK)
            if size < 0 or (end & R.VAR_END_MASK) > room:
                return -1 - row
            if end & R.VAR_NULL_BIT:
                size = -1
        if size < 0:
            nulls += 1
        else:
            bitmap[row >> 3] |= 1 << (row & 7)
            total += size
        ends[row + 1] = total
    return nulls


@kernel(
    "int64(uint8[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(uint8, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(uint8, 1, 'C', readonly=True), int64, int64, int64)",
    nogil=True,
)
def copy_var_column(target, ends, images, images_bytes, row_offsets, default, fixed_words, ordinal, count):
    """Copy the values that `measure_var_column` measured in the same images; returns count or -1."""
    if count >= ends.size or count > row_offsets.size or ends[count] > target.size:
        return -1
    for row in range(count):
        size = ends[row + 1] - ends[row]
        if size == 0:
            continue
        at = row_offsets[row] + fixed_words
        columns = (images[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
        if ordinal >= columns:
            if size > default.size:
                return -1
            copy_elements(target, ends[row], default, 0, size)
        else:
            ends_at = _var_start(images, at)
            begin = _var_end(images, ends_at, ordinal - 1) & R.VAR_END_MASK
            copy_elements(target, ends[row], images_bytes, (ends_at + ((columns + 1) >> 1)) * 8 + begin, size)
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def collect_fixed(target, images, row_offsets, fixed_words, count):
    """Copy the fixed parts of images with var parts into a compact array; returns count or -1."""
    if count > row_offsets.size or fixed_words * count > target.size:
        return -1
    for row in range(count):
        at = row_offsets[row]
        if at < 0 or at + fixed_words > images.size:
            return -1
        copy_elements(target, row * fixed_words, images, at, fixed_words)
    return count


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def measure_keys(offsets, images, row_offsets, fixed_words, count):
    """Write the word offsets (count + 1) of the keys in var parts; returns the words of all, or -1 - row if damaged."""
    if count >= offsets.size or count > row_offsets.size:
        return -1
    end = 0
    offsets[0] = 0
    for row in range(count):
        at = row_offsets[row] + fixed_words
        ends_at = _var_start(images, at)
        if ends_at < 0:
            return -1 - row
        end += ends_at - at - R.VAR_HEADER_WORDS
        offsets[row + 1] = end
    return end


@kernel(
    "int64(int64[::1], Array(int64, 1, 'C', readonly=True), Array(int64, 1, 'C', readonly=True),"
    " Array(int64, 1, 'C', readonly=True), int64, int64)",
    nogil=True,
)
def copy_keys(target, offsets, images, row_offsets, fixed_words, count):
    """Copy the keys that `measure_keys` measured in the same images; returns count or -1."""
    if count >= offsets.size or count > row_offsets.size or offsets[count] > target.size:
        return -1
    for row in range(count):
        at = row_offsets[row] + fixed_words + R.VAR_HEADER_WORDS
        copy_elements(target, offsets[row], images, at, offsets[row + 1] - offsets[row])
    return count
