"""The kernels that Python calls on a page cache: claim, fill, unpin and copy out pages, and record the copies.

A call does a bounded amount of work (200 µs) and returns the position it reached. Callers name a page by its number,
never by its entry, so each call looks up the current state again.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import find_entry, fresh_lsn, owner_of
from tidemark.engine.disk.lirs_kernels import (
    enqueue,
    evict,
    free_entry,
    free_frame,
    is_held,
    make_frame_free,
    prune,
    reference,
    take_entry,
    take_frame,
    take_from,
    unqueue,
    unstack,
)
from tidemark.engine.disk.page_kernels import page_check, page_format
from tidemark.engine.disk.space_kernels import space_cleaned, space_is_fresh
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.sealed.checksums_kernels import STRIPE_WORDS, merge_lanes

PAGES_PER_CALL = 64  # claimed or unpinned; each may walk a list
STEPS_PER_CALL = 2_048  # entries checked for dirty pages
COPY_WORDS_PER_CALL = 1 << 15  # 256 KiB
COPIED_WORDS = 3  # of each copied page: number, LSN of the copy, LSN of the first change in it


def heads_of(frames: int) -> int:
    """Return the number of hash chains of a cache: a power of two, at least one for each entry."""
    return 1 << (frames * C.ENTRIES_PER_FRAME - 1).bit_length()


def cache_region_words(page_words: int, frames: int) -> int:
    """Return the words of the region of a cache: descriptor, heads, entries, frames."""
    return C.CACHE_WORDS + heads_of(frames) + frames * (C.ENTRIES_PER_FRAME * C.CACHE_ENTRY_WORDS + page_words)


@kernel("int64(int64[::1], int64, int64, int64, int64, int64)")
def setup_cache(mem, cache, page_words, frames, heads, policy):
    """Fill the descriptor of a cache whose region (`cache_region_words`) is zero; ST_INVARIANT if it does not fit."""
    entries = frames * C.ENTRIES_PER_FRAME
    words = C.CACHE_WORDS + heads + entries * C.CACHE_ENTRY_WORDS + frames * page_words
    if cache < 0 or frames < 2 or page_words < 1 or cache + words > mem.size:
        return A.ST_INVARIANT
    mem[cache + C.C_PAGE_WORDS] = page_words
    mem[cache + C.C_FRAMES] = frames
    mem[cache + C.C_FREE_FRAMES] = frames
    mem[cache + C.C_ENTRIES] = entries
    mem[cache + C.C_HASH] = cache + C.CACHE_WORDS
    mem[cache + C.C_HASH_MASK] = heads - 1
    mem[cache + C.C_ENTRY] = cache + C.CACHE_WORDS + heads
    mem[cache + C.C_FRAME] = mem[cache + C.C_ENTRY] + entries * C.CACHE_ENTRY_WORDS
    mem[cache + C.C_HOT_MAX] = max(1, min(frames - 1, frames * C.HOT_PERCENT // 100))
    mem[cache + C.C_POLICY] = policy
    return A.OK


# --- claiming -------------------------------------------------------------------------------------
@helper
def pin(mem, cache, entry):
    if mem[entry + C.CE_PINS] == 0:
        mem[cache + C.C_PINNED] += 1
    mem[entry + C.CE_PINS] += 1


@helper
def unpin(mem, cache, entry):
    mem[entry + C.CE_PINS] -= 1
    if mem[entry + C.CE_PINS] == 0:
        mem[cache + C.C_PINNED] -= 1


@helper
def claim_resident(mem, cache, entry, page, is_fresh, how):
    """Claim a page that has a frame; CLAIM_HIT or CLAIM_LOADING."""
    if (mem[entry + C.CE_FLAGS] & C.CE_LOADING) != 0:
        return C.CLAIM_LOADING
    if is_fresh != 0 and space_is_fresh(mem, page) == 1:
        frame = mem[entry + C.CE_FRAME]
        owner = owner_of(mem, page)
        # Another owner: the frame still has the page of a dropped table.
        if mem[frame + D.DP_OWNER] != owner:
            page_format(mem, frame, mem[cache + C.C_PAGE_WORDS], page, owner, fresh_lsn(mem))
    if (how & C.CLAIM_QUIET) == 0:
        mem[cache + C.C_HITS] += 1
        reference(mem, cache, entry)
    if (how & C.CLAIM_PIN) != 0:
        pin(mem, cache, entry)
    return C.CLAIM_HIT


@helper
def claim_missing(mem, cache, page, is_fresh, how):
    """Claim a page without a frame: CLAIM_LOAD, CLAIM_HIT if it was formatted, or the reason why it gets no frame."""
    formats = 1 if is_fresh != 0 and space_is_fresh(mem, page) == 1 else 0
    owner = owner_of(mem, page)
    if formats != 0 and owner == 0:
        return C.CLAIM_NOWHERE
    free = make_frame_free(mem, cache, how & C.CLAIM_ANY)
    if free < 0:
        return free
    entry = find_entry(mem, cache, page)
    if entry != 0:
        take_from(mem, cache + C.C_GHOST_FIRST, entry, C.CE_BEFORE, C.CE_AFTER)
    else:
        entry = take_entry(mem, cache, page)
        if entry == 0:
            return C.CLAIM_AGAIN
    mem[entry + C.CE_FRAME] = take_frame(mem, cache)
    mem[cache + C.C_MISSES] += 1
    if (how & C.CLAIM_QUIET) == 0:
        reference(mem, cache, entry)
    else:
        enqueue(mem, cache, entry)
        prune(mem, cache)  # the victim may have been the hot page at the bottom
    if formats != 0:
        page_format(mem, mem[entry + C.CE_FRAME], mem[cache + C.C_PAGE_WORDS], page, owner, fresh_lsn(mem))
        if (how & C.CLAIM_PIN) != 0:
            pin(mem, cache, entry)
        return C.CLAIM_HIT
    mem[entry + C.CE_FLAGS] |= C.CE_LOADING
    pin(mem, cache, entry)
    return C.CLAIM_LOAD


@helper
def claim_page(mem, cache, page, how):
    """Claim one page; returns the outcome."""
    if prune(mem, cache) == 0:
        return C.CLAIM_AGAIN
    is_fresh = page & C.FRESH_PAGE
    number = page & ~C.FRESH_PAGE
    entry = find_entry(mem, cache, number)
    if entry != 0 and mem[entry + C.CE_FRAME] != 0:
        return claim_resident(mem, cache, entry, number, is_fresh, how)
    return claim_missing(mem, cache, number, is_fresh, how)


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64, int64[::1])")
def claim_pages(mem, cache, pages, start, end, how, out):
    """Claim pages[start:end] in order; returns the position of the first that failed, or the position reached.

    out: outcome of each (CLAIM_HIT, CLAIM_LOAD, or the reason of the failure). A page to be loaded is pinned, whatever
    `how` says; its entry belongs to the caller until `loaded_page` or `drop_page`. A page with FRESH_PAGE is formatted
    if it is still wholly free, and loaded like any other if not.
    """
    end = min(end, start + PAGES_PER_CALL)
    if start < 0 or end > pages.size or end > out.size:
        return start
    at = start
    while at < end:
        out[at] = claim_page(mem, cache, pages[at], how)
        if out[at] < 0:
            return at
        at += 1
    return at


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64)")
def loaded_page(mem, cache, page, words, start, is_pinned):
    """Fill a page claimed with CLAIM_LOAD from words[start:]; OK, or ST_INVARIANT if they are not a valid page.

    A page never written is all zero: it is empty and has LSN 0. is_pinned: the claimer keeps the pin.
    """
    return fill_frame(mem, cache, page, words, start, is_pinned)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64)")
def loaded_intact_page(mem, cache, page, words, start, lanes, seal, is_pinned):
    """Do `loaded_page` for words that were read and not yet verified. lanes: XXH3 lanes from word start + 1 on. seal:
    the words that must follow the checksum. Returns ST_INVARIANT, with nothing done, if checksum, seal or page number
    does not match.
    """
    page_words = mem[cache + C.C_PAGE_WORDS]
    if start < 0 or words.size < start + page_words or lanes.size < STRIPE_WORDS or words[start + D.DP_PAGE] != page:
        return A.ST_INVARIANT
    for i in range(seal.size):
        if words[start + 1 + i] != seal[i]:
            return A.ST_INVARIANT
    if words[start] != merge_lanes(lanes, page_words - 1):
        return A.ST_INVARIANT
    return fill_frame(mem, cache, page, words, start, is_pinned)


@helper
def fill_frame(mem, cache, page, words, start, is_pinned):
    """See `loaded_page`."""
    entry = find_entry(mem, cache, page)
    page_words = mem[cache + C.C_PAGE_WORDS]
    if entry == 0 or (mem[entry + C.CE_FLAGS] & C.CE_LOADING) == 0 or start < 0 or start + page_words > words.size:
        return A.ST_INVARIANT
    frame = mem[entry + C.CE_FRAME]
    found = 0
    for i in range(page_words):
        found |= words[start + i]
    if found == 0:
        page_format(mem, frame, page_words, page, owner_of(mem, page), 0)
    else:
        move_words(words, start, mem, frame, page_words)
        if mem[frame + D.DP_PAGE] != page or page_check(mem, frame, page_words) != A.OK:
            return A.ST_INVARIANT
    mem[entry + C.CE_FLAGS] &= ~C.CE_LOADING
    if is_pinned == 0:
        unpin(mem, cache, entry)
    return A.OK


@kernel("int64(int64[::1], int64, int64)")
def drop_page(mem, cache, page):
    """Free frame and entry of a page claimed with CLAIM_LOAD that cannot be loaded; ST_MISSING if it is not loading."""
    entry = find_entry(mem, cache, page)
    if entry == 0 or (mem[entry + C.CE_FLAGS] & C.CE_LOADING) == 0:
        return A.ST_MISSING
    unpin(mem, cache, entry)
    unqueue(mem, cache, entry)
    unstack(mem, cache, entry)
    if (mem[entry + C.CE_FLAGS] & C.CE_HOT) != 0:
        mem[cache + C.C_HOT] -= 1
    free_frame(mem, cache, entry)
    free_entry(mem, cache, entry)
    prune(mem, cache)
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def unpin_pages(mem, cache, pages, start, end):
    """Remove one pin of each of pages[start:end]; returns the position reached. Pages not pinned are skipped.

    pages: each word becomes 0 when its pin is removed, so a caller that lost the result to a signal may call again.
    """
    end = min(end, start + PAGES_PER_CALL)
    if start < 0 or end > pages.size:
        return start
    for at in range(start, end):
        entry = find_entry(mem, cache, pages[at] & ~C.FRESH_PAGE)
        if entry != 0 and mem[entry + C.CE_PINS] > 0:
            unpin(mem, cache, entry)
        pages[at] = 0
    return end


@kernel("int64(int64[::1], int64, int64)")
def forget_page(mem, cache, page):
    """Drop a page of a removed file, dirty or not: OK, ST_MISSING if it has no frame, or ST_INVARIANT while it is
    pinned, being loaded or being copied out.
    """
    entry = find_entry(mem, cache, page)
    if entry == 0 or mem[entry + C.CE_FRAME] == 0:
        return A.ST_MISSING
    if is_held(mem, entry) != 0:
        return A.ST_INVARIANT
    if (mem[entry + C.CE_FLAGS] & C.CE_IS_DIRTY) != 0:
        mem[entry + C.CE_FLAGS] &= ~C.CE_IS_DIRTY
        mem[cache + C.C_DIRTY] -= 1
    evict(mem, cache, entry)
    prune(mem, cache)
    return A.OK


# --- writing --------------------------------------------------------------------------------------
@helper
def copy_out(mem, cache, entry, buffer, done, copied):
    """Copy one dirty page after `done` others; from here on it is clean and has CE_WRITING."""
    page_words = mem[cache + C.C_PAGE_WORDS]
    move_words(mem, mem[entry + C.CE_FRAME], buffer, done * page_words, page_words)
    copied[COPIED_WORDS * done] = mem[entry + C.CE_PAGE]
    copied[COPIED_WORDS * done + 1] = mem[mem[entry + C.CE_FRAME] + D.DP_LSN]
    copied[COPIED_WORDS * done + 2] = mem[entry + C.CE_DIRTIED]
    mem[entry + C.CE_FLAGS] = (mem[entry + C.CE_FLAGS] & ~C.CE_IS_DIRTY) | C.CE_WRITING
    mem[cache + C.C_DIRTY] -= 1


@helper
def is_wanted(mem, entry, how, before_lsn):
    """Return 1 if a dirty page is to be copied out: for room if it is not pinned, for a flush if it became dirty before
    `before_lsn`.
    """
    flags = mem[entry + C.CE_FLAGS]
    if (flags & C.CE_IS_DIRTY) == 0 or (flags & (C.CE_LOADING | C.CE_WRITING)) != 0:
        return 0
    if how == C.COPY_ALL:
        return 1 if mem[entry + C.CE_DIRTIED] < before_lsn else 0
    if how != C.COPY_COLD and (flags & C.CE_HOT) == 0:
        return 0
    return 1 if mem[entry + C.CE_PINS] == 0 else 0


@kernel("int64(int64[::1], int64, int64, int64, int64, int64, int64[::1], int64[::1], int64[::1])")
def copy_dirty_pages(mem, cache, how, before_lsn, done, limit, cursor, buffer, copied):
    """Copy dirty pages into a private buffer after `done` others, up to `limit` in all; returns how many it then holds.

    Each is clean from then on, and has CE_WRITING until `finish_copies` reports the outcome. cursor: word 0 is the
    entry where COPY_ALL continues, from 0; -1 at the end. The other choices start over at each call, and have ended
    when a call copies nothing. before_lsn: COPY_ALL skips pages first changed by this record or a later one. copied:
    COPIED_WORDS for each page.
    """
    page_words = mem[cache + C.C_PAGE_WORDS]
    limit = min(limit, buffer.size // page_words, copied.size // COPIED_WORDS)
    limit = min(limit, done + max(1, COPY_WORDS_PER_CALL // page_words))
    entry = mem[cache + C.C_QUEUE_FIRST] if how == C.COPY_COLD else mem[cache + C.C_STACK_BOTTOM]
    if how != C.COPY_ALL:
        for _ in range(STEPS_PER_CALL):
            if entry == 0 or done >= limit:
                break
            if is_wanted(mem, entry, how, before_lsn) != 0:
                copy_out(mem, cache, entry, buffer, done, copied)
                done += 1
            entry = mem[entry + (C.CE_AFTER if how == C.COPY_COLD else C.CE_UP)]
        return done
    last = min(mem[cache + C.C_FRESH_ENTRY], cursor[0] + STEPS_PER_CALL)
    while cursor[0] >= 0 and cursor[0] < last and done < limit:
        entry = mem[cache + C.C_ENTRY] + cursor[0] * C.CACHE_ENTRY_WORDS
        if is_wanted(mem, entry, how, before_lsn) != 0:
            copy_out(mem, cache, entry, buffer, done, copied)
            done += 1
        cursor[0] += 1
    if cursor[0] >= mem[cache + C.C_FRESH_ENTRY]:
        cursor[0] = -1
    return done


@kernel("int64(int64[::1], int64, int64[::1], int64, int64)")
def finish_copies(mem, cache, copied, count, is_kept):
    """Record the outcome of copied pages; returns how many are clean now.

    is_kept: 1 if their copies will be written; 0 if the copies are lost: then the pages are as dirty as before. A page
    changed after it was copied stays dirty.
    """
    clean = 0
    for i in range(min(count, copied.size // COPIED_WORDS)):
        entry = find_entry(mem, cache, copied[COPIED_WORDS * i])
        if entry == 0 or (mem[entry + C.CE_FLAGS] & C.CE_WRITING) == 0:
            continue
        mem[entry + C.CE_FLAGS] &= ~C.CE_WRITING
        is_dirty = mem[entry + C.CE_FLAGS] & C.CE_IS_DIRTY
        if is_kept == 0:
            mem[entry + C.CE_DIRTIED] = copied[COPIED_WORDS * i + 2]
            if is_dirty == 0:
                mem[entry + C.CE_FLAGS] |= C.CE_IS_DIRTY
                mem[cache + C.C_DIRTY] += 1
        elif is_dirty == 0:
            space_cleaned(mem, copied[COPIED_WORDS * i])
            clean += 1
    return clean
