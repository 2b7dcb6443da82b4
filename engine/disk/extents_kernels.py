"""Tablespaces, data files and extents in memory: created, freed, restored, and copied for local checkpoints.

Kernels that visit many extents or blocks take a bound from the caller. The sums and lists of `space_kernels.py` are
exact between calls.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.space_kernels import (
    close_page,
    count_page,
    extent_of,
    file_of,
    link_first,
    matrix_unlink,
    own_extent,
    unlink,
    unlink_free,
    unused_words,
)
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import free_block, take_block

FREE_MASK = (1 << D.EXTENT_FREE_BITS) - 1
FREES_PER_WORD = 64 // D.EXTENT_FREE_BITS
SMALL_SHARE = 10  # page class 2 begins at a tenth of a page


# --- tablespaces and files ----------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64, int64, int64)")
def setup_tablespace(mem, tablespace_id, page_words, extent_pages, cache):
    """Create a tablespace without files; returns its address, 0 without memory, ST_INVARIANT for invalid sizes."""
    if page_words <= D.PAGE_HEADER_WORDS or page_words >= 1 << (D.EXTENT_FREE_BITS - 1):
        return A.ST_INVARIANT
    if extent_pages < C.EXTENT_PAGES_MIN or extent_pages > C.EXTENT_PAGES_MAX:
        return A.ST_INVARIANT
    tablespace = take_block(mem, A.S_POOL)
    if tablespace == 0:
        return 0
    mem[tablespace + C.TS_ID] = tablespace_id
    mem[tablespace + C.TS_PAGE_WORDS] = page_words
    mem[tablespace + C.TS_EXTENT_PAGES] = extent_pages
    mem[tablespace + C.TS_CACHE] = cache
    mem[tablespace + C.TS_PAYLOAD] = page_words - D.PAGE_HEADER_WORDS
    return tablespace


@kernel("int64(int64[::1], int64, int64)")
def add_data_file(mem, tablespace, file_id):
    """Create a data file without extents; returns its descriptor's address, 0 without memory, ST_INVARIANT for an
    invalid number.
    """
    if file_id < 1 or file_id > C.FILE_ID_MAX or file_of(mem, file_id) != 0:
        return A.ST_INVARIANT
    if mem[A.S_FILE_DIRECTORY] == 0:
        mem[A.S_FILE_DIRECTORY] = take_block(mem, A.S_POOL)
    directory = mem[A.S_FILE_DIRECTORY]
    if directory == 0:
        return 0
    place = directory + file_id // A.BLOCK_WORDS
    if mem[place] == 0:
        mem[place] = take_block(mem, A.S_POOL)
    if mem[place] == 0:
        return 0
    file = take_block(mem, A.S_POOL)
    if file == 0:
        return 0
    mem[file + C.FL_ID] = file_id
    mem[file + C.FL_TABLESPACE] = tablespace
    mem[mem[place] + file_id % A.BLOCK_WORDS] = file
    return file


@helper
def link_free(mem, tablespace, extent):
    """Append an extent, with all pages wholly free, to the list of free extents."""
    last = mem[tablespace + C.TS_FREE_LAST]
    mem[extent + C.EX_FRAGMENT] = 0
    mem[extent + C.EX_TABLE] = 0
    mem[extent + C.EX_NUMBER] = 0
    mem[extent + C.EX_POSITION] = C.POSITION_FREE
    mem[extent + C.EX_PREVIOUS] = last
    mem[extent + C.EX_NEXT] = 0
    mem[extent + C.EX_OWNED] = 0
    for index in range(mem[tablespace + C.TS_EXTENT_PAGES]):
        mem[extent + C.EX_PAGES + index] = mem[tablespace + C.TS_PAYLOAD]
    if last != 0:
        mem[last + C.EX_NEXT] = extent
    else:
        mem[tablespace + C.TS_FREE] = extent
    mem[tablespace + C.TS_FREE_LAST] = extent
    mem[tablespace + C.TS_FREE_COUNT] += 1


@helper
def carve_extent(mem, tablespace):
    """Return memory for an extent descriptor; 0 if there is none."""
    size = C.EX_PAGES + mem[tablespace + C.TS_EXTENT_PAGES]
    if mem[tablespace + C.TS_EXTENT_BLOCK] == 0 or mem[tablespace + C.TS_EXTENT_USED] + size > A.BLOCK_WORDS:
        block = take_block(mem, A.S_POOL)
        if block == 0:
            return 0
        mem[block] = mem[tablespace + C.TS_EXTENT_BLOCK]
        mem[tablespace + C.TS_EXTENT_BLOCK] = block
        mem[tablespace + C.TS_EXTENT_USED] = 1
    extent = mem[tablespace + C.TS_EXTENT_BLOCK] + mem[tablespace + C.TS_EXTENT_USED]
    mem[tablespace + C.TS_EXTENT_USED] += size
    return extent


@kernel("int64(int64[::1], int64, int64)")
def add_extents(mem, file, count):
    """Append up to `count` free extents to a data file; returns how many fitted into memory and the address space."""
    tablespace = mem[file + C.FL_TABLESPACE]
    for done in range(count):
        number = mem[file + C.FL_EXTENTS]
        if number >= C.FILE_LEAVES * A.BLOCK_WORDS:
            return done
        place = file + C.FL_LEAVES + number // A.BLOCK_WORDS
        if mem[place] == 0:
            mem[place] = take_block(mem, A.S_POOL)
        if mem[place] == 0:
            return done
        extent = carve_extent(mem, tablespace)
        if extent == 0:
            return done
        first = C.FIRST_DATA_PAGE + number * mem[tablespace + C.TS_EXTENT_PAGES]
        mem[extent + C.EX_FIRST] = mem[file + C.FL_ID] << C.FILE_SHIFT | first
        mem[mem[place] + number % A.BLOCK_WORDS] = extent
        link_free(mem, tablespace, extent)
        mem[file + C.FL_EXTENTS] = number + 1
        mem[tablespace + C.TS_EXTENTS] += 1
    return count


@kernel("int64(int64[::1], int64)")
def drop_data_file(mem, file):
    """Forget a data file; its extents' memory is released with the tablespace. OK."""
    for leaf in range(C.FILE_LEAVES):
        if mem[file + C.FL_LEAVES + leaf] != 0:
            free_block(mem, A.S_POOL, mem[file + C.FL_LEAVES + leaf])
    file_id = mem[file + C.FL_ID]
    mem[mem[mem[A.S_FILE_DIRECTORY] + file_id // A.BLOCK_WORDS] + file_id % A.BLOCK_WORDS] = 0
    free_block(mem, A.S_POOL, file)
    return A.OK


@kernel("int64(int64[::1], int64, int64)")
def drop_tablespace(mem, tablespace, budget):
    """Release a tablespace that no longer has files, up to `budget` blocks a call; OK or ST_MORE."""
    for _ in range(budget):
        block = mem[tablespace + C.TS_EXTENT_BLOCK]
        if block == 0:
            free_block(mem, A.S_POOL, tablespace)
            return A.OK
        mem[tablespace + C.TS_EXTENT_BLOCK] = mem[block]
        free_block(mem, A.S_POOL, block)
    return A.ST_MORE


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def join_tablespace(mem, table, tablespace, any_words, piece_words):
    """Assign a new table's disk parts to a tablespace. any_words: a piece of up to this many words fits on every page
    of class 1. piece_words: words of every piece if all are equal, else 0, or -1 if disk parts may be chained. OK,
    ST_DROPPED or ST_INVARIANT.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    payload = mem[tablespace + C.TS_PAYLOAD]
    if any_words < 1 or any_words + 1 > payload:
        return A.ST_INVARIANT
    mem[table + A.T_HAS_DISK] = 1
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            join_fragment(mem, fragment, tablespace, any_words, piece_words)
    return A.OK


@helper
def join_fragment(mem, fragment, tablespace, any_words, piece_words):
    """Assign a fragment's disk parts to a tablespace."""
    mem[fragment + A.F_HAS_DISK] = 1
    mem[fragment + A.F_TABLESPACE] = tablespace
    mem[fragment + A.F_DISK_ANY] = any_words + 1
    mem[fragment + A.F_DISK_SMALL] = mem[tablespace + C.TS_PAYLOAD] // SMALL_SHARE
    mem[fragment + A.F_DISK_WORDS] = piece_words


@kernel("int64(int64[::1], int64, int64, int64, int64)")
def join_new_fragment(mem, fragment, tablespace, any_words, piece_words):
    """Do `join_tablespace` for a fragment that no table has yet."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    join_fragment(mem, fragment, tablespace, any_words, piece_words)
    return A.OK


# --- restart ------------------------------------------------------------------------------------
@helper
def free_words_at(words, at, index):
    """Return the free words of page `index`, packed from words[at] on."""
    shift = (index % FREES_PER_WORD) * D.EXTENT_FREE_BITS
    return (words[at + index // FREES_PER_WORD] >> shift) & FREE_MASK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64)")
def restore_extent(mem, page, fragment, words, at):
    """Restore an extent's owner and its pages' free words from a header at words[at].

    fragment: the owner's handle, 0 if its table was dropped. OK; ST_DROPPED for an invalid handle; ST_INVARIANT for an
    extent that does not exist, is not free, has another size or tablespace, or has a page with more free words than an
    empty page.
    """
    if fragment != 0:
        fragment = descriptor_of(mem, fragment)
        if fragment == 0:
            return A.ST_DROPPED
    extent = extent_of(mem, page)
    if extent == 0 or mem[extent + C.EX_FIRST] != page or mem[extent + C.EX_POSITION] != C.POSITION_FREE:
        return A.ST_INVARIANT
    tablespace = mem[file_of(mem, page >> C.FILE_SHIFT) + C.FL_TABLESPACE]
    pages = mem[tablespace + C.TS_EXTENT_PAGES]
    if words[at + 2] != pages or (fragment != 0 and mem[fragment + A.F_TABLESPACE] != tablespace):
        return A.ST_INVARIANT
    start = at + D.EXTENT_HEADER_WORDS
    if start + (pages + FREES_PER_WORD - 1) // FREES_PER_WORD > words.size:
        return A.ST_INVARIANT
    for index in range(pages):
        if free_words_at(words, start, index) > mem[tablespace + C.TS_PAYLOAD]:
            return A.ST_INVARIANT
    if fragment != 0:
        own_extent(mem, fragment, extent)
        for index in range(pages):
            free = free_words_at(words, start, index)
            count_page(mem, fragment, extent, mem[extent + C.EX_PAGES + index], free)
            mem[extent + C.EX_PAGES + index] = free
        return A.OK
    unlink_free(mem, tablespace, extent)
    for index in range(pages):
        mem[extent + C.EX_PAGES + index] = free_words_at(words, start, index)
    mem[extent + C.EX_NUMBER] = (words[at] >> D.OWNER_FRAGMENT_SHIFT) & ((1 << 31) - 1)
    link_dropped(mem, tablespace, extent, words[at] & ((1 << D.OWNER_FRAGMENT_SHIFT) - 1))
    return A.OK


# --- local checkpoint ---------------------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64)")
def copy_extents(mem, file, out, state, budget):
    """Copy the headers of a data file's owned extents, those of dropped tables included; reserved words count as free.

    state: [next extent of the file, words used in `out`, headers in `out`]. OK, ST_MORE (budget), ST_SPACE (`out` is
    full). The caller holds the commit latch over all calls, so the copy shows one instant.
    """
    tablespace = mem[file + C.FL_TABLESPACE]
    pages = mem[tablespace + C.TS_EXTENT_PAGES]
    size = D.EXTENT_HEADER_WORDS + (pages + FREES_PER_WORD - 1) // FREES_PER_WORD
    for _ in range(budget):
        number = state[0]
        if number >= mem[file + C.FL_EXTENTS]:
            return A.OK
        extent = mem[mem[file + C.FL_LEAVES + number // A.BLOCK_WORDS] + number % A.BLOCK_WORDS]
        if mem[extent + C.EX_TABLE] != 0:
            at = state[1]
            if at + size > out.size:
                return A.ST_SPACE
            out[at] = mem[extent + C.EX_TABLE] | mem[extent + C.EX_NUMBER] << D.OWNER_FRAGMENT_SHIFT
            out[at + 1] = mem[extent + C.EX_FIRST]
            out[at + 2] = pages
            out[at + 3] = 0
            for word in range(at + D.EXTENT_HEADER_WORDS, at + size):
                out[word] = 0
            for index in range(pages):
                free = unused_words(mem, mem[extent + C.EX_PAGES + index])
                place = at + D.EXTENT_HEADER_WORDS + index // FREES_PER_WORD
                out[place] |= free << ((index % FREES_PER_WORD) * D.EXTENT_FREE_BITS)
            state[1] = at + size
            state[2] += 1
        state[0] = number + 1
    return A.ST_MORE if state[0] < mem[file + C.FL_EXTENTS] else A.OK


# --- dropped tables -----------------------------------------------------------------------------
@helper
def link_dropped(mem, tablespace, extent, table_id):
    """Put an extent into the list of extents of dropped tables."""
    mem[extent + C.EX_FRAGMENT] = 0
    mem[extent + C.EX_TABLE] = table_id
    mem[extent + C.EX_POSITION] = C.POSITION_DROPPED
    mem[extent + C.EX_OWNED] = 0
    link_first(mem, tablespace + C.TS_DROPPED, extent, C.EX_PREVIOUS, C.EX_NEXT)


@kernel("int64(int64[::1], int64, int64)")
def drop_fragment_extents(mem, fragment, budget):
    """List the extents of a dropped, unused fragment as dropped: they stay until no kept local checkpoint has them.

    Up to `budget` extents a call; OK, ST_DROPPED or ST_MORE.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    tablespace = mem[fragment + A.F_TABLESPACE]
    for _ in range(budget):
        extent = mem[fragment + A.F_DISK_EXTENTS]
        if extent == 0:
            return A.OK
        for index in range(mem[tablespace + C.TS_EXTENT_PAGES]):
            at = extent + C.EX_PAGES + index
            if mem[at] < 0:
                close_page(mem, fragment, -mem[at], at)
        if mem[extent + C.EX_POSITION] >= 0:
            matrix_unlink(mem, fragment, extent)
        else:
            mem[fragment + A.F_DISK_CURRENT] = 0
        mem[fragment + A.F_DISK_EXTENTS] = mem[extent + C.EX_OWNED]
        mem[fragment + A.F_DISK_EXTENT_COUNT] -= 1
        link_dropped(mem, tablespace, extent, mem[extent + C.EX_TABLE])
    return A.ST_MORE if mem[fragment + A.F_DISK_EXTENTS] != 0 else A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def free_dropped_extents(mem, tablespace, kept, budget):
    """Free the extents of dropped tables and partitions that no kept local checkpoint has; returns how many, at most
    `budget`.

    kept: the fragments in kept local checkpoints, table | number << OWNER_FRAGMENT_SHIFT, ascending.
    """
    extent = mem[tablespace + C.TS_DROPPED]
    freed = 0
    while extent != 0 and freed < budget:
        after = mem[extent + C.EX_NEXT]
        if not is_among(kept, mem[extent + C.EX_TABLE] | mem[extent + C.EX_NUMBER] << D.OWNER_FRAGMENT_SHIFT):
            unlink(mem, tablespace + C.TS_DROPPED, extent, C.EX_PREVIOUS, C.EX_NEXT)
            link_free(mem, tablespace, extent)
            freed += 1
        extent = after
    return freed


@helper
def is_among(numbers, wanted):
    """Whether ascending numbers contain `wanted`."""
    low = 0
    high = numbers.size
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < numbers.size and numbers[low] == wanted
