"""Local checkpoint of one fragment: the scan, and loading its files (D6, D8).

Scan: on rows not yet passed, the checkpoint bit is 1 exactly if the row has changed since the checkpoint began. The
scan clears bits that are 1 and writes live rows whose bit is 0. Loading puts every row back at its ROWID, with its
index entry.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.primary_kernels import (
    image_key,
    index_find,
    index_insert,
    order_index,
    tag_of,
)
from tidemark.engine.rows.rows_kernels import known_row_address, map_get, map_leaf, take_given_slot
from tidemark.engine.rows.side_pages_kernels import is_empty_var, make_side, put_var, set_var, var_of, words_of_var
from tidemark.engine.rows.var_parts_kernels import take_var

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)
packed_place = helper(E.pack_entry_place)


@kernel("int64(int64[::1], int64, int64)")
def start_lcp(mem, fragment, epoch):
    """Begin the checkpoint of a fragment at the end of `epoch`; the caller holds the commit latch. OK or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    mem[fragment + A.F_LCP_ACTIVE] = A.LCP_WRITING
    mem[fragment + A.F_LCP_POSITION] = 0
    mem[fragment + A.F_LCP_PAGES] = mem[fragment + A.F_PAGES]
    mem[fragment + A.F_LCP_EPOCH] = epoch
    mem[fragment + A.F_LCP_COPIED] = 0
    mem[fragment + A.F_LCP_HAS_VAR] = mem[fragment + A.F_HAS_VAR]
    return A.OK


@kernel("int64(int64[::1], int64)")
def abandon_lcp(mem, fragment):
    """Abandon the checkpoint: the rest of the scan only clears bits. OK or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    if mem[fragment + A.F_LCP_ACTIVE] == A.LCP_WRITING:
        mem[fragment + A.F_LCP_ACTIVE] = A.LCP_ABANDONED
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1])")
def scan_lcp(mem, fragment, out, limit, state):
    """Continue the scan, checking at most `limit` slots. state: [words used in out, entries in out].

    OK when the fragment is done, ST_MORE, ST_SPACE - words needed when out is full, ST_INVARIANT, ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    looked = 0
    row_words = mem[fragment + A.F_ROW_WORDS]
    position = mem[fragment + A.F_LCP_POSITION]
    epoch = mem[fragment + A.F_LCP_EPOCH]
    writing = mem[fragment + A.F_LCP_ACTIVE] == A.LCP_WRITING
    while position >> 16 < mem[fragment + A.F_LCP_PAGES]:
        page = map_get(mem, fragment, position >> 16)
        base = page << A.PAGE_SHIFT
        if page <= 0 or position & 0xFFFF >= mem[base + A.PG_FRESH]:
            position = ((position >> 16) + 1) << 16
            mem[fragment + A.F_LCP_POSITION] = position
            looked += 1
            if looked >= limit:
                return A.ST_MORE
            continue
        if looked >= limit:
            return A.ST_MORE
        looked += 1
        row = base + A.PAGE_HEADER_WORDS + (position & 0xFFFF) * row_words
        head = mem[row]
        if (head >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE:
            changed = 1 if head & A.LCP_BIT else 0
            if changed != (1 if mem[row + 1] > epoch else 0):
                return A.ST_INVARIANT
            if writing and not changed:
                need = lcp_entry_words(mem, fragment, row)
                if state[0] + need > out.size:
                    return A.ST_SPACE - need
                state[0] += write_lcp_entry(mem, fragment, position, row, out, state[0])
                state[1] += 1
        mem[row] = head & ~A.LCP_BIT
        position += 1
        mem[fragment + A.F_LCP_POSITION] = position
    mem[fragment + A.F_LCP_ACTIVE] = A.LCP_OFF
    return A.OK


@helper
def place_row(mem, fragment, rowid, epoch, author, images, at, words):
    """Put a row image at a given ROWID, with its index entry; OK or a status code.

    Strict: the slot must be free and the key new. words: size of the whole image, checked by the caller.
    """
    first, key_words = image_key(images, at, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS])
    if first + key_words > at + words:
        return A.ST_INVARIANT
    tag = tag_of(images, first, key_words, mem[fragment + A.F_INDEX_SEED])
    if index_find(mem, fragment, tag, images, first, key_words) != 0:
        return A.ST_DUPLICATE
    status = place_image(mem, fragment, rowid, epoch, author, images, at, words)
    if status != A.OK:
        return status
    return index_insert(mem, fragment, tag, rowid)


@helper
def place_image(mem, fragment, rowid, epoch, author, images, at, words):
    """Put a row image at a given ROWID, without an index entry; OK or a status code."""
    fixed = mem[fragment + A.F_FIXED_WORDS]
    reference = 0
    if words > fixed and not is_empty_var(mem, fragment, words - fixed):
        reference = take_var(mem, fragment, images, at + fixed, words - fixed)
        if reference == 0:
            return A.ST_MEMORY
    status = take_given_slot(mem, fragment, rowid)
    if status != A.OK:
        return status
    row = known_row_address(mem, fragment, rowid)
    move_words(images, at, mem, row + A.ROW_HEADER_WORDS, fixed)
    if reference != 0:
        if make_side(mem, fragment, row) != A.OK:
            return A.ST_MEMORY
        set_var(mem, fragment, row, reference)
    mem[row] = A.LIVE << A.STATE_SHIFT | (author & A.AUTHOR_MASK) << A.AUTHOR_SHIFT
    mem[row + 1] = epoch
    mem[fragment + A.F_ROWS] += 1
    return A.OK


