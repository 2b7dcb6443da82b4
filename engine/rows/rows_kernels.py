"""Fixed pages: page map, ROWIDs, slots (D1).

A page with a free slot is in its fragment's list. An emptied slot keeps the epoch of its delete in word 1. A page that
becomes empty goes back to the pool, and its map entry remembers the newest such epoch as -1 - epoch.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_page, take_block, take_page


@helper
def map_get(mem, fragment, logical):
    """Return the map entry of a logical page: arena page, 0 never created, negative released."""
    middle = mem[fragment + A.F_MAP + (logical >> 18)]
    if middle == 0:
        return 0
    leaf = mem[middle + ((logical >> 9) & 511)]
    if leaf == 0:
        return 0
    return mem[leaf + (logical & 511)]


@helper
def map_leaf(mem, fragment, logical):
    """Return the address of the map leaf of a logical page, creating it if missing; 0 when memory is exhausted."""
    root = fragment + A.F_MAP + (logical >> 18)
    if mem[root] == 0:
        mem[root] = take_block(mem, mem[fragment + A.F_POOL])
        if mem[root] == 0:
            return 0
    middle = mem[root] + ((logical >> 9) & 511)
    if mem[middle] == 0:
        mem[middle] = take_block(mem, mem[fragment + A.F_POOL])
    return mem[middle]


@helper
def row_address(mem, fragment, rowid):
    """Return the address of a row by ROWID; 0 when its page does not exist or the slot was never used."""
    logical = rowid >> 16
    if logical < 0 or logical >= mem[fragment + A.F_PAGES]:
        return 0
    page = map_get(mem, fragment, logical)
    if page <= 0:
        return 0
    base = page << A.PAGE_SHIFT
    slot = rowid & 0xFFFF
    if slot >= mem[base + A.PG_FRESH]:
        return 0
    return base + A.PAGE_HEADER_WORDS + slot * mem[fragment + A.F_ROW_WORDS]


@helper
def known_row_address(mem, fragment, rowid):
    """Return the address of a row whose page is known to exist (index entries, operations)."""
    leaf = word_at(mem, word_at(mem, fragment + A.F_MAP + (rowid >> 34)) + ((rowid >> 25) & 511))
    base = word_at(mem, leaf + ((rowid >> 16) & 511)) << A.PAGE_SHIFT
    return base + A.PAGE_HEADER_WORDS + (rowid & 0xFFFF) * word_at(mem, fragment + A.F_ROW_WORDS)


@helper
def is_live(mem, row):
    return (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE


@helper
def compact_rowid(rowid):
    """Return the 33-bit form of a ROWID, for index entries."""
    return (rowid >> 16) << A.COMPACT_SLOT_BITS | (rowid & 0xFFFF)


@helper
def wide_rowid(compact):
    """Return the ROWID of a 33-bit form."""
    return (compact >> A.COMPACT_SLOT_BITS) << 16 | (compact & A.COMPACT_SLOT_MASK)


@helper
def list_append(mem, fragment, page):
    """Append a page to the list of pages with free slots."""
    base = page << A.PAGE_SHIFT
    tail = mem[fragment + A.F_FREE_TAIL]
    mem[base + A.PG_PREVIOUS] = tail
    mem[base + A.PG_NEXT] = 0
    if tail != 0:
        mem[(tail << A.PAGE_SHIFT) + A.PG_NEXT] = page
    else:
        mem[fragment + A.F_FREE_HEAD] = page
    mem[fragment + A.F_FREE_TAIL] = page


@helper
def list_remove(mem, fragment, page):
    """Remove a page from the list of pages with free slots."""
    base = page << A.PAGE_SHIFT
    before = mem[base + A.PG_PREVIOUS]
    after = mem[base + A.PG_NEXT]
    if before != 0:
        mem[(before << A.PAGE_SHIFT) + A.PG_NEXT] = after
    else:
        mem[fragment + A.F_FREE_HEAD] = after
    if after != 0:
        mem[(after << A.PAGE_SHIFT) + A.PG_PREVIOUS] = before
    else:
        mem[fragment + A.F_FREE_TAIL] = before


@helper
def make_page(mem, fragment, logical):
    """Allocate the arena page of a logical page and list it as having free slots; returns the page or a status code."""
    if (logical >> 18) >= A.MAP_ROOTS:
        return A.ST_PAGES
    # A given ROWID may be past the end: mark skipped pages as released, so that later inserts use them. Mark them
    # first: if memory runs out here, each page counted so far is complete.
    while mem[fragment + A.F_PAGES] < logical:
        skipped = mem[fragment + A.F_PAGES]
        between = map_leaf(mem, fragment, skipped)
        if between == 0:
            return A.ST_MEMORY
        mem[between + (skipped & 511)] = -1
        mem[fragment + A.F_PAGES] += 1
        mem[fragment + A.F_RELEASED] += 1
        if skipped < mem[fragment + A.F_RELEASED_HINT]:
            mem[fragment + A.F_RELEASED_HINT] = skipped
    leaf = map_leaf(mem, fragment, logical)
    if leaf == 0:
        return A.ST_MEMORY
    page = take_page(mem, mem[fragment + A.F_POOL])
    if page == 0:
        return A.ST_MEMORY
    entry = mem[leaf + (logical & 511)]
    base = page << A.PAGE_SHIFT
    mem[base + A.PG_FRAGMENT] = fragment
    mem[base + A.PG_LOGICAL] = logical
    mem[base + A.PG_FREE] = 0
    mem[base + A.PG_USED] = 0
    mem[base + A.PG_EMPTIED] = -1 - entry if entry < 0 else 0
    mem[base + A.PG_FRESH] = 0
    mem[leaf + (logical & 511)] = page
    if entry < 0:
        mem[fragment + A.F_RELEASED] -= 1
    if mem[fragment + A.F_PAGES] == logical:
        mem[fragment + A.F_PAGES] += 1
    mem[fragment + A.F_FIXED_PAGES] += 1
    list_append(mem, fragment, page)
    return page


@helper
def next_logical(mem, fragment):
    """Return the logical page to create next: the smallest released one, else a new one."""
    if mem[fragment + A.F_RELEASED] > 0:
        logical = mem[fragment + A.F_RELEASED_HINT]
        while logical < mem[fragment + A.F_PAGES]:
            if map_get(mem, fragment, logical) < 0:
                mem[fragment + A.F_RELEASED_HINT] = logical
                return logical
            logical += 1
    mem[fragment + A.F_RELEASED_HINT] = mem[fragment + A.F_PAGES]
    return mem[fragment + A.F_PAGES]


@helper
def take_slot(mem, fragment):
    """Take a free slot anywhere; returns its ROWID or a status code. A reused slot keeps its words 0 and 1."""
    page = mem[fragment + A.F_FREE_HEAD]
    if page == 0:
        page = make_page(mem, fragment, next_logical(mem, fragment))
        if page < 0:
            return page
    base = page << A.PAGE_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    slot = mem[base + A.PG_FREE] - 1
    if slot >= 0:
        link = mem[base + A.PAGE_HEADER_WORDS + slot * words + 2]
        mem[base + A.PG_FREE] = link & 0xFFFF
        if link & 0xFFFF:
            after = base + A.PAGE_HEADER_WORDS + ((link & 0xFFFF) - 1) * words + 2
            mem[after] = mem[after] & 0xFFFF
    else:
        slot = mem[base + A.PG_FRESH]
        mem[base + A.PG_FRESH] = slot + 1
        at = base + A.PAGE_HEADER_WORDS + slot * words
        mem[at] = 0
        mem[at + 1] = 0
    mem[base + A.PG_USED] += 1
    if mem[base + A.PG_FREE] == 0 and mem[base + A.PG_FRESH] >= mem[fragment + A.F_SLOTS]:
        list_remove(mem, fragment, page)
    return mem[base + A.PG_LOGICAL] << 16 | slot


@helper
def chain_slot(mem, base, words, slot):
    """Put a slot at the front of its page's chain of free slots (next | previous << 16, both + 1)."""
    first = mem[base + A.PG_FREE]
    mem[base + A.PAGE_HEADER_WORDS + slot * words + 2] = first
    if first != 0:
        after = base + A.PAGE_HEADER_WORDS + (first - 1) * words + 2
        mem[after] = (mem[after] & 0xFFFF) | (slot + 1) << 16
    mem[base + A.PG_FREE] = slot + 1


