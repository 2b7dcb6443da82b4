"""Pages and blocks of a pool, and the cells of operations.

A pool has never-used pages, free pages and free blocks. Eight blocks are carved from a page, and joined again as soon
as all of them are free. Cells are not part of `data_memory`, so that rows can still be deleted when
`data_memory` is full.

Returned addresses are word indexes; 0 means exhausted (page 0 is the store header, so no unit is ever there).
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A


@helper
def is_refused(mem, pool):
    """Count a request; return whether it is the one that a test wants to fail."""
    take = mem[pool + A.P_REQUESTS] + 1
    mem[pool + A.P_REQUESTS] = take
    return take == mem[pool + A.P_REFUSED]


@helper
def take_page(mem, pool):
    """Take a page from the pool; return its number, 0 if exhausted. Its content is undefined."""
    if is_refused(mem, pool):
        return 0
    never_used = mem[pool + A.P_LIMIT] - mem[pool + A.P_HIGH]
    if mem[pool + A.P_FREE_PAGE_COUNT] + never_used <= mem[pool + A.P_KEPT]:
        return 0
    page = mem[pool + A.P_FREE_PAGES]
    if page != 0:
        mem[pool + A.P_FREE_PAGES] = mem[page << A.PAGE_SHIFT]
        mem[pool + A.P_FREE_PAGE_COUNT] -= 1
        return page
    page = mem[pool + A.P_HIGH]
    if mem[pool + A.P_DOWNWARDS]:
        mem[pool + A.P_LIMIT] -= 1
        return mem[pool + A.P_LIMIT]
    mem[pool + A.P_HIGH] = page + 1
    return page


@helper
def free_page(mem, pool, page):
    mem[page << A.PAGE_SHIFT] = mem[pool + A.P_FREE_PAGES]
    mem[pool + A.P_FREE_PAGES] = page
    mem[pool + A.P_FREE_PAGE_COUNT] += 1


@helper
def link_block(mem, pool, block):
    """Add a block to the list of free ones: word 0 links to the next, word 1 to the previous."""
    first = mem[pool + A.P_FREE_BLOCKS]
    mem[block] = first
    mem[block + 1] = 0
    if first != 0:
        mem[first + 1] = block
    mem[pool + A.P_FREE_BLOCKS] = block
    mem[pool + A.P_FREE_BLOCK_COUNT] += 1
    mem[mem[A.S_BLOCK_COUNTS] + (block >> A.PAGE_SHIFT)] += 1


@helper
def unlink_block(mem, pool, block):
    after, before = mem[block], mem[block + 1]
    if before != 0:
        mem[before] = after
    else:
        mem[pool + A.P_FREE_BLOCKS] = after
    if after != 0:
        mem[after + 1] = before
    mem[pool + A.P_FREE_BLOCK_COUNT] -= 1
    mem[mem[A.S_BLOCK_COUNTS] + (block >> A.PAGE_SHIFT)] -= 1


@helper
def take_raw_block(mem, pool):
    """Take a block; return its address, 0 if exhausted. Its content is undefined."""
    block = mem[pool + A.P_FREE_BLOCKS]
    if block != 0:
        if is_refused(mem, pool):
            return 0
        unlink_block(mem, pool, block)
        return block
    page = take_page(mem, pool)
    if page == 0:
        return 0
    block = page << A.PAGE_SHIFT
    for at in range(block + A.BLOCK_WORDS, block + A.PAGE_WORDS, A.BLOCK_WORDS):
        link_block(mem, pool, at)
    return block


@helper
def take_block(mem, pool):
    """Take a zeroed block; return its address, 0 if exhausted."""
    block = take_raw_block(mem, pool)
    if block != 0:
        for i in range(A.BLOCK_WORDS):
            mem[block + i] = 0
    return block


@helper
def free_block(mem, pool, block):
    """Free a block; after the last one of a page free the page."""
    link_block(mem, pool, block)
    page = block >> A.PAGE_SHIFT
    if mem[mem[A.S_BLOCK_COUNTS] + page] == A.BLOCKS_PER_PAGE:
        first = page << A.PAGE_SHIFT
        for at in range(first, first + A.PAGE_WORDS, A.BLOCK_WORDS):
            unlink_block(mem, pool, at)
        free_page(mem, pool, page)


@helper
def take_cell(mem):
    """Take an operation cell; return its address, 0 if exhausted. Its content is undefined."""
    if is_refused(mem, A.S_POOL):
        return 0
    cell = mem[A.S_FREE_CELLS]
    if cell != 0:
        mem[A.S_FREE_CELLS] = mem[cell]
        return cell
    cell = mem[A.S_CELL_HIGH]
    if cell + A.CELL_WORDS > mem[A.S_CELL_LIMIT]:
        return 0
    mem[A.S_CELL_HIGH] = cell + A.CELL_WORDS
    return cell


@helper
def free_cell(mem, cell):
    mem[cell] = mem[A.S_FREE_CELLS]
    mem[A.S_FREE_CELLS] = cell


@helper
def take_last_cells(mem, words):
    """Take `words` words from the end of the cells, for good; return their address, 0 if the cells in use reach that
    far.
    """
    if is_refused(mem, A.S_POOL):
        return 0
    at = mem[A.S_CELL_LIMIT] - words
    if at < mem[A.S_CELL_HIGH]:
        return 0
    mem[A.S_CELL_LIMIT] = at
    for i in range(words):
        mem[at + i] = 0
    return at


@kernel("int64(int64[::1], int64, int64, int64)")
def setup_memory(mem, cell_page, first_page, limit_page):
    """Divide a zeroed arena: header, counts of free blocks, cells from `cell_page` on, pages from `first_page` up to
    `limit_page`. The first of these pages is the scratch page of kernels. Return OK or ST_MEMORY.
    """
    mem[A.S_BLOCK_COUNTS] = A.PAGE_WORDS
    mem[A.S_CELL_HIGH] = cell_page << A.PAGE_SHIFT
    mem[A.S_CELL_LIMIT] = first_page << A.PAGE_SHIFT
    mem[A.S_POOL + A.P_HIGH] = first_page
    mem[A.S_POOL + A.P_LIMIT] = limit_page
    page = take_page(mem, A.S_POOL)
    if page == 0:
        return A.ST_MEMORY
    mem[A.S_POOL + A.P_SCRATCH] = page << A.PAGE_SHIFT
    return A.OK


@kernel("int64(int64[::1])")
def split_pool(mem):
    """Turn the upper half of the never-used pages into a pool that grows downwards, for a restart with two loaders.

    `join_pools` makes the never-used pages between the two one range again, so no page is touched before it is needed.
    Return OK or ST_MEMORY.
    """
    high = mem[A.S_POOL + A.P_HIGH]
    limit = mem[A.S_POOL + A.P_LIMIT]
    middle = (high + limit) // 2
    for i in range(A.POOL_WORDS):
        mem[A.S_POOL_TOP + i] = 0
    mem[A.S_POOL_TOP + A.P_HIGH] = middle
    mem[A.S_POOL_TOP + A.P_LIMIT] = limit
    mem[A.S_POOL_TOP + A.P_DOWNWARDS] = 1
    mem[A.S_POOL_TOP + A.P_REFUSED] = mem[A.S_POOL + A.P_REFUSED]
    page = take_page(mem, A.S_POOL_TOP)
    if page == 0:
        return A.ST_MEMORY
    mem[A.S_POOL_TOP + A.P_SCRATCH] = page << A.PAGE_SHIFT
    mem[A.S_POOL + A.P_LIMIT] = middle
    return A.OK


@kernel("int64(int64[::1])")
def join_pools(mem):
    """Join the pools of both loaders. The caller resets the pools of the fragments."""
    if mem[A.S_POOL_TOP + A.P_SCRATCH] == 0:
        return A.OK
    free_page(mem, A.S_POOL_TOP, mem[A.S_POOL_TOP + A.P_SCRATCH] >> A.PAGE_SHIFT)
    mem[A.S_POOL_TOP + A.P_SCRATCH] = 0
    mem[A.S_POOL + A.P_LIMIT] = mem[A.S_POOL_TOP + A.P_LIMIT]
    while mem[A.S_POOL_TOP + A.P_FREE_PAGES] != 0:
        page = mem[A.S_POOL_TOP + A.P_FREE_PAGES]
        mem[A.S_POOL_TOP + A.P_FREE_PAGES] = mem[page << A.PAGE_SHIFT]
        free_page(mem, A.S_POOL, page)
    while mem[A.S_POOL_TOP + A.P_FREE_BLOCKS] != 0:
        block = mem[A.S_POOL_TOP + A.P_FREE_BLOCKS]
        unlink_block(mem, A.S_POOL_TOP, block)
        free_block(mem, A.S_POOL, block)
    return A.OK


@kernel("int64(int64[::1])")
def take_transaction_block(mem):
    """Take a block for BLOCK_WORDS / TXN_WORDS transaction descriptors; return its address, 0 if exhausted."""
    block = take_last_cells(mem, A.BLOCK_WORDS)
    return block if block != 0 else take_block(mem, A.S_POOL)
