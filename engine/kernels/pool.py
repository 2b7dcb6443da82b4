"""Pages, blocks and cells of the arena: three free lists over one high-water mark.

Returned addresses are word indexes; 0 means exhausted (page 0 is the store header, so no unit ever lies there).
"""

from __future__ import annotations

from engine.kernels import helper
from engine.layout.arena import (
    BLOCK_WORDS,
    CELL_WORDS,
    P_DOWNWARDS,
    P_FREE_BLOCK_COUNT,
    P_FREE_BLOCKS,
    P_FREE_CELLS,
    P_FREE_PAGE_COUNT,
    P_FREE_PAGES,
    P_HIGH,
    P_LIMIT,
    PAGE_SHIFT,
    PAGE_WORDS,
)


@helper
def take_page(mem, pool):
    """Take a page number from the pool; its content is undefined. 0 when exhausted."""
    page = mem[pool + P_FREE_PAGES]
    if page != 0:
        mem[pool + P_FREE_PAGES] = mem[page << PAGE_SHIFT]
        mem[pool + P_FREE_PAGE_COUNT] -= 1
        return page
    page = mem[pool + P_HIGH]
    if page >= mem[pool + P_LIMIT]:
        return 0
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
def take_block(mem, pool):
    """Take a zeroed block; returns its address, 0 when exhausted."""
    block = mem[pool + P_FREE_BLOCKS]
    if block == 0:
        page = take_page(mem, pool)
        if page == 0:
            return 0
        block = page << PAGE_SHIFT
        at = block + BLOCK_WORDS
        while at < block + PAGE_WORDS:
            mem[at] = mem[pool + P_FREE_BLOCKS]
            mem[pool + P_FREE_BLOCKS] = at
            mem[pool + P_FREE_BLOCK_COUNT] += 1
            at += BLOCK_WORDS
    else:
        mem[pool + P_FREE_BLOCKS] = mem[block]
        mem[pool + P_FREE_BLOCK_COUNT] -= 1
    for i in range(BLOCK_WORDS):
        mem[block + i] = 0
    return block


@helper
def give_block(mem, pool, block):
    """Give a block back; blocks are never joined into pages again."""
    mem[block] = mem[pool + P_FREE_BLOCKS]
    mem[pool + P_FREE_BLOCKS] = block
    mem[pool + P_FREE_BLOCK_COUNT] += 1


@helper
def take_cell(mem, pool):
    """Take an operation cell; its content is undefined. 0 when exhausted."""
    cell = mem[pool + P_FREE_CELLS]
    if cell == 0:
        block = take_block(mem, pool)
        if block == 0:
            return 0
        at = block + BLOCK_WORDS - CELL_WORDS
        while at >= block:
            mem[at] = cell
            cell = at
            at -= CELL_WORDS
    mem[pool + P_FREE_CELLS] = mem[cell]
    return cell


@helper
def give_cell(mem, pool, cell):
    """Give an operation cell back."""
    mem[cell] = mem[pool + P_FREE_CELLS]
    mem[pool + P_FREE_CELLS] = cell