@helper
def unchain_slot(mem, base, words, at):
    """Remove the slot at address `at` from its page's chain of free slots."""
    link = mem[at + 2]
    after = link & 0xFFFF
    before = (link >> 16) & 0xFFFF
    if before:
        where = base + A.PAGE_HEADER_WORDS + (before - 1) * words + 2
        mem[where] = (mem[where] & ~0xFFFF) | after
    else:
        mem[base + A.PG_FREE] = after
    if after:
        where = base + A.PAGE_HEADER_WORDS + (after - 1) * words + 2
        mem[where] = (mem[where] & 0xFFFF) | before << 16


@helper
def take_given_slot(mem, fragment, rowid):
    """Take a given slot (replay, restore, replicas); OK or a status code."""
    logical = rowid >> 16
    slot = rowid & 0xFFFF
    if slot >= mem[fragment + A.F_SLOTS] or logical < 0:
        return A.ST_INVARIANT
    page = map_get(mem, fragment, logical) if logical < mem[fragment + A.F_PAGES] else 0
    if page <= 0:
        page = make_page(mem, fragment, logical)
        if page < 0:
            return page
    base = page << A.PAGE_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    while mem[base + A.PG_FRESH] < slot:
        fresh = mem[base + A.PG_FRESH]
        at = base + A.PAGE_HEADER_WORDS + fresh * words
        mem[at] = 0
        mem[at + 1] = 0
        chain_slot(mem, base, words, fresh)
        mem[base + A.PG_FRESH] = fresh + 1
    at = base + A.PAGE_HEADER_WORDS + slot * words
    if mem[base + A.PG_FRESH] == slot:  # the usual case when a local checkpoint is loaded
        mem[at] = 0
        mem[at + 1] = 0
        mem[base + A.PG_FRESH] = slot + 1
    elif (mem[at] >> A.STATE_SHIFT) & A.STATE_MASK:
        return A.ST_INVARIANT
    else:
        unchain_slot(mem, base, words, at)
    mem[base + A.PG_USED] += 1
    if mem[base + A.PG_FREE] == 0 and mem[base + A.PG_FRESH] >= mem[fragment + A.F_SLOTS]:
        list_remove(mem, fragment, page)
    return 0


