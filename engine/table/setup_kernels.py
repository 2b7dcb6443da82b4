"""Creation and removal of the arena's structures: pools, tables, fragments, transaction descriptors."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import (
    descriptor_of,
    free_descriptor,
    handle_of,
    renew_handle,
    take_descriptor,
)
from tidemark.engine.memory.pool_kernels import free_block, free_page, take_block, take_page
from tidemark.engine.rows.growth_kernels import drop_index
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.schema.partitions_kernels import free_partition_words

SHAPE_WORDS = 8


@helper
def make_fragment(mem, table, number):
    """Create one empty fragment of a table; return its address, 0 if memory is exhausted."""
    fragment = take_descriptor(mem)
    if fragment == 0:
        return 0
    mem[fragment + A.F_TABLE] = mem[table + A.T_ID]
    mem[fragment + A.F_OWNER] = table
    mem[fragment + A.F_NUMBER] = number
    mem[fragment + A.F_ROW_WORDS] = mem[table + A.T_ROW_WORDS]
    mem[fragment + A.F_FIXED_WORDS] = mem[table + A.T_FIXED_WORDS]
    mem[fragment + A.F_HAS_VAR] = mem[table + A.T_HAS_VAR]
    mem[fragment + A.F_VAR_SINCE] = mem[table + A.T_VAR_SINCE]
    mem[fragment + A.F_CAPTURE] = mem[table + A.T_CAPTURE]
    mem[fragment + A.F_KEY_WORDS] = mem[table + A.T_KEY_WORDS]
    mem[fragment + A.F_SLOTS] = (A.PAGE_WORDS - A.PAGE_HEADER_WORDS) // mem[table + A.T_ROW_WORDS]
    mem[fragment + A.F_POOL] = A.S_POOL
    mem[fragment + A.F_INDEX_SEED] = mem[table + A.T_SEED]
    mem[fragment + A.F_SCHEMA_VERSION] = mem[table + A.T_SCHEMA_VERSION]
    mem[fragment + A.F_HAS_DISK] = mem[table + A.T_HAS_DISK]
    mem[fragment + A.F_INDEXES] = mem[table + A.T_INDEXES]
    return fragment


@kernel("int64(int64[::1], int64[::1])")
def make_table(mem, shape):
    """Create an empty table; return its handle. If memory is exhausted, free what was allocated and return 0.

    shape: [id, fragment numbers ever assigned, fixed words, has var, key words in the fixed image, hash seed, schema
    version, has disk], then the numbers that have a fragment (empty: all have one).
    """
    table = take_descriptor(mem)
    if table == 0:
        return 0
    count = shape[1]
    given = shape.size - SHAPE_WORDS
    mem[table + A.T_ID] = shape[0]
    mem[table + A.T_FRAGMENTS] = count
    mem[table + A.T_FIXED_WORDS] = shape[2]
    mem[table + A.T_HAS_VAR] = shape[3]
    mem[table + A.T_KEY_WORDS] = shape[4]
    mem[table + A.T_SEED] = shape[5]
    mem[table + A.T_SCHEMA_VERSION] = shape[6]
    mem[table + A.T_HAS_DISK] = shape[7]
    # At least one word besides header and reference: a reserved row keeps the position of its image there.
    mem[table + A.T_ROW_WORDS] = 2 + max(shape[2], 1) + shape[3]
    address = take_list(mem, table, count)
    if address == 0:
        free_descriptor(mem, table)
        return 0
    mem[table + A.T_FRAGMENT_LIST] = address
    for place in range(given if given > 0 else count):
        number = shape[SHAPE_WORDS + place] if given > 0 else place
        fragment = make_fragment(mem, table, number)
        if fragment == 0:
            for made in range(number):
                if mem[address + made] != 0:
                    free_descriptor(mem, mem[address + made])
            free_table_block(mem, table)
            return 0
        mem[address + number] = fragment
    return handle_of(mem, table)


@kernel("int64(int64[::1], int64, int64[::1])")
def fragment_handles(mem, table, out):
    """Write to out[number] the handle of each fragment of a table, 0 for a dropped one, as far as `out` has room.
    Return how many numbers were ever assigned, or ST_DROPPED.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    for number in range(min(out.size, mem[table + A.T_FRAGMENTS])):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        out[number] = 0 if fragment == 0 else handle_of(mem, fragment)
    return mem[table + A.T_FRAGMENTS]


@kernel("int64(int64[::1], int64)")
def withdraw_table(mem, table):
    """Make every existing handle of a table and its fragments stale. The caller frees the memory with the table's new
    handle (`next_handle`). Return OK, or ST_DROPPED if the table was withdrawn before.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            renew_handle(mem, fragment)
    renew_handle(mem, table)
    return A.OK


@helper
def take_list(mem, table, count):
    """Return the address of a zeroed array for `count` fragments of a table, 0 if memory is exhausted."""
    mem[table + A.T_LIST_WORDS] = A.BLOCK_WORDS if count <= A.BLOCK_WORDS else A.PAGE_WORDS
    if count <= A.BLOCK_WORDS:
        return take_block(mem, A.S_POOL)
    address = take_page(mem, A.S_POOL) << A.PAGE_SHIFT
    if address != 0:
        for number in range(A.PAGE_WORDS):
            mem[address + number] = 0
    return address


@helper
def free_fragment_list(mem, address, words):
    if words == A.BLOCK_WORDS:
        free_block(mem, A.S_POOL, address)
    else:
        free_page(mem, A.S_POOL, address >> A.PAGE_SHIFT)


@helper
def free_table_block(mem, table):
    """Free a table's fragment list, partition words, index list and descriptor."""
    free_fragment_list(mem, mem[table + A.T_FRAGMENT_LIST], mem[table + A.T_LIST_WORDS])
    if mem[table + A.T_PARTITION] != 0:
        free_partition_words(mem, mem[table + A.T_PARTITION])
    if mem[table + A.T_INDEXES] != 0:
        free_block(mem, A.S_POOL, mem[table + A.T_INDEXES])
    free_descriptor(mem, table)


