"""Slotted disk pages in their frames: taking, giving and finding pieces.

Pieces grow up from word 16, the slot directory down from the page's end; a slot's number never changes while its piece
lives, so a disk reference stays good when the page is compacted.

Invariants: (P1) DP_FREE = page words - header - words of all pieces - directory words, wherever the holes lie; (P2) the
last slot of the directory has a piece, so that free words and directory follow from the pieces alone, and undoing a
change leaves exactly what was before it; (P3) free slots are linked, newest first. Addresses are word indexes; a page
has at most 4,096 words. Nothing here trusts a page that was read from disk: a wrong word gives "no such piece".
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.disk_layout import (
    DP_ENTRIES,
    DP_FREE,
    DP_FREE_ENTRY,
    DP_LSN,
    DP_OWNER,
    DP_PAGE,
    DP_TOP,
    DP_USED,
    ENTRY_FREE,
    ENTRY_MASK,
    ENTRY_WORDS_SHIFT,
    PAGE_HEADER_WORDS,
)
from engine.jit.kernel import helper, kernel
from engine.jit.words_kernels import move_words
from engine.memory.arena_layout import OK, P_SCRATCH, PAGE_WORDS, S_POOL, ST_INVARIANT

_ENTRY_BITS = 33  # offset, words and the free flag; anything above is damage


@helper
def page_format(mem, frame, page_words, page, owner, lsn):
    """Make a frame an empty page; all of it is written, since all of it is sealed."""
    for i in range(page_words):
        mem[frame + i] = 0
    mem[frame + DP_LSN] = lsn
    mem[frame + DP_PAGE] = page
    mem[frame + DP_OWNER] = owner
    mem[frame + DP_FREE] = page_words - PAGE_HEADER_WORDS
    mem[frame + DP_TOP] = PAGE_HEADER_WORDS


@helper
def page_entries(mem, frame, page_words):
    """Directory words of a page; 0 if what stands there is impossible."""
    entries = mem[frame + DP_ENTRIES]
    return entries if 0 <= entries <= page_words - PAGE_HEADER_WORDS else 0


@helper
def page_slot(mem, frame, page_words, slot):
    """Directory word of a slot with a possible piece, -1 if there is none."""
    entries = page_entries(mem, frame, page_words)
    if slot < 0 or slot >= entries:
        return -1
    word = mem[frame + page_words - 1 - slot]
    if word < 0 or (word & ENTRY_FREE) != 0 or (word >> _ENTRY_BITS) != 0:
        return -1
    offset = word & ENTRY_MASK
    words = (word >> ENTRY_WORDS_SHIFT) & ENTRY_MASK
    if words < 1 or offset < PAGE_HEADER_WORDS or offset + words > page_words - entries:
        return -1
    return word


@helper
def page_piece(mem, frame, page_words, slot):
    """Address of a piece, 0 if there is none."""
    word = page_slot(mem, frame, page_words, slot)
    return 0 if word < 0 else frame + (word & ENTRY_MASK)


@helper
def page_piece_words(mem, frame, page_words, slot):
    """Words of a piece, -1 if there is none."""
    word = page_slot(mem, frame, page_words, slot)
    return -1 if word < 0 else (word >> ENTRY_WORDS_SHIFT) & ENTRY_MASK


@helper
def page_compact(mem, frame, page_words):
    """Push all pieces of a page together, through the pool's scratch page; slots stay."""
    scratch = mem[S_POOL + P_SCRATCH]
    top = PAGE_HEADER_WORDS
    for slot in range(page_entries(mem, frame, page_words)):
        word = page_slot(mem, frame, page_words, slot)
        if word < 0:
            continue
        words = (word >> ENTRY_WORDS_SHIFT) & ENTRY_MASK
        if top + words > page_words:
            continue  # only pieces that overlap get here
        move_words(mem, frame + (word & ENTRY_MASK), mem, scratch + top, words)
        mem[frame + page_words - 1 - slot] = (word & ~ENTRY_MASK) | top
        top += words
    move_words(mem, scratch + PAGE_HEADER_WORDS, mem, frame + PAGE_HEADER_WORDS, top - PAGE_HEADER_WORDS)
    mem[frame + DP_TOP] = top


