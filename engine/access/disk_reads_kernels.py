"""Reading rows with their disk parts: one call copies a whole row, or names the page that must be loaded first.

An entry is that of `reads_kernels.py` with the disk part after the image. Of a chained part only the first words are
copied; ENTRY_INCOMPLETE is set in the entry's word 2, and the space for the rest begins with link and stamp for
`read_chunks`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk.lirs_kernels import touch_page
from tidemark.engine.disk.parts_kernels import chunk_words, part_on_page, read_chain
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log.own_images_kernels import entry_words, is_image_evicted, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import entry_rowid, index_find, tag_of
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.ticks_kernels import is_unfinished, seen_absent, seen_unfinished
from tidemark.engine.schema.partitions_kernels import fragment_of
from tidemark.engine.txn.disk_changes_kernels import disk_operation, own_disk, reference_at

ENTRY_INCOMPLETE = 1 << 60
PAGE_OF_OWN = 0  # in place of a page: the reader needs none


@helper
def disk_page_of(mem, fragment, row, mine):
    """Return the page a reader of the row needs; 0 if its disk part is in the reader's own buffer."""
    if mine and disk_operation(mem, row) != 0:
        return PAGE_OF_OWN
    return mem[reference_at(mem, fragment, row)] >> C.SLOT_BITS


@helper
def copy_disk_part(mem, fragment, rowid, reference, out, at, before, state):
    """Copy a disk part to out, after the place of the `before` words of its entry at out[at:]. Return (its words,
    whether only its first words are there), or (ST_SPACE - words needed, or ST_PAGE or ST_DAMAGED with the page in
    state[3], False).
    """
    state[3] = reference >> C.SLOT_BITS
    if touch_page(mem, mem[mem[fragment + A.F_TABLESPACE] + C.TS_CACHE], reference >> C.SLOT_BITS) == 0:
        return A.ST_PAGE, False
    address, here, words, link, stamp = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return A.ST_DAMAGED, False
    if at + before + words > out.size:
        return A.ST_SPACE - before - words, False
    move_words(mem, address, out, at + before, here)
    if here < words:
        out[at + before + here] = link
        out[at + before + here + 1] = stamp
        state[4] += 1
    return words, here < words


@helper
def read_whole(mem, txn, buf, fragment, rowid, row, out, at, state):
    """Read a row with its disk part into out[at:]. Return entry words, ST_MISSING, ST_SPACE - words needed, ST_SPOOLED,
    or ST_PAGE or ST_DAMAGED with the page in state[3]. state[4] counts incomplete entries.
    """
    seen = visible(mem, txn, row)
    if seen == 0:
        return A.ST_MISSING
    own = own_disk(mem, buf, fragment, row) if seen == 2 else -1
    if own == A.ST_SPOOLED or (seen == 2 and is_image_evicted(mem, buf, row)):
        return A.ST_SPOOLED
    before = entry_words(mem, fragment, row, seen == 2)
    if own >= 0:
        words = buf[own] & A.VAR_WORDS_MASK
        if at + before + words > out.size:
            return A.ST_SPACE - before - words
        write_entry(mem, buf, fragment, rowid, row, True, out, at)
        move_words(buf, own, out, at + before, words)
        return before + words
    reference = mem[reference_at(mem, fragment, row)]
    words, is_begun = copy_disk_part(mem, fragment, rowid, reference, out, at, before, state)
    if words < 0:
        return words
    write_entry(mem, buf, fragment, rowid, row, seen == 2, out, at)
    out[at + 2] |= ENTRY_INCOMPLETE if is_begun else 0
    return before + words


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def read_disk_row(mem, table, txn, buf, key, words, out, state):
    """Read one row with its disk part by canonical key; return as `read_whole`, ST_UNFINISHED or ST_DROPPED. txn 0:
    read the committed row.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    fragment = fragment_of(mem, table, key, 0, words)
    if fragment == 0:
        return A.ST_MISSING
    entry = index_find(mem, fragment, tag_of(key, 0, words, mem[table + A.T_SEED]), key, 0, words)
    if entry == 0:
        return seen_absent(mem)
    rowid = entry_rowid(mem, entry)
    row = known_row_address(mem, fragment, rowid)
    if is_unfinished(mem, row) and visible(mem, txn, row) == 1:
        return seen_unfinished(mem)
    return read_whole(mem, txn, buf, fragment, rowid, row, out, 0, state)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64, int64[::1])")
def read_chunks(mem, fragment, rowid, out, at, stop, state):
    """Fill out[at:stop] from the chain of chunks at state [link, stamp, next place, page], as far as they are in
    memory.

    state[2] is 0 before the first call. Return OK when full, ST_PAGE with the page in state[3], ST_MISSING if the row
    was changed meanwhile: read it again.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    if state[2] == 0:
        state[2] = at
        state[0] = out[at]
        state[1] = out[at + 1]
    status, state[0], state[2] = read_chain(mem, fragment, rowid, state[0], state[1], out, state[2], stop, True)
    state[3] = state[0] >> C.SLOT_BITS
    return A.ST_MISSING if status == A.ST_DAMAGED else status


@kernel("int64(int64[::1], int64)")
def chunk_words_of(mem, fragment):
    """Return the words of a disk part in one chunk of a fragment's tablespace, or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    return A.ST_DROPPED if fragment == 0 else chunk_words(mem, mem[fragment + A.F_TABLESPACE])
