"""Disk parts on pages: planned by an operation, written, replaced and freed by a commit (D3, D7).

A disk part is one piece, or a first piece and chunks of whole pages. Every change sets the page's LSN to that of its
UNDO record and settles the free words. The page must be in the cache; callers check this with `is_in_memory`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import cache_dirtied, frame_of
from tidemark.engine.disk.page_kernels import page_free, page_piece, page_piece_words, page_take
from tidemark.engine.disk.space_kernels import space_is_fresh, space_release, space_reserve, space_word
from tidemark.engine.disk.space_kernels import space_settle as settle
from tidemark.engine.disk.undo_kernels import (
    GROUP_SHARE_WORDS,
    RECORD_SHARE_WORDS,
    undo_append,
    undo_has_room,
    undo_reserve,
)
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_cell, take_cell

LINKED_WORDS = D.PIECE_HEADER_WORDS + D.PIECE_LINK_WORDS


@helper
def fragment_owner(mem, fragment):
    """Return the owner word of a fragment's pages."""
    return mem[fragment + A.F_TABLE] | mem[fragment + A.F_NUMBER] << D.OWNER_FRAGMENT_SHIFT


@helper
def chunk_words(mem, space):
    """Return the words of a disk part that one chunk holds: a whole page without its slot and links."""
    return mem[space + C.TS_PAYLOAD] - 1 - LINKED_WORDS


@helper
def chunks_of(mem, space, words):
    """Return the number of chunks of a disk part; 0 if it fits one piece."""
    if D.PIECE_HEADER_WORDS + words < mem[space + C.TS_PAYLOAD]:
        return 0
    return (words - 1) // chunk_words(mem, space)


@helper
def first_piece_words(mem, space, words):
    """Return the words of the first piece of a disk part."""
    chunks = chunks_of(mem, space, words)
    if chunks == 0:
        return D.PIECE_HEADER_WORDS + words
    return LINKED_WORDS + words - chunks * chunk_words(mem, space)


# --- planning -------------------------------------------------------------------------------------
@helper
def plan_part(mem, fragment, words, near):
    """Reserve pages for a disk part; returns (OK, plan), or (status, 0) with nothing reserved.

    plan: of one piece, its page << SLOT_BITS | SLOT_NONE; of a chained part, minus the address of its PL_ cell.
    """
    space = mem[fragment + A.F_TABLESPACE]
    chunks = chunks_of(mem, space, words)
    page = space_reserve(mem, fragment, first_piece_words(mem, space, words), near)
    if page < 0:
        return page, 0
    if chunks == 0:
        return A.OK, page << C.SLOT_BITS | C.SLOT_NONE
    cell = take_cell(mem)
    if cell == 0:
        space_release(mem, page, first_piece_words(mem, space, words))
        return A.ST_MEMORY, 0
    mem[cell + C.PL_PAGE] = page
    mem[cell + C.PL_CHUNK] = 0
    mem[cell + C.PL_CHUNKS] = chunks
    mem[cell + C.PL_STAMP] = mem[mem[A.S_UNDO] + C.U_LSN]
    for _ in range(chunks):
        chunk = space_reserve(mem, fragment, mem[space + C.TS_PAYLOAD] - 1, 0)
        if chunk < 0:
            unplan_part(mem, fragment, words, -cell)
            return chunk, 0
        mem[C.OP_CHAIN - mem[space_word(mem, chunk)]] = mem[cell + C.PL_CHUNK]
        mem[cell + C.PL_CHUNK] = chunk
    return A.OK, -cell


@helper
def unplan_part(mem, fragment, words, plan):
    """Release the reservations of `plan_part`; a plan of 0 has none."""
    space = mem[fragment + A.F_TABLESPACE]
    if plan > 0:
        space_release(mem, plan >> C.SLOT_BITS, first_piece_words(mem, space, words))
    elif plan < 0:
        space_release(mem, mem[C.PL_PAGE - plan], first_piece_words(mem, space, words))
        chunk = mem[C.PL_CHUNK - plan]
        while chunk != 0:
            after = mem[C.OP_CHAIN - mem[space_word(mem, chunk)]]
            space_release(mem, chunk, mem[space + C.TS_PAYLOAD] - 1)
            chunk = after
        free_cell(mem, -plan)


