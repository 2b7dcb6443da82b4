"""Slotted disk pages in their frames: allocating, freeing and finding pieces.

Pieces grow up from word 16, the slot directory down from the page's end; a slot's number never changes while its piece
lives, so a disk reference stays valid when the page is compacted.

Invariants: (P1) DP_FREE = page words - header - words of all pieces - directory words, wherever the holes are; (P2) the
last slot of the directory has a piece, so that free words and directory follow from the pieces alone, and undoing a
change restores exactly the earlier state; (P3) free slots are linked, newest first. Addresses are word indexes; a page
has at most 4,096 words. Nothing here trusts a page that was read from disk: a wrong word gives "no such piece".
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import disk_layout as D
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A

_ENTRY_BITS = 33  # offset, words and the free flag; any higher bit is damage


@helper
def page_format(mem, frame, page_words, page, owner, lsn):
    """Format a frame as an empty page; every word is written, since the seal covers all of them."""
    for i in range(page_words):
        mem[frame + i] = 0
    mem[frame + D.DP_LSN] = lsn
    mem[frame + D.DP_PAGE] = page
    mem[frame + D.DP_OWNER] = owner
    mem[frame + D.DP_FREE] = page_words - D.PAGE_HEADER_WORDS
    mem[frame + D.DP_TOP] = D.PAGE_HEADER_WORDS


@helper
def page_entries(mem, frame, page_words):
    """Return the directory words of a page; 0 if the header has an impossible number."""
    entries = mem[frame + D.DP_ENTRIES]
    return entries if 0 <= entries <= page_words - D.PAGE_HEADER_WORDS else 0


@helper
def page_slot(mem, frame, page_words, slot):
    """Return the directory word of a slot with a plausible piece, -1 if there is none."""
    entries = page_entries(mem, frame, page_words)
    if slot < 0 or slot >= entries:
        return -1
    word = mem[frame + page_words - 1 - slot]
    if word < 0 or (word & D.ENTRY_FREE) != 0 or (word >> _ENTRY_BITS) != 0:
        return -1
    offset = word & D.ENTRY_MASK
    words = (word >> D.ENTRY_WORDS_SHIFT) & D.ENTRY_MASK
    if words < 1 or offset < D.PAGE_HEADER_WORDS or offset + words > page_words - entries:
        return -1
    return word


@helper
def page_piece(mem, frame, page_words, slot):
    """Return the address of a piece, 0 if there is none."""
    word = page_slot(mem, frame, page_words, slot)
    return 0 if word < 0 else frame + (word & D.ENTRY_MASK)


@helper
def page_piece_words(mem, frame, page_words, slot):
    """Return the words of a piece, -1 if there is none."""
    word = page_slot(mem, frame, page_words, slot)
    return -1 if word < 0 else (word >> D.ENTRY_WORDS_SHIFT) & D.ENTRY_MASK


@helper
def page_compact(mem, frame, page_words):
    """Move all pieces of a page together, through the pool's scratch page; slots stay."""
    scratch = mem[A.S_POOL + A.P_SCRATCH]
    top = D.PAGE_HEADER_WORDS
    for slot in range(page_entries(mem, frame, page_words)):
        word = page_slot(mem, frame, page_words, slot)
        if word < 0:
            continue
        words = (word >> D.ENTRY_WORDS_SHIFT) & D.ENTRY_MASK
        if top + words > page_words:
            continue  # only pieces that overlap get here
        move_words(mem, frame + (word & D.ENTRY_MASK), mem, scratch + top, words)
        mem[frame + page_words - 1 - slot] = (word & ~D.ENTRY_MASK) | top
        top += words
    move_words(mem, scratch + D.PAGE_HEADER_WORDS, mem, frame + D.PAGE_HEADER_WORDS, top - D.PAGE_HEADER_WORDS)
    mem[frame + D.DP_TOP] = top


@helper
def page_make_room(mem, frame, page_words, words, fresh):
    """Make room at the top for a piece and `fresh` more directory words; OK or ST_INVARIANT."""
    limit = page_words - page_entries(mem, frame, page_words) - fresh - words
    top = mem[frame + D.DP_TOP]
    if top < D.PAGE_HEADER_WORDS or top > limit:
        page_compact(mem, frame, page_words)
    return A.OK if mem[frame + D.DP_TOP] <= limit else A.ST_INVARIANT


