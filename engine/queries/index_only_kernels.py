"""Answers from an index alone: entries of an exact index as row images, and entries counted without reading any.

The image of an entry has the values of the key columns and zeros elsewhere, so other columns must not be read from it;
its var part, in a table that has one, is NO_VALUES: the columns of that part may all be dropped. Place and page header
give ROWID and fragment; epoch and author, which only the row has, are 0.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.index_reads_kernels import is_own_change
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import LOWEST, row_of_place
from tidemark.engine.index.tree_scans_kernels import entries_between, find_target, leaf_of, move_cursor
from tidemark.engine.index.tree_search_kernels import compare_entry
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows import columns_layout as K
from tidemark.engine.rows.lcp_kernels import packed_place
from tidemark.engine.rows.side_pages_kernels import NO_VALUES
from tidemark.engine.rows.ticks_kernels import check_view
from tidemark.engine.sealed.checksums_kernels import shift_right


@kernel(
    "int64(int64[::1], int64, int64, int64, int64, int64, int64[::1], int64[::1], int64, int64, int64[::1], "
    "int64[::1], int64[::1], int64[::1])"
)
def index_keys(mem, tree, table, view, txn, until, cursor, bound, reverse, limit, places, keys, heads, state):
    """Copy the key words of the next entries between cursor and bound, examining at most `limit` of them. Rows are read
    only to skip those a transaction has changed.

    table: handle of its table. txn, until: as for `index_entries`; entries of dropped partitions are copied here too.
    places and keys: room for 1 and W words per entry examined. heads gets ROWID and `packed_place` of each entry
    copied, state[0] their number. Return OK at the end, ST_MORE, ST_DROPPED if the index was dropped; ST_CHANGED, with
    nothing done, if the table has changed since the view was opened, or ST_TOO_OLD.
    """
    tree = descriptor_of(mem, tree)
    table = descriptor_of(mem, table)
    if tree == 0 or table == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, table)
    if status != A.OK:
        return status
    found, leaf, number = entries_between(mem, tree, cursor, bound, reverse, limit, places, keys)
    words = mem[tree + X.I_WORDS]
    done = 0
    for i in range(found):
        place = places[i]
        base = (place >> X.PLACE_SHIFT) << A.PAGE_SHIFT
        fragment = mem[base + A.PG_FRAGMENT]
        if is_own_change(mem, txn, until, row_of_place(mem, place)):
            continue
        if done < i:
            for j in range(words):
                keys[done * words + j] = keys[i * words + j]
        heads[2 * done] = mem[base + A.PG_LOGICAL] << 16 | place & X.PLACE_SLOT_MASK
        heads[2 * done + 1] = packed_place(0, mem[fragment + A.F_TABLE], mem[fragment + A.F_NUMBER])
        done += 1
    if found > 0:
        move_cursor(mem, tree, leaf, number, cursor)
    state[0] = done
    return A.ST_MORE if found == limit else A.OK


@helper
def take_bits(keys, base, bit, count):
    """Return `count` bits (1 to 64) of key words from bit `bit` on; bits past the last word are zeros."""
    at = base + (bit >> 6)
    used = bit & 63
    word = (keys[at] ^ LOWEST) << used
    if used + count > 64:
        word |= shift_right(keys[at + 1] ^ LOWEST, 64 - used)
    return word if count == 64 else shift_right(word, 64 - count)


@helper
def put_octets(keys, base, bit, width, out, byte):
    """Write bytes up to their end mark to byte offset `byte` of out, at most `width`; return the bits they took."""
    begin = bit
    count = 0
    while count <= width:
        each = take_bits(keys, base, bit, 8)
        bit += 8
        if each == 0:
            bit += 8
            if take_bits(keys, base, bit - 8, 8) == 0:
                break
        if count < width:
            out[(byte + count) >> 3] |= each << (((byte + count) & 7) << 3)
        count += 1
    return bit - begin


@helper
def put_field(keys, base, bit, kind, width, is_whole, out, byte):
    """Write one value to byte offset `byte` of out, which has zeros there; return the bits it took. is_whole: the value
    has whole words, as those of the primary key have, and integers are sign-extended.
    """
    if kind == K.CLASS_BYTES:
        return put_octets(keys, base, bit, width, out, byte)
    at = byte >> 3
    if kind == K.CLASS_WIDE:
        out[at + 1] = take_bits(keys, base, bit, 64) ^ LOWEST
        out[at] = take_bits(keys, base, bit + 64, 64)
        return 128
    bits = width << 3
    value = take_bits(keys, base, bit, bits)
    if kind == K.CLASS_SIGNED:
        value ^= 1 << (bits - 1)
        if is_whole:
            value = value << (64 - bits) >> (64 - bits)
    elif kind in (K.CLASS_FLOAT32, K.CLASS_FLOAT64):
        sign = 1 << (bits - 1)
        value = value ^ sign if value & sign else ~value
        if bits < 64:
            value &= (1 << bits) - 1
    out[at] |= value << ((byte & 7) << 3)
    return bits


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64, int64, int64[::1])", nogil=True)
def images_of_keys(descriptor, keys, heads, count, fixed_words, has_var, key_words, out):
    """Write the results of `index_keys` as row images: entries of one size, in the order of the keys. Every column of
    the index is in the fixed image, whose first `key_words` words are the primary key. has_var: 1 if a var part of one
    word follows. descriptor: a private copy (`KeyShape.descriptor`).
    """
    words = descriptor[X.I_WORDS]
    columns = descriptor[X.I_COLUMN_COUNT]
    for i in range(count):
        at = i * (A.ENTRY_WORDS + fixed_words + has_var)
        out[at] = heads[2 * i]
        out[at + 1] = 0
        out[at + 2] = heads[2 * i + 1]
        at += A.ENTRY_WORDS
        for j in range(fixed_words):
            out[at + j] = 0
        if has_var:
            out[at + fixed_words] = NO_VALUES
        bit = 0
        for j in range(columns):
            column = X.I_COLUMNS + j * K.COLUMN_WORDS
            if (descriptor[X.I_NULLABLE] >> j) & 1:
                bit += 1
                if take_bits(keys, i * words, bit - 1, 1) == 0:
                    byte = descriptor[column + K.CW_NULL_BYTE]
                    out[at + (byte >> 3)] |= descriptor[column + K.CW_NULL_MASK] << ((byte & 7) << 3)
                    continue
            byte = descriptor[column + K.CW_AT]
            is_whole = byte < key_words << 3
            kind = descriptor[column + K.CW_CLASS]
            byte += at << 3
            bit += put_field(keys, i * words, bit, kind, descriptor[column + K.CW_BYTES], is_whole, out, byte)
    return count


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int64[::1], int64, int64, int64[::1])")
def count_entries(mem, tree, table, view, cursor, bound, limit, is_all, state):
    """Count entries past `cursor` and before `bound`, or all if `is_all`, over at most `limit` leaves, into state[0].

    table, view: as for `index_keys`. Return OK at the end, ST_MORE (the cursor says where to continue), ST_DROPPED,
    ST_CHANGED or ST_TOO_OLD.
    """
    tree = descriptor_of(mem, tree)
    table = descriptor_of(mem, table)
    if tree == 0 or table == 0:
        return A.ST_DROPPED
    status = check_view(mem, view, table)
    if status != A.OK:
        return status
    if is_all:
        state[0] = mem[tree + X.I_COUNT]
        return A.OK
    last = leaf_of(mem, tree, bound)
    end = find_target(mem, tree, last, bound) >> 1
    leaf = leaf_of(mem, tree, cursor)
    found = find_target(mem, tree, leaf, cursor)
    number = (found >> 1) + (found & 1)
    if leaf == last:
        state[0] += max(0, end - number)
        return A.OK
    count = mem[leaf + X.N_COUNT]
    if (
        count > 0
        and compare_entry(mem, tree, leaf, count - 1, bound, X.TG_KEY, bound[X.TG_WORDS], bound[X.TG_PLACE]) >= 0
    ):
        return A.OK  # the bounds are reversed, or the cursor is on the last entry
    looked = 1
    while True:
        count = mem[leaf + X.N_COUNT]
        state[0] += count - number
        if mem[leaf + X.N_NEXT] == last:
            state[0] += end
            return A.OK
        if looked >= limit:
            break
        looked += 1
        number = 0
        leaf = mem[leaf + X.N_NEXT]
    move_cursor(mem, tree, leaf, count - 1, cursor)
    return A.ST_MORE
