"""Choice of the page to evict: LIRS, or LRU for comparison.

The stack holds hot pages and recently referenced ones, newest on top; after pruning, its bottom is hot. The queue holds
resident cold pages; victims come from its front. A page referenced again while it is still on the stack becomes hot,
and the hot page at the bottom becomes cold in its place: a long scan passes through the queue and leaves the hot pages
alone.

Rules: (L1) while the number of hot pages is below its maximum, a referenced page becomes hot: the number of hot pages
decides, not that of all pages (NDB bug #48910); (L2) a victim on the stack leaves its entry there as a ghost; ghosts
are reused in the order they lost their frames; (L3) pruning drops cold pages from the stack's bottom until a hot one is
there; each call is bounded, and every user of the bottom first continues the pruning.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk.cache_kernels import find_entry, hash_head
from tidemark.engine.jit.kernel import helper

# Steps of one walk: each may miss the processor's caches, and a call must take 200 µs at most.
STEPS_MAX = 512


# --- lists ----------------------------------------------------------------------------------------
@helper
def append_to(mem, first, entry):
    """Append an entry to the queue or the ghosts; the list's head is at `first`, its tail in the next word."""
    last = mem[first + 1]
    mem[entry + C.CE_BEFORE] = last
    mem[entry + C.CE_AFTER] = 0
    if last != 0:
        mem[last + C.CE_AFTER] = entry
    else:
        mem[first] = entry
    mem[first + 1] = entry


@helper
def take_from(mem, first, entry, previous, next):
    """Remove an entry from the list with its head at `first` and its tail in the word after that. `previous` and `next`
    are the offsets of the entry's links.
    """
    before = mem[entry + previous]
    after = mem[entry + next]
    if before != 0:
        mem[before + next] = after
    else:
        mem[first] = after
    if after != 0:
        mem[after + previous] = before
    else:
        mem[first + 1] = before


@helper
def enqueue(mem, cache, entry):
    """Put an entry at the end of the queue; it may already be in it."""
    if (mem[entry + C.CE_FLAGS] & C.CE_ON_QUEUE) != 0:
        take_from(mem, cache + C.C_QUEUE_FIRST, entry, C.CE_BEFORE, C.CE_AFTER)
    append_to(mem, cache + C.C_QUEUE_FIRST, entry)
    mem[entry + C.CE_FLAGS] |= C.CE_ON_QUEUE


@helper
def unqueue(mem, cache, entry):
    if (mem[entry + C.CE_FLAGS] & C.CE_ON_QUEUE) != 0:
        take_from(mem, cache + C.C_QUEUE_FIRST, entry, C.CE_BEFORE, C.CE_AFTER)
        mem[entry + C.CE_FLAGS] &= ~C.CE_ON_QUEUE


@helper
def unstack(mem, cache, entry):
    if (mem[entry + C.CE_FLAGS] & C.CE_ON_STACK) != 0:
        take_from(mem, cache + C.C_STACK_TOP, entry, C.CE_UP, C.CE_DOWN)
        mem[entry + C.CE_FLAGS] &= ~C.CE_ON_STACK


@helper
def push(mem, cache, entry):
    """Put an entry on top of the stack; it may already be in it."""
    unstack(mem, cache, entry)
    top = mem[cache + C.C_STACK_TOP]
    mem[entry + C.CE_UP] = 0
    mem[entry + C.CE_DOWN] = top
    if top != 0:
        mem[top + C.CE_UP] = entry
    else:
        mem[cache + C.C_STACK_BOTTOM] = entry
    mem[cache + C.C_STACK_TOP] = entry
    mem[entry + C.CE_FLAGS] |= C.CE_ON_STACK


# --- entries and frames ---------------------------------------------------------------------------
@helper
def free_entry(mem, cache, entry):
    """Free an entry that is in no list and has no frame."""
    at = hash_head(mem, cache, mem[entry + C.CE_PAGE])
    while mem[at] != entry:
        at = mem[at] + C.CE_HASH_NEXT
    mem[at] = mem[entry + C.CE_HASH_NEXT]
    mem[entry + C.CE_PAGE] = 0
    mem[entry + C.CE_FLAGS] = 0
    mem[entry + C.CE_HASH_NEXT] = mem[cache + C.C_FREE_ENTRY]
    mem[cache + C.C_FREE_ENTRY] = entry