@helper
def reserve_undo_of(mem, txn, space, words, page, has_image):
    """Reserve room for the UNDO records of a disk part: of writing it, or with `has_image` of freeing it.
    Return OK, or ST_UNDO, perhaps with some of them reserved.

    page: of its first piece, 0 if unknown.
    """
    size = D.UNDO_RECORD_WORDS + (first_piece_words(mem, space, words) if has_image else 0)
    status = undo_reserve(mem, txn, size, page)
    size = D.UNDO_RECORD_WORDS + (mem[space + C.TS_PAYLOAD] if has_image else 0)
    for _ in range(chunks_of(mem, space, words)):
        if status == A.OK:
            status = undo_reserve(mem, txn, size, 0)
        if status == A.OK and has_image:
            # A slice of a commit may free a single old chunk, so this pays for a whole group's header and padding.
            status = undo_reserve(mem, txn, GROUP_SHARE_WORDS - RECORD_SHARE_WORDS, 0)
    return status


@helper
def restore_reserved(mem, txn, before):
    """Release the UNDO reservations of a failed operation; `before` is X_UNDO_WORDS at its start."""
    mem[mem[A.S_UNDO] + C.U_RESERVED] -= mem[txn + A.X_UNDO_WORDS] - before
    mem[txn + A.X_UNDO_WORDS] = before
    mem[txn + A.X_UNDO_PAGE] = 0


# --- pages of the commit --------------------------------------------------------------------------
@helper
def is_in_memory(mem, txn, fragment, page, words):
    """Return OK if a page is in the cache and the UNDO buffer has room for a record with `words` words of a piece; else
    ST_PAGE (X_PAGE is the page) or ST_UNDO.

    A wholly free page that is in the cache with a dropped table's content counts as missing: a hold must format it.
    """
    frame = frame_of(mem, mem[mem[fragment + A.F_TABLESPACE] + C.TS_CACHE], page)
    if frame == 0 or (mem[frame + D.DP_OWNER] != fragment_owner(mem, fragment) and space_is_fresh(mem, page) == 1):
        mem[txn + A.X_PAGE] = page
        return A.ST_PAGE
    if not undo_has_room(mem, D.UNDO_RECORD_WORDS + words):
        return A.ST_UNDO
    return A.OK


@helper
def new_piece(mem, fragment, page, words, epoch):
    """Allocate a piece, content undefined; returns (address, reference), or (0, 0) if the page has no room."""
    space = mem[fragment + A.F_TABLESPACE]
    cache = mem[space + C.TS_CACHE]
    frame = frame_of(mem, cache, page)
    slot = page_take(mem, frame, mem[space + C.TS_PAGE_WORDS], words)
    if slot < 0:
        return 0, 0
    reference = page << C.SLOT_BITS | slot
    lsn = undo_append(mem, D.UNDO_ALLOC, reference, fragment_owner(mem, fragment), epoch, mem, 0, 0)
    cache_dirtied(mem, cache, page, lsn)
    settle(mem, page, words, mem[frame + D.DP_FREE])
    return page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], slot), reference


@helper
def drop_piece(mem, fragment, reference, epoch):
    """Free a piece; OK or ST_INVARIANT."""
    space = mem[fragment + A.F_TABLESPACE]
    cache = mem[space + C.TS_CACHE]
    page_words = mem[space + C.TS_PAGE_WORDS]
    page = reference >> C.SLOT_BITS
    frame = frame_of(mem, cache, page)
    piece = page_piece(mem, frame, page_words, reference & C.SLOT_MASK)
    if piece == 0:
        return A.ST_INVARIANT
    words = page_piece_words(mem, frame, page_words, reference & C.SLOT_MASK)
    lsn = undo_append(mem, D.UNDO_FREE, reference, fragment_owner(mem, fragment), epoch, mem, piece, words)
    page_free(mem, frame, page_words, reference & C.SLOT_MASK)
    cache_dirtied(mem, cache, page, lsn)
    settle(mem, page, 0, mem[frame + D.DP_FREE])
    return A.OK if lsn >= 0 else A.ST_INVARIANT