@helper
def page_put(mem, frame, page_words, slot, words):
    """Put a piece at the top of a page into a slot; the caller has made room, and the slot is in no list."""
    top = mem[frame + D.DP_TOP]
    mem[frame + page_words - 1 - slot] = top | words << D.ENTRY_WORDS_SHIFT
    mem[frame + D.DP_TOP] = top + words
    mem[frame + D.DP_FREE] -= words
    mem[frame + D.DP_USED] += 1


@helper
def page_take(mem, frame, page_words, words):
    """Allocate a piece of `words` words, content undefined; returns its slot, -1 if there is no room."""
    entries = page_entries(mem, frame, page_words)
    slot = mem[frame + D.DP_FREE_ENTRY] - 1
    if slot < -1 or slot >= entries:
        return -1
    fresh = 1 if slot < 0 else 0
    if words < 1 or words + fresh > mem[frame + D.DP_FREE] or words + fresh > page_words - D.PAGE_HEADER_WORDS:
        return -1
    if page_make_room(mem, frame, page_words, words, fresh) != A.OK:
        return -1
    if fresh:
        slot = entries
        mem[frame + D.DP_ENTRIES] = entries + 1
        mem[frame + D.DP_FREE] -= 1
    else:
        mem[frame + D.DP_FREE_ENTRY] = mem[frame + page_words - 1 - slot] & D.ENTRY_MASK
    page_put(mem, frame, page_words, slot, words)
    return slot


@helper
def page_unlink_slot(mem, frame, page_words, slot):
    """Remove a slot from the list of free ones; OK, or ST_INVARIANT if it is not in the list."""
    last = frame + page_words - 1
    current = mem[frame + D.DP_FREE_ENTRY]
    before = 0
    for _ in range(page_entries(mem, frame, page_words)):
        if current < 1 or current > page_words - D.PAGE_HEADER_WORDS:
            return A.ST_INVARIANT
        after = mem[last - (current - 1)] & D.ENTRY_MASK
        if current == slot + 1:
            if before == 0:
                mem[frame + D.DP_FREE_ENTRY] = after
            else:
                mem[last - (before - 1)] = D.ENTRY_FREE | after
            return A.OK
        before = current
        current = after
    return A.ST_INVARIANT


@helper
def page_take_given(mem, frame, page_words, slot, words):
    """Allocate a piece of `words` words in a given free slot, content undefined; OK or ST_INVARIANT.

    A slot past the directory's end lengthens it; the slots in between become free.
    """
    entries = page_entries(mem, frame, page_words)
    fresh = max(0, slot + 1 - entries)
    limit = page_words - D.PAGE_HEADER_WORDS
    if slot < 0 or slot >= limit or words < 1 or words > limit or words + fresh > mem[frame + D.DP_FREE]:
        return A.ST_INVARIANT
    if slot < entries and (mem[frame + page_words - 1 - slot] & D.ENTRY_FREE) == 0:
        return A.ST_INVARIANT
    if page_make_room(mem, frame, page_words, words, fresh) != A.OK:
        return A.ST_INVARIANT
    if fresh == 0:
        if page_unlink_slot(mem, frame, page_words, slot) != A.OK:
            return A.ST_INVARIANT
    else:
        for between in range(entries, slot):
            mem[frame + page_words - 1 - between] = D.ENTRY_FREE | mem[frame + D.DP_FREE_ENTRY]
            mem[frame + D.DP_FREE_ENTRY] = between + 1
        mem[frame + D.DP_ENTRIES] = slot + 1
        mem[frame + D.DP_FREE] -= fresh
    page_put(mem, frame, page_words, slot, words)
    return A.OK


@helper
def page_trim(mem, frame, page_words):
    """Drop free slots from the directory's end, and from the list of free ones, in one pass over it."""
    last = frame + page_words - 1
    before = page_entries(mem, frame, page_words)
    entries = before
    while entries > 0 and (mem[last - (entries - 1)] & D.ENTRY_FREE) != 0:
        entries -= 1
    if entries == before:
        return
    current = mem[frame + D.DP_FREE_ENTRY]
    kept = 0
    for _ in range(before):
        if current < 1 or current > before:
            break
        after = mem[last - (current - 1)] & D.ENTRY_MASK
        if current <= entries:
            if kept == 0:
                mem[frame + D.DP_FREE_ENTRY] = current
            else:
                mem[last - (kept - 1)] = D.ENTRY_FREE | current
            kept = current
        current = after
    if kept == 0:
        mem[frame + D.DP_FREE_ENTRY] = 0
    else:
        mem[last - (kept - 1)] = D.ENTRY_FREE
    mem[frame + D.DP_ENTRIES] = entries
    mem[frame + D.DP_FREE] += before - entries