@helper
def take_entry(mem, cache, page):
    """Add an entry for a page to its hash chain, evicting the oldest ghost if none is free; 0 if there is no ghost."""
    if mem[cache + C.C_FREE_ENTRY] == 0 and mem[cache + C.C_FRESH_ENTRY] >= mem[cache + C.C_ENTRIES]:
        ghost = mem[cache + C.C_GHOST_FIRST]
        if ghost == 0:
            return 0
        take_from(mem, cache + C.C_GHOST_FIRST, ghost, C.CE_BEFORE, C.CE_AFTER)
        unstack(mem, cache, ghost)
        free_entry(mem, cache, ghost)
    entry = mem[cache + C.C_FREE_ENTRY]
    if entry != 0:
        mem[cache + C.C_FREE_ENTRY] = mem[entry + C.CE_HASH_NEXT]
    else:
        entry = mem[cache + C.C_ENTRY] + mem[cache + C.C_FRESH_ENTRY] * C.CACHE_ENTRY_WORDS
        mem[cache + C.C_FRESH_ENTRY] += 1
    for i in range(C.CACHE_ENTRY_WORDS):
        mem[entry + i] = 0
    head = hash_head(mem, cache, page)
    mem[entry + C.CE_PAGE] = page
    mem[entry + C.CE_HASH_NEXT] = mem[head]
    mem[head] = entry
    return entry


@helper
def free_frame(mem, cache, entry):
    """Move an entry's frame to the list of free ones."""
    frame = mem[entry + C.CE_FRAME]
    mem[frame] = mem[cache + C.C_FREE_FRAME]
    mem[cache + C.C_FREE_FRAME] = frame
    mem[cache + C.C_FREE_FRAMES] += 1
    mem[cache + C.C_RESIDENT] -= 1
    mem[entry + C.CE_FRAME] = 0
    mem[entry + C.CE_DIRTIED] = 0


@helper
def take_frame(mem, cache):
    """Return a free frame, 0: none. Frames never used are not linked: linking them would commit their memory."""
    if mem[cache + C.C_FREE_FRAMES] == 0:
        return 0
    mem[cache + C.C_FREE_FRAMES] -= 1
    mem[cache + C.C_RESIDENT] += 1
    frame = mem[cache + C.C_FREE_FRAME]
    if frame != 0:
        mem[cache + C.C_FREE_FRAME] = mem[frame]
        return frame
    frame = mem[cache + C.C_FRAME] + mem[cache + C.C_FRESH_FRAME] * mem[cache + C.C_PAGE_WORDS]
    mem[cache + C.C_FRESH_FRAME] += 1
    return frame


# --- LIRS -----------------------------------------------------------------------------------------
@helper
def prune(mem, cache):
    """Drop cold entries from the stack's bottom until a hot one is there; 0 if that takes more than STEPS_MAX steps."""
    for _ in range(STEPS_MAX):
        entry = mem[cache + C.C_STACK_BOTTOM]
        if entry == 0 or (mem[entry + C.CE_FLAGS] & C.CE_HOT) != 0:
            return 1
        unstack(mem, cache, entry)
        if mem[entry + C.CE_FRAME] == 0:
            take_from(mem, cache + C.C_GHOST_FIRST, entry, C.CE_BEFORE, C.CE_AFTER)
            free_entry(mem, cache, entry)
    return 0