@helper
def free_slot(mem, fragment, rowid):
    """Free a slot whose header the caller has set to FREE; a page that becomes empty goes back to the pool."""
    base = map_get(mem, fragment, rowid >> 16) << A.PAGE_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    page = base >> A.PAGE_SHIFT
    if mem[base + A.PG_FREE] == 0 and mem[base + A.PG_FRESH] >= mem[fragment + A.F_SLOTS]:
        list_append(mem, fragment, page)
    chain_slot(mem, base, words, rowid & 0xFFFF)
    mem[base + A.PG_USED] -= 1
    if mem[base + A.PG_USED] & A.USED_MASK:
        return
    if mem[fragment + A.F_FREE_HEAD] == page and mem[fragment + A.F_FREE_TAIL] == page:
        return  # keep the only page with room; a row inserted and deleted in turn would recreate it each time
    emptied = mem[base + A.PG_EMPTIED]
    for slot in range(mem[base + A.PG_FRESH]):
        epoch = mem[base + A.PAGE_HEADER_WORDS + slot * words + 1]
        if epoch > emptied:
            emptied = epoch
    logical = rowid >> 16
    list_remove(mem, fragment, page)
    mem[map_leaf(mem, fragment, logical) + (logical & 511)] = -1 - emptied
    mem[fragment + A.F_RELEASED] += 1
    if logical < mem[fragment + A.F_RELEASED_HINT]:
        mem[fragment + A.F_RELEASED_HINT] = logical
    mem[fragment + A.F_FIXED_PAGES] -= 1
    if mem[base + A.PG_USED] != 0:
        free_page(mem, mem[fragment + A.F_POOL], mem[base + A.PG_USED] >> A.SIDE_SHIFT)
    free_page(mem, mem[fragment + A.F_POOL], page)