@helper
def page_free(mem, frame, page_words, slot):
    """Free a piece, and drop free slots at the directory's end. OK, or ST_INVARIANT if there is no such piece."""
    word = page_slot(mem, frame, page_words, slot)
    if word < 0:
        return A.ST_INVARIANT
    offset = word & D.ENTRY_MASK
    words = (word >> D.ENTRY_WORDS_SHIFT) & D.ENTRY_MASK
    if offset + words == mem[frame + D.DP_TOP]:
        mem[frame + D.DP_TOP] = offset
    mem[frame + page_words - 1 - slot] = D.ENTRY_FREE | mem[frame + D.DP_FREE_ENTRY]
    mem[frame + D.DP_FREE_ENTRY] = slot + 1
    mem[frame + D.DP_FREE] += words
    mem[frame + D.DP_USED] -= 1
    page_trim(mem, frame, page_words)
    if mem[frame + D.DP_USED] == 0:
        mem[frame + D.DP_TOP] = D.PAGE_HEADER_WORDS
    return A.OK


@helper
def page_count_pieces(mem, frame, page_words):
    """Return the words of all pieces; ST_INVARIANT if a slot is impossible, pieces overlap or their number is wrong."""
    scratch = mem[A.S_POOL + A.P_SCRATCH]
    top = mem[frame + D.DP_TOP]
    for i in range(page_words):
        mem[scratch + i] = 0
    total = 0
    used = 0
    for slot in range(mem[frame + D.DP_ENTRIES]):
        if mem[frame + page_words - 1 - slot] >> (_ENTRY_BITS - 1) == 1:
            continue
        word = page_slot(mem, frame, page_words, slot)
        if word < 0:
            return A.ST_INVARIANT
        offset = word & D.ENTRY_MASK
        words = (word >> D.ENTRY_WORDS_SHIFT) & D.ENTRY_MASK
        if offset + words > top:
            return A.ST_INVARIANT
        for i in range(offset, offset + words):
            if mem[scratch + i] != 0:
                return A.ST_INVARIANT
            mem[scratch + i] = 1
        total += words
        used += 1
    return total if used == mem[frame + D.DP_USED] else A.ST_INVARIANT


@helper
def page_check(mem, frame, page_words):
    """Return OK if header and directory are consistent, else ST_INVARIANT."""
    entries = mem[frame + D.DP_ENTRIES]
    top = mem[frame + D.DP_TOP]
    used = mem[frame + D.DP_USED]
    if page_words <= D.PAGE_HEADER_WORDS or page_words > A.PAGE_WORDS:
        return A.ST_INVARIANT
    if entries < 0 or entries > page_words - D.PAGE_HEADER_WORDS or used < 0 or used > entries:
        return A.ST_INVARIANT
    if top < D.PAGE_HEADER_WORDS or top > page_words - entries:
        return A.ST_INVARIANT
    total = page_count_pieces(mem, frame, page_words)
    if total < 0 or mem[frame + D.DP_FREE] != page_words - D.PAGE_HEADER_WORDS - total - entries:
        return A.ST_INVARIANT
    if used == 0 and (entries != 0 or top != D.PAGE_HEADER_WORDS):
        return A.ST_INVARIANT
    if entries > 0 and (mem[frame + page_words - entries] & D.ENTRY_FREE) != 0:
        return A.ST_INVARIANT
    # A list that ends after exactly as many free slots as the page has contains each of them once.
    current = mem[frame + D.DP_FREE_ENTRY]
    for _ in range(entries - used):
        if current < 1 or current > entries:
            return A.ST_INVARIANT
        word = mem[frame + page_words - current]
        if (word & D.ENTRY_FREE) == 0:
            return A.ST_INVARIANT
        current = word & D.ENTRY_MASK
    return A.OK if current == 0 else A.ST_INVARIANT