@helper
def replace_piece(mem, fragment, reference, source, at, words, epoch):
    """Overwrite the only piece of a disk part of `words` words with source[at:]; OK or ST_INVARIANT."""
    space = mem[fragment + A.F_TABLESPACE]
    cache = mem[space + C.TS_CACHE]
    page_words = mem[space + C.TS_PAGE_WORDS]
    page = reference >> C.SLOT_BITS
    frame = frame_of(mem, cache, page)
    piece = page_piece(mem, frame, page_words, reference & C.SLOT_MASK)
    size = D.PIECE_HEADER_WORDS + words
    if piece == 0 or page_piece_words(mem, frame, page_words, reference & C.SLOT_MASK) != size:
        return A.ST_INVARIANT
    lsn = undo_append(mem, D.UNDO_UPDATE, reference, fragment_owner(mem, fragment), epoch, mem, piece, size)
    move_words(source, at, mem, piece + D.PIECE_HEADER_WORDS, words)
    cache_dirtied(mem, cache, page, lsn)
    settle(mem, page, 0, mem[frame + D.DP_FREE])
    return A.OK if lsn >= 0 else A.ST_INVARIANT


# --- whole disk parts -----------------------------------------------------------------------------
@helper
def write_chunks(mem, txn, fragment, rowid, plan, source, at, words, epoch):
    """Write the chunks of a planned chained part, from chunk X_CHUNK on; OK, ST_PAGE, ST_UNDO or ST_INVARIANT."""
    space = mem[fragment + A.F_TABLESPACE]
    size = chunk_words(mem, space)
    chunks = mem[C.PL_CHUNKS - plan]
    if mem[txn + A.X_CHUNK] == 0:
        mem[txn + A.X_LINK] = mem[C.PL_CHUNK - plan]
    start = at + words - chunks * size
    while mem[txn + A.X_CHUNK] < chunks:
        page = mem[txn + A.X_LINK]
        status = is_in_memory(mem, txn, fragment, page, 0)
        if status != A.OK:
            return status
        after = mem[C.OP_CHAIN - mem[space_word(mem, page)]]
        piece, reference = new_piece(mem, fragment, page, mem[space + C.TS_PAYLOAD] - 1, epoch)
        if piece == 0 or reference & C.SLOT_MASK != 0:
            return A.ST_INVARIANT
        mem[piece] = rowid | D.PIECE_CHUNK
        mem[piece + 1] = after << C.SLOT_BITS
        mem[piece + 2] = mem[C.PL_STAMP - plan]
        move_words(source, start + mem[txn + A.X_CHUNK] * size, mem, piece + LINKED_WORDS, size)
        mem[txn + A.X_CHUNK] += 1
        mem[txn + A.X_LINK] = after
    return A.OK


@helper
def write_first_piece(mem, fragment, rowid, plan, source, at, words, epoch):
    """Write the first piece of a planned part, whose page is in memory; returns its reference, 0 without room."""
    size = first_piece_words(mem, mem[fragment + A.F_TABLESPACE], words)
    page = plan >> C.SLOT_BITS if plan > 0 else mem[C.PL_PAGE - plan]
    piece, reference = new_piece(mem, fragment, page, size, epoch)
    if piece == 0:
        return 0
    if plan > 0:
        mem[piece] = rowid
        move_words(source, at, mem, piece + D.PIECE_HEADER_WORDS, words)
        return reference
    mem[piece] = rowid | D.PIECE_CHAINED
    mem[piece + 1] = mem[C.PL_CHUNK - plan] << C.SLOT_BITS
    mem[piece + 2] = mem[C.PL_STAMP - plan]
    move_words(source, at, mem, piece + LINKED_WORDS, size - LINKED_WORDS)
    free_cell(mem, -plan)
    return reference


@helper
def planned_page(mem, plan):
    """Return the page for the first piece of a planned part."""
    return plan >> C.SLOT_BITS if plan > 0 else mem[C.PL_PAGE - plan]


@helper
def drop_first_piece(mem, txn, fragment, reference, epoch):
    """Free the first piece of a part, whose page is in memory; X_LINK then points to its chunks. OK or ST_INVARIANT."""
    space = mem[fragment + A.F_TABLESPACE]
    frame = frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS)
    piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], reference & C.SLOT_MASK)
    if piece == 0:
        return A.ST_INVARIANT
    mem[txn + A.X_LINK] = mem[piece + 1] if mem[piece] & D.PIECE_CHAINED else 0
    mem[txn + A.X_FREEING] = 1
    return drop_piece(mem, fragment, reference, epoch)


