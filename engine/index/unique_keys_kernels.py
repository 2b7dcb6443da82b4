"""Keys of a unique index: key words and tags of row images, in the arena or in a buffer (docs/internals/access.md, 6).

The encoder and the key words are those of ordered indexes; a key with a NULL has no key words here.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import (
    NO_VAR_PART,
    encode_key,
    is_chained,
    row_of_place,
    side_part,
    var_of_place,
)
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import own_fixed, own_var
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.rows.primary_kernels import tag_of
from tidemark.engine.rows.var_parts_kernels import chunk_address
from tidemark.engine.schema import row_layout as R

NO_TAG = -1


@helper
def is_null_in_var(mem, column, parts, var_at):
    header = parts[var_at] if var_at != NO_VAR_PART else 0
    ordinal = mem[column + K.CW_AT]
    if ordinal >= (header >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK:
        return mem[column + K.CW_MISSING] < 0
    ends = var_at + 1 + ((header >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    return (parts[ends + (ordinal >> 1)] >> ((ordinal & 1) << 5)) & R.VAR_NULL_BIT != 0


@helper
def has_null(mem, index, fixed, at, parts, var_at):
    """Whether a key column is NULL in the image fixed[at:] with the var part parts[var_at:].

    In an index that is being built a column that is not nullable may be NULL too: it gets its values just now.
    """
    nullable = mem[index + X.I_NULLABLE] if mem[index + X.I_STATE] == X.INDEX_READY else -1
    if nullable == 0:
        return False
    for i in range(mem[index + X.I_COLUMN_COUNT]):
        if (nullable >> i) & 1 == 0:
            continue
        column = index + X.I_COLUMNS + i * K.COLUMN_WORDS
        if mem[column + K.CW_PART] == K.PART_VAR:
            if is_null_in_var(mem, column, parts, var_at):
                return True
        elif mem[column + K.CW_PART] == K.PART_FIXED and mem[column + K.CW_NULL_MASK] != 0:
            byte = mem[column + K.CW_NULL_BYTE]
            if (fixed[at + (byte >> 3)] >> ((byte & 7) << 3)) & mem[column + K.CW_NULL_MASK]:
                return True
    return False


@helper
def image_key_words(mem, index, fragment, images, at, number):
    """Encode the key words of the whole image images[at:] into a scratch part; returns their number, 0 with a NULL."""
    var_at = at + mem[fragment + A.F_FIXED_WORDS]
    if has_null(mem, index, images, at, images, var_at):
        return 0
    value = side_part(mem, index, X.SIDE_VALUE)
    out = side_part(mem, index, number)
    return encode_key(mem, index, images, at, images, var_at, 0, mem, value, mem, out, mem[index + X.I_KEY_WORDS])


@helper
def parted_key_words(mem, index, fixed, at, reference, number):
    """Like `image_key_words`, for the fixed image fixed[at:] with the var part at `reference` (0: none)."""
    var_at = chunk_address(mem, reference) if reference else NO_VAR_PART
    if has_null(mem, index, fixed, at, mem, var_at):
        return 0
    if reference and not is_chained(mem, reference):
        reference = 0
    value = side_part(mem, index, X.SIDE_VALUE)
    out = side_part(mem, index, number)
    return encode_key(mem, index, fixed, at, mem, var_at, reference, mem, value, mem, out, mem[index + X.I_KEY_WORDS])


@helper
def slot_key_words(mem, index, place, number):
    """Like `image_key_words`, for the image in the slot at a place."""
    at = row_of_place(mem, place) + A.ROW_HEADER_WORDS
    return parted_key_words(mem, index, mem, at, var_of_place(mem, place), number)


@helper
def own_key_words(mem, buf, index, fragment, row, number):
    """Like `image_key_words`, for a row as its lock holder sees it; a deleted row has its image before the delete."""
    reference = own_var(mem, fragment, row) if mem[fragment + A.F_HAS_VAR] else 0
    in_buffer, at = own_fixed(mem, buf, row)
    if in_buffer:
        return parted_key_words(mem, index, buf, at, reference, number)
    return parted_key_words(mem, index, mem, at, reference, number)


@helper
def tag_in(mem, index, number, words):
    """Return the tag of the key words in a scratch part; NO_TAG if there are none."""
    if words == 0:
        return NO_TAG
    return tag_of(mem, side_part(mem, index, number), words, mem[index + X.U_SEED])


@helper
def slot_tag(mem, index, place):
    """Return the tag of the image in the slot at a place, NO_TAG if its key has a NULL."""
    return tag_in(mem, index, X.SIDE_OTHER, slot_key_words(mem, index, place, X.SIDE_OTHER))


@helper
def parted_tag(mem, index, fixed, at, reference):
    """Return the tag of the fixed image fixed[at:] with the var part at `reference`, NO_TAG if its key has a NULL."""
    return tag_in(mem, index, X.SIDE_OTHER, parted_key_words(mem, index, fixed, at, reference, X.SIDE_OTHER))


@helper
def are_words(mem, at, keys, start, words):
    for i in range(words):
        if mem[at + i] != keys[start + i]:
            return False
    return True


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1])", nogil=True)
def encode_lookups(descriptor, images, offsets, fixed_words, count, stride, out, lengths):
    """Encode the key words of each image images[offsets[i]:] to out[i * stride:]; the last two of these `stride` words
    are slack. lengths[i] gets the number of key words, 0 for a key with a NULL. descriptor: a private copy
    (`KeyShape.descriptor`).
    """
    limit = stride - 2
    for i in range(count):
        at = offsets[i]
        lengths[i] = 0
        if not has_null(descriptor, 0, images, at, images, at + fixed_words):
            lengths[i] = encode_key(
                descriptor, 0, images, at, images, at + fixed_words, 0, out, 0, out, i * stride, limit
            )
    return count