@helper
def page_make_room(mem, frame, page_words, words, fresh):
    """Room at the top for a piece and `fresh` more directory words; OK or ST_INVARIANT."""
    limit = page_words - page_entries(mem, frame, page_words) - fresh - words
    top = mem[frame + DP_TOP]
    if top < PAGE_HEADER_WORDS or top > limit:
        page_compact(mem, frame, page_words)
    return OK if mem[frame + DP_TOP] <= limit else ST_INVARIANT


@helper
def page_put(mem, frame, page_words, slot, words):
    """Give a slot a piece at the top; room is there and the slot is in no list."""
    top = mem[frame + DP_TOP]
    mem[frame + page_words - 1 - slot] = top | words << ENTRY_WORDS_SHIFT
    mem[frame + DP_TOP] = top + words
    mem[frame + DP_FREE] -= words
    mem[frame + DP_USED] += 1


@helper
def page_take(mem, frame, page_words, words):
    """Slot of a new piece of `words` words, content undefined; -1 if there is no room."""
    entries = page_entries(mem, frame, page_words)
    slot = mem[frame + DP_FREE_ENTRY] - 1
    if slot < -1 or slot >= entries:
        return -1
    fresh = 1 if slot < 0 else 0
    if words < 1 or words + fresh > mem[frame + DP_FREE] or words + fresh > page_words - PAGE_HEADER_WORDS:
        return -1
    if page_make_room(mem, frame, page_words, words, fresh) != OK:
        return -1
    if fresh:
        slot = entries
        mem[frame + DP_ENTRIES] = entries + 1
        mem[frame + DP_FREE] -= 1
    else:
        mem[frame + DP_FREE_ENTRY] = mem[frame + page_words - 1 - slot] & ENTRY_MASK
    page_put(mem, frame, page_words, slot, words)
    return slot


@helper
def page_unlink_slot(mem, frame, page_words, slot):
    """Take a free slot out of the list; OK, or ST_INVARIANT if it is not in it."""
    last = frame + page_words - 1
    current = mem[frame + DP_FREE_ENTRY]
    before = 0
    for _ in range(page_entries(mem, frame, page_words)):
        if current < 1 or current > page_words - PAGE_HEADER_WORDS:
            return ST_INVARIANT
        after = mem[last - (current - 1)] & ENTRY_MASK
        if current == slot + 1:
            if before == 0:
                mem[frame + DP_FREE_ENTRY] = after
            else:
                mem[last - (before - 1)] = ENTRY_FREE | after
            return OK
        before = current
        current = after
    return ST_INVARIANT


@helper
def page_take_given(mem, frame, page_words, slot, words):
    """A piece of `words` words in a prescribed free slot, content undefined; OK or ST_INVARIANT.

    A slot beyond the directory lengthens it; what lies between are free slots.
    """
    entries = page_entries(mem, frame, page_words)
    fresh = max(0, slot + 1 - entries)
    limit = page_words - PAGE_HEADER_WORDS
    if slot < 0 or slot >= limit or words < 1 or words > limit or words + fresh > mem[frame + DP_FREE]:
        return ST_INVARIANT
    if slot < entries and (mem[frame + page_words - 1 - slot] & ENTRY_FREE) == 0:
        return ST_INVARIANT
    if page_make_room(mem, frame, page_words, words, fresh) != OK:
        return ST_INVARIANT
    if fresh == 0:
        if page_unlink_slot(mem, frame, page_words, slot) != OK:
            return ST_INVARIANT
    else:
        for between in range(entries, slot):
            mem[frame + page_words - 1 - between] = ENTRY_FREE | mem[frame + DP_FREE_ENTRY]
            mem[frame + DP_FREE_ENTRY] = between + 1
        mem[frame + DP_ENTRIES] = slot + 1
        mem[frame + DP_FREE] -= fresh
    page_put(mem, frame, page_words, slot, words)
    return OK


@helper
def page_trim(mem, frame, page_words):
    """Drop free slots from the directory's end, and from the list of free ones, in one pass over it."""
    last = frame + page_words - 1
    before = page_entries(mem, frame, page_words)
    entries = before
    while entries > 0 and (mem[last - (entries - 1)] & ENTRY_FREE) != 0:
        entries -= 1
    if entries == before:
        return
    current = mem[frame + DP_FREE_ENTRY]
    kept = 0
    for _ in range(before):
        if current < 1 or current > before:
            break
        after = mem[last - (current - 1)] & ENTRY_MASK
        if current <= entries:
            if kept == 0:
                mem[frame + DP_FREE_ENTRY] = current
            else:
                mem[last - (kept - 1)] = ENTRY_FREE | current
            kept = current
        current = after
    if kept == 0:
        mem[frame + DP_FREE_ENTRY] = 0
    else:
        mem[last - (kept - 1)] = ENTRY_FREE
    mem[frame + DP_ENTRIES] = entries
    mem[frame + DP_FREE] += before - entries