@helper
def drop_chunks(mem, txn, fragment, epoch):
    """Free the chain of chunks that starts at X_LINK; OK, ST_PAGE, ST_UNDO or ST_INVARIANT."""
    space = mem[fragment + A.F_TABLESPACE]
    while mem[txn + A.X_LINK] != 0:
        page = mem[txn + A.X_LINK] >> C.SLOT_BITS
        status = is_in_memory(mem, txn, fragment, page, mem[space + C.TS_PAYLOAD])
        if status != A.OK:
            return status
        frame = frame_of(mem, mem[space + C.TS_CACHE], page)
        piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], mem[txn + A.X_LINK] & C.SLOT_MASK)
        if piece == 0 or not mem[piece] & D.PIECE_CHUNK:
            return A.ST_INVARIANT
        after = mem[piece + 1]
        status = drop_piece(mem, fragment, mem[txn + A.X_LINK], epoch)
        if status != A.OK:
            return status
        mem[txn + A.X_LINK] = after
    mem[txn + A.X_FREEING] = 0
    return A.OK


@helper
def part_on_page(mem, fragment, rowid, reference):
    """Return where a disk part starts on its page, which is in the cache: (address, words there, total words, link,
    stamp).

    An address of 0: the page has no such piece, which is damage.
    """
    space = mem[fragment + A.F_TABLESPACE]
    frame = frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS)
    piece = page_piece(mem, frame, mem[space + C.TS_PAGE_WORDS], reference & C.SLOT_MASK)
    size = page_piece_words(mem, frame, mem[space + C.TS_PAGE_WORDS], reference & C.SLOT_MASK)
    if (
        piece == 0
        or size <= D.PIECE_HEADER_WORDS
        or mem[piece] & D.PIECE_ROWID_MASK != rowid
        or mem[piece] & D.PIECE_CHUNK
    ):
        return 0, 0, 0, 0, 0
    if not mem[piece] & D.PIECE_CHAINED:
        words = mem[piece + D.PIECE_HEADER_WORDS] & A.VAR_WORDS_MASK
        if words != size - D.PIECE_HEADER_WORDS:
            return 0, 0, 0, 0, 0
        return piece + D.PIECE_HEADER_WORDS, words, words, 0, 0
    if size <= LINKED_WORDS:
        return 0, 0, 0, 0, 0
    words = mem[piece + LINKED_WORDS] & A.VAR_WORDS_MASK
    if first_piece_words(mem, space, words) != size:
        return 0, 0, 0, 0, 0
    return piece + LINKED_WORDS, size - LINKED_WORDS, words, mem[piece + 1], mem[piece + 2]


@helper
def read_chain(mem, fragment, rowid, link, stamp, out, at, stop, is_copied):
    """Copy the chunks linked from `link` to out[at:stop], or only check them. Return (OK, or ST_PAGE if one is not in
    memory, or ST_DAMAGED; the link and the place in `out` where it stopped).
    """
    space = mem[fragment + A.F_TABLESPACE]
    page_words = mem[space + C.TS_PAGE_WORDS]
    size = chunk_words(mem, space)
    while at < stop:
        if link == 0 or at + size > stop:
            return A.ST_DAMAGED, link, at
        frame = frame_of(mem, mem[space + C.TS_CACHE], link >> C.SLOT_BITS)
        if frame == 0:
            return A.ST_PAGE, link, at
        piece = page_piece(mem, frame, page_words, link & C.SLOT_MASK)
        if piece == 0 or page_piece_words(mem, frame, page_words, link & C.SLOT_MASK) != LINKED_WORDS + size:
            return A.ST_DAMAGED, link, at
        is_chunk = mem[piece] & D.PIECE_CHUNK != 0 and mem[piece] & D.PIECE_ROWID_MASK == rowid
        if not is_chunk or mem[piece + 2] != stamp:
            return A.ST_DAMAGED, link, at
        if is_copied:
            move_words(mem, piece + LINKED_WORDS, out, at, size)
        at += size
        link = mem[piece + 1]
    return A.OK, link, at
