"""Pages and blocks of a pool, and the cells of operations.

A pool has never-used pages, free pages, and free blocks; eight blocks are carved from a page, and joined again as soon
as all of them are free. Cells are not of `data_memory`: a row can be deleted when all of that is full.

Returned addresses are word indexes; 0 means exhausted (page 0 is the store header, so no unit ever lies there).
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper
from engine.memory.arena_layout import (
    BLOCK_WORDS,
    BLOCKS_PER_PAGE,
    CELL_WORDS,
    P_DOWNWARDS,
    P_FREE_BLOCK_COUNT,
    P_FREE_BLOCKS,
    P_FREE_PAGE_COUNT,
    P_FREE_PAGES,
    P_HIGH,
    P_KEPT,
    P_LIMIT,
    P_REFUSED,
    P_TAKES,
    PAGE_SHIFT,
    PAGE_WORDS,
    S_BLOCK_COUNTS,
    S_CELL_HIGH,
    S_CELL_LIMIT,
    S_FREE_CELLS,
    S_POOL,
)


@helper
def is_refused(mem, pool):
    """Count a take; whether it is the one that a test wants to fail."""
    take = mem[pool + P_TAKES] + 1
    mem[pool + P_TAKES] = take
    return take == mem[pool + P_REFUSED]


@helper
def take_page(mem, pool):
    """Take a page number from the pool; its content is undefined. 0 when exhausted."""
    if is_refused(mem, pool):
        return 0
    never_used = mem[pool + P_LIMIT] - mem[pool + P_HIGH]
    if mem[pool + P_FREE_PAGE_COUNT] + never_used <= mem[pool + P_KEPT]:
        return 0
    page = mem[pool + P_FREE_PAGES]
    if page != 0:
        mem[pool + P_FREE_PAGES] = mem[page << PAGE_SHIFT]
        mem[pool + P_FREE_PAGE_COUNT] -= 1
        return page
    page = mem[pool + P_HIGH]
    if mem[pool + P_DOWNWARDS]:
        mem[pool + P_LIMIT] -= 1
        return mem[pool + P_LIMIT]
    mem[pool + P_HIGH] = page + 1
    return page


@helper
def give_page(mem, pool, page):
    """Give a page back to the pool."""
    mem[page << PAGE_SHIFT] = mem[pool + P_FREE_PAGES]
    mem[pool + P_FREE_PAGES] = page
    mem[pool + P_FREE_PAGE_COUNT] += 1


@helper
def link_block(mem, pool, block):
    """Put a block into the list of free ones: word 0 leads to the next, word 1 back."""
    first = mem[pool + P_FREE_BLOCKS]
    mem[block] = first
    mem[block + 1] = 0
    if first != 0:
        mem[first + 1] = block
    mem[pool + P_FREE_BLOCKS] = block
    mem[pool + P_FREE_BLOCK_COUNT] += 1
    mem[mem[S_BLOCK_COUNTS] + (block >> PAGE_SHIFT)] += 1


@helper
def unlink_block(mem, pool, block):
    """Take a block out of the list of free ones."""
    after, before = mem[block], mem[block + 1]
    if before != 0:
        mem[before] = after
    else:
        mem[pool + P_FREE_BLOCKS] = after
    if after != 0:
        mem[after + 1] = before
    mem[pool + P_FREE_BLOCK_COUNT] -= 1
    mem[mem[S_BLOCK_COUNTS] + (block >> PAGE_SHIFT)] -= 1


@helper
def take_raw_block(mem, pool):
    """Take a block whose content is undefined; its address, 0 when exhausted."""
    block = mem[pool + P_FREE_BLOCKS]
    if block != 0:
        if is_refused(mem, pool):
            return 0
        unlink_block(mem, pool, block)
        return block
    page = take_page(mem, pool)
    if page == 0:
        return 0
    block = page << PAGE_SHIFT
    for at in range(block + BLOCK_WORDS, block + PAGE_WORDS, BLOCK_WORDS):
        link_block(mem, pool, at)
    return block


@helper
def take_block(mem, pool):
    """Take a zeroed block; its address, 0 when exhausted."""
    block = take_raw_block(mem, pool)
    if block != 0:
        for i in range(BLOCK_WORDS):
            mem[block + i] = 0
    return block


@helper
def give_block(mem, pool, block):
    """Give a block back; with the last one of a page the page is free."""
    link_block(mem, pool, block)
    page = block >> PAGE_SHIFT
    if mem[mem[S_BLOCK_COUNTS] + page] == BLOCKS_PER_PAGE:
        first = page << PAGE_SHIFT
        for at in range(first, first + PAGE_WORDS, BLOCK_WORDS):
            unlink_block(mem, pool, at)
        give_page(mem, pool, page)


@helper
def take_cell(mem):
    """Take an operation cell; its content is undefined. 0 when exhausted."""
    if is_refused(mem, S_POOL):
        return 0
    cell = mem[S_FREE_CELLS]
    if cell != 0:
        mem[S_FREE_CELLS] = mem[cell]
        return cell
    cell = mem[S_CELL_HIGH]
    if cell + CELL_WORDS > mem[S_CELL_LIMIT]:
        return 0
    mem[S_CELL_HIGH] = cell + CELL_WORDS
    return cell


@helper
def give_cell(mem, cell):
    """Give an operation cell back."""
    mem[cell] = mem[S_FREE_CELLS]
    mem[S_FREE_CELLS] = cell


@helper
def take_last_cells(mem, words):
    """Take so many words from the end of the cells, for good; their address, 0 when cells have come that far."""
    if is_refused(mem, S_POOL):
        return 0
    at = mem[S_CELL_LIMIT] - words
    if at < mem[S_CELL_HIGH]:
        return 0
    mem[S_CELL_LIMIT] = at
    for i in range(words):
        mem[at + i] = 0
    return at