@kernel("int64(int64[::1], int64, int64)")
def drop_fragment_pages(mem, fragment, budget):
    """Free at most about `budget` pages of an unreachable fragment. Return OK, ST_MORE or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    pool = mem[fragment + A.F_POOL]
    done = 0
    while mem[fragment + A.F_PAGES] > 0:
        logical = mem[fragment + A.F_PAGES] - 1
        page = map_get(mem, fragment, logical)
        if page > 0:
            if mem[(page << A.PAGE_SHIFT) + A.PG_USED] >> A.SIDE_SHIFT != 0:
                free_page(mem, pool, mem[(page << A.PAGE_SHIFT) + A.PG_USED] >> A.SIDE_SHIFT)
            free_page(mem, pool, page)
        mem[fragment + A.F_PAGES] = logical
        done += 1
        if done >= budget:
            return A.ST_MORE
    for number in range(A.VAR_CLASSES):
        while mem[fragment + A.F_VAR_LISTS + number] != 0:
            page = mem[fragment + A.F_VAR_LISTS + number]
            mem[fragment + A.F_VAR_LISTS + number] = mem[(page << A.PAGE_SHIFT) + A.VP_NEXT]
            free_page(mem, pool, page)
            done += 1
            if done >= budget:
                return A.ST_MORE
    return A.OK


@kernel("int64(int64[::1], int64)")
def drop_table_rest(mem, table):
    """Free the maps, indexes and descriptors of a withdrawn table whose pages are freed. Return OK or ST_DROPPED."""
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            drop_rest(mem, fragment)
    free_table_block(mem, table)
    return A.OK


@helper
def drop_rest(mem, fragment):
    """Free the map, index and descriptor of a fragment whose pages are freed."""
    pool = mem[fragment + A.F_POOL]
    drop_index(mem, fragment)
    for root in range(A.MAP_ROOTS):
        middle = mem[fragment + A.F_MAP + root]
        if middle == 0:
            continue
        for i in range(A.BLOCK_WORDS):
            if mem[middle + i] != 0:
                free_block(mem, pool, mem[middle + i])
        free_block(mem, pool, middle)
    mem[fragment + A.F_ROWS] = 0
    mem[fragment + A.F_FREE_HEAD] = 0
    mem[fragment + A.F_FREE_TAIL] = 0
    mem[fragment + A.F_FIXED_PAGES] = 0
    mem[fragment + A.F_VAR_PAGES] = 0
    free_descriptor(mem, fragment)


# --- partitions added and dropped -----------------------------------------------------------------
@kernel("int64(int64[::1], int64, int64)")
def add_fragment(mem, table, number):
    """Create a fragment that is not published yet, and make room for it in the table's list. Return its handle,
    ST_DROPPED, or 0 if memory is exhausted.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    if number >= mem[table + A.T_LIST_WORDS]:
        before = mem[table + A.T_FRAGMENT_LIST]
        words = mem[table + A.T_LIST_WORDS]
        address = take_list(mem, table, number + 1)
        if address == 0:
            mem[table + A.T_LIST_WORDS] = words
            return 0
        for place in range(mem[table + A.T_FRAGMENTS]):
            mem[address + place] = mem[before + place]
        mem[table + A.T_FRAGMENT_LIST] = address
        free_fragment_list(mem, before, words)
    fragment = make_fragment(mem, table, number)
    return 0 if fragment == 0 else handle_of(mem, fragment)


@kernel("int64(int64[::1], int64)")
def drop_fragment_rest(mem, fragment):
    """Free the rest of a fragment as `drop_table_rest` does, for a partition that was dropped or never published."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    drop_rest(mem, fragment)
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def change_partitions(mem, table, number, fragment, words, version):
    """Publish a new version of the table, which every later kernel call uses: `fragment` becomes the fragment `number`
    (0: that one is dropped), and the partition words at `words` distribute rows. A second call with the same arguments
    changes nothing. Return OK or ST_DROPPED.
    """
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    if fragment != 0:
        fragment = descriptor_of(mem, fragment)
        if fragment == 0:
            return A.ST_DROPPED
    before = mem[mem[table + A.T_FRAGMENT_LIST] + number] if number < mem[table + A.T_FRAGMENTS] else 0
    if before != 0 and before != fragment:
        mem[before + A.F_DROPPED] = 1
    mem[mem[table + A.T_FRAGMENT_LIST] + number] = fragment
    mem[table + A.T_FRAGMENTS] = max(mem[table + A.T_FRAGMENTS], number + 1)
    if mem[table + A.T_PARTITION] != words:
        free_partition_words(mem, mem[table + A.T_PARTITION])
        mem[table + A.T_PARTITION] = words
    mem[table + A.T_SCHEMA_VERSION] = version
    for place in range(mem[table + A.T_FRAGMENTS]):
        each = mem[mem[table + A.T_FRAGMENT_LIST] + place]
        if each != 0:
            mem[each + A.F_SCHEMA_VERSION] = version
    return A.OK


assert A.BLOCK_WORDS % A.TXN_WORDS == 0
