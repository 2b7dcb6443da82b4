"""Var pages: chunks of var parts with stable references (D1).

A reference is arena page << 16 | directory entry. Data grows up from word 8, the directory down from the page's end; a
directory word is offset | length << 16 | flags. Chunks move inside their page when it is compacted, never out of it.
Var parts larger than one chunk are chained: word 0 of each chunk is the next reference.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_page, take_page


@helper
def class_of(free_words):
    """Return the class of a page, which selects its list: floor(log2(free words)). A page of class c > 0 has at least
    2**c free words.
    """
    found = 0
    while found < A.VAR_CLASSES - 1 and (free_words >> (found + 1)) > 0:
        found += 1
    return found


@helper
def unlink_page(mem, fragment, page):
    base = page << A.PAGE_SHIFT
    before = mem[base + A.VP_PREVIOUS]
    after = mem[base + A.VP_NEXT]
    if before != 0:
        mem[(before << A.PAGE_SHIFT) + A.VP_NEXT] = after
    else:
        mem[fragment + A.F_VAR_LISTS + mem[base + A.VP_CLASS]] = after
    if after != 0:
        mem[(after << A.PAGE_SHIFT) + A.VP_PREVIOUS] = before


@helper
def link_page(mem, fragment, page, wanted):
    base = page << A.PAGE_SHIFT
    first = mem[fragment + A.F_VAR_LISTS + wanted]
    mem[base + A.VP_CLASS] = wanted
    mem[base + A.VP_PREVIOUS] = 0
    mem[base + A.VP_NEXT] = first
    if first != 0:
        mem[(first << A.PAGE_SHIFT) + A.VP_PREVIOUS] = page
    mem[fragment + A.F_VAR_LISTS + wanted] = page


@helper
def settle_page(mem, fragment, page):
    """Move a var page to the list for its free space."""
    base = page << A.PAGE_SHIFT
    wanted = class_of(mem[base + A.VP_FREE_WORDS])
    if wanted != mem[base + A.VP_CLASS]:
        unlink_page(mem, fragment, page)
        link_page(mem, fragment, page, wanted)


@helper
def compact_page(mem, fragment, page):
    """Move all chunks of a page together; references stay valid."""
    base = page << A.PAGE_SHIFT
    scratch = mem[mem[fragment + A.F_POOL] + A.P_SCRATCH]
    top = A.VAR_HEADER_WORDS
    for entry in range(mem[base + A.VP_ENTRIES]):
        where = base + A.PAGE_WORDS - 1 - entry
        word = mem[where]
        if word & A.VAR_ENTRY_FREE:
            continue
        length = (word >> 16) & 0xFFFF
        source = base + (word & 0xFFFF)
        move_words(mem, source, mem, scratch + top, length)
        mem[where] = (word & ~0xFFFF) | top
        top += length
    move_words(mem, scratch + A.VAR_HEADER_WORDS, mem, base + A.VAR_HEADER_WORDS, top - A.VAR_HEADER_WORDS)
    mem[base + A.VP_TOP] = top


@helper
def find_var_page(mem, fragment, words):
    """Return a page with room for a chunk and a directory entry; 0 when memory is exhausted."""
    need = words + 1
    wanted = class_of(need)
    page = mem[fragment + A.F_VAR_LISTS + wanted]
    if page != 0 and mem[(page << A.PAGE_SHIFT) + A.VP_FREE_WORDS] >= need:
        return page
    for larger in range(wanted + 1, A.VAR_CLASSES):
        page = mem[fragment + A.F_VAR_LISTS + larger]
        if page != 0:
            return page
    page = take_page(mem, mem[fragment + A.F_POOL])
    if page == 0:
        return 0
    base = page << A.PAGE_SHIFT
    mem[base + A.VP_FRAGMENT] = fragment
    mem[base + A.VP_FREE_WORDS] = A.PAGE_WORDS - A.VAR_HEADER_WORDS
    mem[base + A.VP_TOP] = A.VAR_HEADER_WORDS
    mem[base + A.VP_ENTRIES] = 0
    mem[base + A.VP_FREE_ENTRY] = 0
    mem[fragment + A.F_VAR_PAGES] += 1
    link_page(mem, fragment, page, class_of(mem[base + A.VP_FREE_WORDS]))
    return page


@helper
def take_chunk(mem, fragment, words, flags):
    """Take a chunk; returns its reference, 0 when memory is exhausted."""
    page = find_var_page(mem, fragment, words)
    if page == 0:
        return 0
    base = page << A.PAGE_SHIFT
    entry = mem[base + A.VP_FREE_ENTRY] - 1
    fresh = 1 if entry < 0 else 0
    if mem[base + A.VP_TOP] + words > A.PAGE_WORDS - mem[base + A.VP_ENTRIES] - fresh:
        compact_page(mem, fragment, page)
    if fresh:
        entry = mem[base + A.VP_ENTRIES]
        mem[base + A.VP_ENTRIES] = entry + 1
        mem[base + A.VP_FREE_WORDS] -= 1
    else:
        mem[base + A.VP_FREE_ENTRY] = mem[base + A.PAGE_WORDS - 1 - entry] & 0xFFFF
    top = mem[base + A.VP_TOP]
    mem[base + A.PAGE_WORDS - 1 - entry] = top | words << 16 | flags
    mem[base + A.VP_TOP] = top + words
    mem[base + A.VP_FREE_WORDS] -= words
    settle_page(mem, fragment, page)
    return page << 16 | entry


@helper
def free_chunk(mem, fragment, reference):
    """Free a chunk; a page that becomes empty goes back to the pool."""
    page = reference >> 16
    base = page << A.PAGE_SHIFT
    where = base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)
    word = mem[where]
    words = (word >> 16) & 0xFFFF
    if (word & 0xFFFF) + words == mem[base + A.VP_TOP]:
        mem[base + A.VP_TOP] -= words
    mem[base + A.VP_FREE_WORDS] += words
    mem[where] = mem[base + A.VP_FREE_ENTRY] | A.VAR_ENTRY_FREE
    mem[base + A.VP_FREE_ENTRY] = (reference & 0xFFFF) + 1
    if mem[base + A.VP_FREE_WORDS] + mem[base + A.VP_ENTRIES] == A.PAGE_WORDS - A.VAR_HEADER_WORDS:
        unlink_page(mem, fragment, page)
        mem[fragment + A.F_VAR_PAGES] -= 1
        free_page(mem, mem[fragment + A.F_POOL], page)
    else:
        settle_page(mem, fragment, page)


@helper
def chunk_address(mem, reference):
    """Return the address of the first payload word of a chunk."""
    base = (reference >> 16) << A.PAGE_SHIFT
    word = mem[base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
    return base + (word & 0xFFFF) + (1 if word & A.VAR_CHAINED else 0)


@helper
def var_words(mem, reference):
    """Return the words of a whole var part."""
    return mem[chunk_address(mem, reference)] & A.VAR_WORDS_MASK


@helper
def free_var(mem, fragment, reference):
    while reference != 0:
        base = (reference >> 16) << A.PAGE_SHIFT
        word = mem[base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
        after = mem[base + (word & 0xFFFF)] if word & A.VAR_CHAINED else 0
        free_chunk(mem, fragment, reference)
        reference = after


@helper
def take_var(mem, fragment, source, start, words):
    """Store `words` words of source[start:] as a var part; returns its reference, 0 when memory is exhausted."""
    if words <= A.VAR_CHUNK_WORDS:
        reference = take_chunk(mem, fragment, words, 0)
        if reference != 0:
            at = chunk_address(mem, reference)
            move_words(source, start, mem, at, words)
        return reference
    payload = A.VAR_CHUNK_WORDS - 1
    position = ((words - 1) // payload) * payload
    reference = 0
    while position >= 0:  # from the end, so that each chunk can refer to its successor
        length = min(payload, words - position)
        chunk = take_chunk(mem, fragment, length + 1, A.VAR_CHAINED)
        if chunk == 0:
            free_var(mem, fragment, reference)
            return 0
        at = chunk_address(mem, chunk)
        mem[at - 1] = reference
        move_words(source, start + position, mem, at, length)
        reference = chunk
        position -= payload
    return reference


@helper
def copy_var(mem, reference, target, start):
    """Copy a var part into target[start:], which has room (see `var_words`); returns its words."""
    done = 0
    while reference != 0:
        base = (reference >> 16) << A.PAGE_SHIFT
        word = mem[base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
        chained = 1 if word & A.VAR_CHAINED else 0
        at = base + (word & 0xFFFF)
        length = ((word >> 16) & 0xFFFF) - chained
        move_words(mem, at + chained, target, start + done, length)
        done += length
        reference = mem[at] if chained else 0
    return done
