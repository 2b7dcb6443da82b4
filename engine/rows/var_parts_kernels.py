"""Var pages: chunks of var parts behind stable references (D1).

A reference is arena page << 16 | directory entry. Data grows up from word 8, the directory down from the page's end; a
directory word is offset | length << 16 | flags. Chunks move inside their page when it is compacted, never out of it.
Var parts
over one chunk are chained: word 0 of each chunk is the next reference.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper
from engine.jit.words_kernels import move_words
from engine.memory.arena_layout import (
    F_POOL,
    F_VAR_LISTS,
    F_VAR_PAGES,
    P_SCRATCH,
    PAGE_SHIFT,
    PAGE_WORDS,
    VAR_CHAINED,
    VAR_CHUNK_WORDS,
    VAR_CLASSES,
    VAR_ENTRY_FREE,
    VAR_HEADER_WORDS,
    VAR_WORDS_MASK,
    VP_CLASS,
    VP_ENTRIES,
    VP_FRAGMENT,
    VP_FREE_ENTRY,
    VP_FREE_WORDS,
    VP_NEXT,
    VP_PREVIOUS,
    VP_TOP,
)
from engine.memory.pool_kernels import give_page, take_page


@helper
def class_of(free_words):
    """List of a page: floor(log2(free words)), so that every page of class c has at least 2**c free words."""
    found = 0
    while found < VAR_CLASSES - 1 and (free_words >> (found + 1)) > 0:
        found += 1
    return found


@helper
def unlink_page(mem, fragment, page):
    """Take a var page out of its list."""
    base = page << PAGE_SHIFT
    before = mem[base + VP_PREVIOUS]
    after = mem[base + VP_NEXT]
    if before != 0:
        mem[(before << PAGE_SHIFT) + VP_NEXT] = after
    else:
        mem[fragment + F_VAR_LISTS + mem[base + VP_CLASS]] = after
    if after != 0:
        mem[(after << PAGE_SHIFT) + VP_PREVIOUS] = before


@helper
def link_page(mem, fragment, page, wanted):
    """Put a var page at the front of a list."""
    base = page << PAGE_SHIFT
    first = mem[fragment + F_VAR_LISTS + wanted]
    mem[base + VP_CLASS] = wanted
    mem[base + VP_PREVIOUS] = 0
    mem[base + VP_NEXT] = first
    if first != 0:
        mem[(first << PAGE_SHIFT) + VP_PREVIOUS] = page
    mem[fragment + F_VAR_LISTS + wanted] = page


@helper
def settle_page(mem, fragment, page):
    """Move a var page to the list its free space asks for."""
    base = page << PAGE_SHIFT
    wanted = class_of(mem[base + VP_FREE_WORDS])
    if wanted != mem[base + VP_CLASS]:
        unlink_page(mem, fragment, page)
        link_page(mem, fragment, page, wanted)


@helper
def compact_page(mem, fragment, page):
    """Push all chunks of a page together; references stay."""
    base = page << PAGE_SHIFT
    scratch = mem[mem[fragment + F_POOL] + P_SCRATCH]
    top = VAR_HEADER_WORDS
    for entry in range(mem[base + VP_ENTRIES]):
        where = base + PAGE_WORDS - 1 - entry
        word = mem[where]
        if word & VAR_ENTRY_FREE:
            continue
        length = (word >> 16) & 0xFFFF
        source = base + (word & 0xFFFF)
        move_words(mem, source, mem, scratch + top, length)
        mem[where] = (word & ~0xFFFF) | top
        top += length
    move_words(mem, scratch + VAR_HEADER_WORDS, mem, base + VAR_HEADER_WORDS, top - VAR_HEADER_WORDS)
    mem[base + VP_TOP] = top


@helper
def find_var_page(mem, fragment, words):
    """A page with room for a chunk and a directory entry; 0 when memory is exhausted."""
    need = words + 1
    wanted = class_of(need)
    page = mem[fragment + F_VAR_LISTS + wanted]
    if page != 0 and mem[(page << PAGE_SHIFT) + VP_FREE_WORDS] >= need:
        return page
    for larger in range(wanted + 1, VAR_CLASSES):
        page = mem[fragment + F_VAR_LISTS + larger]
        if page != 0:
            return page
    page = take_page(mem, mem[fragment + F_POOL])
    if page == 0:
        return 0
    base = page << PAGE_SHIFT
    mem[base + VP_FRAGMENT] = fragment
    mem[base + VP_FREE_WORDS] = PAGE_WORDS - VAR_HEADER_WORDS
    mem[base + VP_TOP] = VAR_HEADER_WORDS
    mem[base + VP_ENTRIES] = 0
    mem[base + VP_FREE_ENTRY] = 0
    mem[fragment + F_VAR_PAGES] += 1
    link_page(mem, fragment, page, class_of(mem[base + VP_FREE_WORDS]))
    return page


@helper
def take_chunk(mem, fragment, words, flags):
    """Take a chunk; returns its reference, 0 when memory is exhausted."""
    page = find_var_page(mem, fragment, words)
    if page == 0:
        return 0
    base = page << PAGE_SHIFT
    entry = mem[base + VP_FREE_ENTRY] - 1
    fresh = 1 if entry < 0 else 0
    if mem[base + VP_TOP] + words > PAGE_WORDS - mem[base + VP_ENTRIES] - fresh:
        compact_page(mem, fragment, page)
    if fresh:
        entry = mem[base + VP_ENTRIES]
        mem[base + VP_ENTRIES] = entry + 1
        mem[base + VP_FREE_WORDS] -= 1
    else:
        mem[base + VP_FREE_ENTRY] = mem[base + PAGE_WORDS - 1 - entry] & 0xFFFF
    top = mem[base + VP_TOP]
    mem[base + PAGE_WORDS - 1 - entry] = top | words << 16 | flags
    mem[base + VP_TOP] = top + words
    mem[base + VP_FREE_WORDS] -= words
    settle_page(mem, fragment, page)
    return page << 16 | entry


@helper
def give_chunk(mem, fragment, reference):
    """Free a chunk; a page that empties goes back to the pool."""
    page = reference >> 16
    base = page << PAGE_SHIFT
    where = base + PAGE_WORDS - 1 - (reference & 0xFFFF)
    word = mem[where]
    words = (word >> 16) & 0xFFFF
    if (word & 0xFFFF) + words == mem[base + VP_TOP]:
        mem[base + VP_TOP] -= words
    mem[base + VP_FREE_WORDS] += words
    mem[where] = mem[base + VP_FREE_ENTRY] | VAR_ENTRY_FREE
    mem[base + VP_FREE_ENTRY] = (reference & 0xFFFF) + 1
    if mem[base + VP_FREE_WORDS] + mem[base + VP_ENTRIES] == PAGE_WORDS - VAR_HEADER_WORDS:
        unlink_page(mem, fragment, page)
        mem[fragment + F_VAR_PAGES] -= 1
        give_page(mem, mem[fragment + F_POOL], page)
    else:
        settle_page(mem, fragment, page)


@helper
def chunk_address(mem, reference):
    """Address of the first payload word of a chunk."""
    base = (reference >> 16) << PAGE_SHIFT
    word = mem[base + PAGE_WORDS - 1 - (reference & 0xFFFF)]
    return base + (word & 0xFFFF) + (1 if word & VAR_CHAINED else 0)


@helper
def var_words(mem, reference):
    """Words of a whole var part."""
    return mem[chunk_address(mem, reference)] & VAR_WORDS_MASK


@helper
def give_var(mem, fragment, reference):
    """Free a var part, all chunks."""
    while reference != 0:
        base = (reference >> 16) << PAGE_SHIFT
        word = mem[base + PAGE_WORDS - 1 - (reference & 0xFFFF)]
        after = mem[base + (word & 0xFFFF)] if word & VAR_CHAINED else 0
        give_chunk(mem, fragment, reference)
        reference = after


@helper
def take_var(mem, fragment, source, start, words):
    """Store `words` words of source[start:] as a var part; returns its reference, 0 when memory is exhausted."""
    if words <= VAR_CHUNK_WORDS:
        reference = take_chunk(mem, fragment, words, 0)
        if reference != 0:
            at = chunk_address(mem, reference)
            move_words(source, start, mem, at, words)
        return reference
    payload = VAR_CHUNK_WORDS - 1
    position = ((words - 1) // payload) * payload
    reference = 0
    while position >= 0:  # back to front, so that each chunk knows its successor
        length = min(payload, words - position)
        chunk = take_chunk(mem, fragment, length + 1, VAR_CHAINED)
        if chunk == 0:
            give_var(mem, fragment, reference)
            return 0
        at = chunk_address(mem, chunk)
        mem[at - 1] = reference
        move_words(source, start + position, mem, at, length)
        reference = chunk
        position -= payload
    return reference


@helper
def copy_var(mem, reference, target, start):
    """Copy a var part into target[start:]; returns its words. The caller has made room (see `var_words`)."""
    done = 0
    while reference != 0:
        base = (reference >> 16) << PAGE_SHIFT
        word = mem[base + PAGE_WORDS - 1 - (reference & 0xFFFF)]
        chained = 1 if word & VAR_CHAINED else 0
        at = base + (word & 0xFFFF)
        length = ((word >> 16) & 0xFFFF) - chained
        move_words(mem, at + chained, target, start + done, length)
        done += length
        reference = mem[at] if chained else 0
    return done