@helper
def page_give(mem, frame, page_words, slot):
    """Free a piece; free slots at the directory's end vanish. OK, or ST_INVARIANT if there is no such piece."""
    word = page_slot(mem, frame, page_words, slot)
    if word < 0:
        return ST_INVARIANT
    offset = word & ENTRY_MASK
    words = (word >> ENTRY_WORDS_SHIFT) & ENTRY_MASK
    if offset + words == mem[frame + DP_TOP]:
        mem[frame + DP_TOP] = offset
    mem[frame + page_words - 1 - slot] = ENTRY_FREE | mem[frame + DP_FREE_ENTRY]
    mem[frame + DP_FREE_ENTRY] = slot + 1
    mem[frame + DP_FREE] += words
    mem[frame + DP_USED] -= 1
    page_trim(mem, frame, page_words)
    if mem[frame + DP_USED] == 0:
        mem[frame + DP_TOP] = PAGE_HEADER_WORDS
    return OK


@helper
def page_count_pieces(mem, frame, page_words):
    """Words of all pieces; ST_INVARIANT if a slot is impossible, pieces overlap or their number is wrong."""
    scratch = mem[S_POOL + P_SCRATCH]
    top = mem[frame + DP_TOP]
    for i in range(page_words):
        mem[scratch + i] = 0
    total = 0
    used = 0
    for slot in range(mem[frame + DP_ENTRIES]):
        if mem[frame + page_words - 1 - slot] >> (_ENTRY_BITS - 1) == 1:
            continue
        word = page_slot(mem, frame, page_words, slot)
        if word < 0:
            return ST_INVARIANT
        offset = word & ENTRY_MASK
        words = (word >> ENTRY_WORDS_SHIFT) & ENTRY_MASK
        if offset + words > top:
            return ST_INVARIANT
        for i in range(offset, offset + words):
            if mem[scratch + i] != 0:
                return ST_INVARIANT
            mem[scratch + i] = 1
        total += words
        used += 1
    return total if used == mem[frame + DP_USED] else ST_INVARIANT


@helper
def page_check(mem, frame, page_words):
    """OK if every word of header and directory agrees with every other, else ST_INVARIANT."""
    entries = mem[frame + DP_ENTRIES]
    top = mem[frame + DP_TOP]
    used = mem[frame + DP_USED]
    if page_words <= PAGE_HEADER_WORDS or page_words > PAGE_WORDS:
        return ST_INVARIANT
    if entries < 0 or entries > page_words - PAGE_HEADER_WORDS or used < 0 or used > entries:
        return ST_INVARIANT
    if top < PAGE_HEADER_WORDS or top > page_words - entries:
        return ST_INVARIANT
    total = page_count_pieces(mem, frame, page_words)
    if total < 0 or mem[frame + DP_FREE] != page_words - PAGE_HEADER_WORDS - total - entries:
        return ST_INVARIANT
    if used == 0 and (entries != 0 or top != PAGE_HEADER_WORDS):
        return ST_INVARIANT
    if entries > 0 and (mem[frame + page_words - entries] & ENTRY_FREE) != 0:
        return ST_INVARIANT
    # A list that reaches its end after exactly as many free slots as there are has each of them once.
    current = mem[frame + DP_FREE_ENTRY]
    for _ in range(entries - used):
        if current < 1 or current > entries:
            return ST_INVARIANT
        word = mem[frame + page_words - current]
        if (word & ENTRY_FREE) == 0:
            return ST_INVARIANT
        current = word & ENTRY_MASK
    return OK if current == 0 else ST_INVARIANT


@kernel("int64(int64[::1], int64, int64)")
def check_page(mem, frame, page_words):
    """OK if a page's header and directory are consistent, else ST_INVARIANT; scribbles on the pool's scratch page.

    For a page outside the arena: any array whose word S_POOL + P_SCRATCH has the address of 4,096 words to use.
    """
    if frame < 0 or page_words < 0 or frame + page_words > mem.size:
        return ST_INVARIANT
    return page_check(mem, frame, page_words)