@helper
def reference(mem, cache, entry):
    """Record a reference to a page with a frame. The bottom of the stack must be hot."""
    if mem[cache + C.C_POLICY] == C.POLICY_LRU:
        enqueue(mem, cache, entry)
        return
    flags = mem[entry + C.CE_FLAGS]
    if (flags & C.CE_HOT) != 0:
        push(mem, cache, entry)
        prune(mem, cache)
        return
    if (flags & C.CE_ON_STACK) == 0 and mem[cache + C.C_HOT] >= mem[cache + C.C_HOT_MAX]:
        push(mem, cache, entry)
        enqueue(mem, cache, entry)
        return
    push(mem, cache, entry)
    unqueue(mem, cache, entry)
    mem[entry + C.CE_FLAGS] |= C.CE_HOT
    mem[cache + C.C_HOT] += 1
    if mem[cache + C.C_HOT] > mem[cache + C.C_HOT_MAX]:
        bottom = mem[cache + C.C_STACK_BOTTOM]
        unstack(mem, cache, bottom)
        mem[bottom + C.CE_FLAGS] &= ~C.CE_HOT
        mem[cache + C.C_HOT] -= 1
        enqueue(mem, cache, bottom)
    prune(mem, cache)


@helper
def touch_page(mem, cache, page):
    """Reference a page that is read; returns its frame's address, 0 unless it is loaded. A pin already counted as a
    reference. While the bottom of the stack is cold (L3), the page keeps its place.
    """
    entry = find_entry(mem, cache, page)
    if entry == 0 or mem[entry + C.CE_FRAME] == 0 or (mem[entry + C.CE_FLAGS] & C.CE_LOADING) != 0:
        return 0
    if mem[entry + C.CE_PINS] == 0:
        mem[cache + C.C_HITS] += 1
        if prune(mem, cache) == 1:
            reference(mem, cache, entry)
    return mem[entry + C.CE_FRAME]


@helper
def evict(mem, cache, entry):
    """Free a victim's frame; its entry stays as a ghost if it is on the stack. The caller must prune."""
    if (mem[entry + C.CE_FLAGS] & C.CE_HOT) != 0:
        mem[entry + C.CE_FLAGS] &= ~C.CE_HOT
        mem[cache + C.C_HOT] -= 1
    unqueue(mem, cache, entry)
    free_frame(mem, cache, entry)
    mem[cache + C.C_EVICTIONS] += 1
    if (mem[entry + C.CE_FLAGS] & C.CE_ON_STACK) != 0:
        append_to(mem, cache + C.C_GHOST_FIRST, entry)
    else:
        free_entry(mem, cache, entry)


@helper
def is_held(mem, entry):
    """Return 1 if a page cannot be evicted even when clean: it is pinned, being loaded or copied out."""
    return 1 if mem[entry + C.CE_PINS] != 0 or (mem[entry + C.CE_FLAGS] & (C.CE_LOADING | C.CE_WRITING)) != 0 else 0


@helper
def walk_for_victim(mem, start, link, skip_cold):
    """Return the first clean entry that may be evicted; else CLAIM_DIRTY if there was a dirty one, else CLAIM_PINNED.

    It looks at STEPS_MAX entries at most.
    """
    found = C.CLAIM_PINNED
    entry = start
    for _ in range(STEPS_MAX):
        if entry == 0:
            break
        flags = mem[entry + C.CE_FLAGS]
        if (skip_cold == 0 or (flags & C.CE_HOT) != 0) and is_held(mem, entry) == 0:
            if (flags & C.CE_IS_DIRTY) == 0:
                return entry
            found = C.CLAIM_DIRTY
        entry = mem[entry + link]
    return found


@helper
def make_frame_free(mem, cache, is_any):
    """Evict a page unless a frame is free; returns 1, CLAIM_DIRTY or CLAIM_PINNED.

    Cold pages go first, in the order of the queue. A clean hot page, from the stack's bottom, goes only if all cold
    ones are pinned, as they may be in a tiny cache, or if they are dirty and cannot be written now (`is_any`). On
    CLAIM_DIRTY the caller must have pages written.
    """
    if mem[cache + C.C_FREE_FRAMES] > 0:
        return 1
    victim = walk_for_victim(mem, mem[cache + C.C_QUEUE_FIRST], C.CE_AFTER, 0)
    if victim == C.CLAIM_PINNED or (victim == C.CLAIM_DIRTY and is_any != 0):
        hot = walk_for_victim(mem, mem[cache + C.C_STACK_BOTTOM], C.CE_UP, 1)
        if hot > 0 or victim == C.CLAIM_PINNED:
            victim = hot
    if victim < 0:
        return victim
    evict(mem, cache, victim)
    return 1