@helper
def checked_image_words(fixed, has_var, words, at, stop):
    """Return the words of the image at words[at:stop], or -1 if it is invalid."""
    if at + fixed > stop:
        return -1
    if not has_var:
        return fixed
    if at + fixed >= stop:
        return -1
    var = words[at + fixed] & A.VAR_WORDS_MASK
    if var < 1 or var > stop - at - fixed:
        return -1
    return fixed + var


@helper
def checked_disk_words(words, at, stop):
    """Return the words of the disk part at words[at:stop], or -1 if it is invalid."""
    if at >= stop:
        return -1
    disk = words[at] & A.VAR_WORDS_MASK
    return disk if 1 <= disk <= stop - at else -1


@helper
def checked_entry_words(fixed, has_var, words, at, stop):
    """Return the words of the entry at words[at:stop], or -1 if it is invalid."""
    if at + A.ENTRY_WORDS > stop or words[at] < 0 or words[at] > A.ROWID_MASK or words[at + 1] < 0:
        return -1
    size = checked_image_words(fixed, has_var, words, at + A.ENTRY_WORDS, stop)
    return -1 if size < 0 else A.ENTRY_WORDS + size


@helper
def whole_entry_words(fixed, has_var, has_disk, words, at, stop):
    """Return (words of the entry at words[at:stop], -1 if it is invalid; words of its image without disk part)."""
    if at + A.ENTRY_WORDS > stop or words[at] < 0 or words[at] > A.ROWID_MASK or words[at + 1] < 0:
        return -1, 0
    part = checked_image_words(fixed, has_var, words, at + A.ENTRY_WORDS, stop)
    if part < 0:
        return -1, 0
    disk = 0
    if has_disk:
        disk = checked_disk_words(words, at + A.ENTRY_WORDS + part, stop)
        if disk < 0:
            return -1, 0
    return A.ENTRY_WORDS + part + disk, part


@helper
def slot_number(rowid, slots):
    """Return the number of a ROWID's slot in its fragment, -1 if there is no such slot."""
    slot = rowid & 0xFFFF
    if rowid < 0 or rowid > A.ROWID_MASK or slot >= slots:
        return -1
    return (rowid >> 16) * slots + slot


@helper
def place_entry(mem, fragment, words, at, size):
    """Put the row of an entry of `size` words into its fragment; OK or a status code."""
    image = at + A.ENTRY_WORDS
    return place_row(mem, fragment, words[at], words[at + 1], words[at + 2], words, image, size - A.ENTRY_WORDS)


@kernel("int64(int64[::1], int64)", nogil=True)
def finish_entries(mem, fragment):
    """Put the index in order after all entries of a data file are loaded; OK, ST_DUPLICATE, ST_MEMORY or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    return order_index(mem, fragment)


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])", nogil=True)
def load_copies(mem, shapes, targets, words, start, stop, state):
    """Load old rows words[start:stop], of any table and fragment, into the fragments loaded from this checkpoint.

    shapes: per table number [fixed words, has var, fragments, place of the first in targets]; 0 fragments: no such
    table. targets: handles of fragments, 0 for fragments that are loaded from elsewhere. state: [offset reached, rows
    loaded, entries seen]. Returns OK or the status of the entry at state[0].
    """
    at = start
    while at < stop:
        state[0] = at
        if at + A.ENTRY_WORDS > stop:
            return A.ST_INVARIANT
        shape = _entry_table(words[at + 2]) * A.ENTRY_SHAPE_WORDS
        number = _entry_fragment(words[at + 2])
        if shape >= shapes.size or number >= shapes[shape + 2]:
            return A.ST_INVARIANT
        size = checked_entry_words(shapes[shape], shapes[shape + 1], words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        place = shapes[shape + 3] + number
        fragment = 0 if targets[place] == 0 else descriptor_of(mem, targets[place])
        if fragment != 0:
            status = place_entry(mem, fragment, words, at, size)
            if status != A.OK:
                return status
            state[1] += 1
        state[2] += 1
        at += size
    state[0] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64)", nogil=True)
def finish_load(mem, fragment, epoch):
    """After loading, mark all pages as emptied through `epoch`, since the epochs of their empty slots are lost (D1). OK
    or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    for logical in range(mem[fragment + A.F_PAGES]):
        page = map_get(mem, fragment, logical)
        if page > 0:
            mem[(page << A.PAGE_SHIFT) + A.PG_EMPTIED] = epoch
        elif page < 0:
            leaf = map_leaf(mem, fragment, logical)
            mem[leaf + (logical & 511)] = -1 - epoch
    return A.OK


assert A.ST_MORE != A.ST_SPACE


@helper
def lcp_entry_words(mem, fragment, row):
    """Return the words of a committed row's entry in the running local checkpoint."""
    words = A.ENTRY_WORDS + mem[fragment + A.F_FIXED_WORDS]
    if mem[fragment + A.F_LCP_HAS_VAR]:
        words += words_of_var(mem, var_of(mem, fragment, row))
    return words


@helper
def write_lcp_entry(mem, fragment, rowid, row, out, at):
    """Write the entry of a committed row for the running local checkpoint, in the row format of its start; returns its
    words. `out` has room.
    """
    out[at] = rowid
    out[at + 1] = mem[row + 1]
    author = (mem[row] >> A.AUTHOR_SHIFT) & A.AUTHOR_MASK
    out[at + 2] = packed_place(author, mem[fragment + A.F_TABLE], mem[fragment + A.F_NUMBER])
    fixed = mem[fragment + A.F_FIXED_WORDS]
    move_words(mem, row + A.ROW_HEADER_WORDS, out, at + A.ENTRY_WORDS, fixed)
    if mem[fragment + A.F_LCP_HAS_VAR]:
        return A.ENTRY_WORDS + fixed + put_var(mem, var_of(mem, fragment, row), out, at + A.ENTRY_WORDS + fixed)
    return A.ENTRY_WORDS + fixed
