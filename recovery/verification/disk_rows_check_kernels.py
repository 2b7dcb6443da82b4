"""Kernels that verify disk columns: pages and rows refer to each other, and to nothing else.

A page is checked at one instant, under the GIL, with the rows of all its pieces. Valid rows are marked, one bit for
each ROWID; rows that have no mark at the end are checked one by one. A locked row may be in the middle of a commit in
slices, so missing pieces of it are not a fault.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk import cache_layout as C
from tidemark.engine.disk import disk_layout as D
from tidemark.engine.disk.cache_kernels import find_entry, frame_of
from tidemark.engine.disk.page_kernels import page_check, page_entries, page_piece, page_piece_words
from tidemark.engine.disk.parts_kernels import LINKED_WORDS, chunk_words, chunks_of, fragment_owner, part_on_page
from tidemark.engine.disk.space_kernels import space_word, unused_words
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.rows_kernels import is_live, map_get, row_address
from tidemark.engine.txn.disk_changes_kernels import reference_at
from tidemark.recovery.verification import disk_rows_check_layout as W


@helper
def mark_at(mem, fragment, rowid):
    return (rowid >> 16) * mem[fragment + A.F_SLOTS] + (rowid & 0xFFFF)


@helper
def piece_fault(mem, fragment, rowid, row, reference):
    """Return the fault of a first piece of a row; OK if there is none."""
    if row == 0 or not is_live(mem, row) or mem[reference_at(mem, fragment, row)] != reference:
        return W.DISK_ROW
    address, _, words, _, _ = part_on_page(mem, fragment, rowid, reference)
    if address == 0:
        return W.DISK_LENGTH
    fixed = mem[fragment + A.F_DISK_WORDS]
    return W.DISK_LENGTH if fixed > 0 and words != fixed - D.PIECE_HEADER_WORDS else A.OK


@helper
def check_piece(mem, fragment, reference, piece, size, marks, chunks, chains, state):
    """Check one piece; count it and mark its row. Return OK or the fault."""
    space = mem[fragment + A.F_TABLESPACE]
    rowid = mem[piece] & D.PIECE_ROWID_MASK
    state[W.CD_WHERE] = rowid
    row = row_address(mem, fragment, rowid)
    is_busy = row != 0 and mem[row] & A.LOCK_MASK != 0
    if mem[piece] & D.PIECE_CHUNK != 0:
        chunks[state[W.CD_CHUNKS]] = reference
        chunks[state[W.CD_CHUNKS] + 1] = rowid
        state[W.CD_CHUNKS] += 2
        if size != mem[space + C.TS_PAYLOAD] - 1:
            return W.DISK_LENGTH
        return A.OK if is_busy or (row != 0 and is_live(mem, row)) else W.DISK_ROW
    state[W.CD_PIECES] += 1
    fault = piece_fault(mem, fragment, rowid, row, reference)
    if fault == A.OK:
        bit = mark_at(mem, fragment, rowid)
        if bit >> 5 < marks.size:
            marks[bit >> 5] |= 1 << (bit & 31)
        if mem[piece] & D.PIECE_CHAINED != 0:
            chains[state[W.CD_CHAINS]] = rowid
            state[W.CD_CHAINS] += 1
        return A.OK
    return A.OK if is_busy else fault


@helper
def header_fault(mem, fragment, frame, page, page_words):
    """Return the fault of a page, apart from its pieces; OK if there is none."""
    if mem[frame + D.DP_PAGE] != page:
        return W.DISK_PLACE
    if mem[frame + D.DP_OWNER] != fragment_owner(mem, fragment):
        return W.DISK_OWNER
    if page_check(mem, frame, page_words) != A.OK:
        return W.DISK_DIRECTORY
    at = space_word(mem, page)
    if at == 0 or unused_words(mem, mem[at]) != mem[frame + D.DP_FREE]:
        return W.DISK_FREE
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def check_disk_page(mem, fragment, page, marks, chunks, chains, state):
    """Verify a page of the fragment, and each piece on it against its row. marks: 32 rows per word.

    state: words CD_… of `disk_check_layout.py`. Return OK, ST_PAGE if the page is not in the cache, ST_SPACE if
    `chunks` or `chains` may be too small for a page, or a fault (call again to continue).
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    space = mem[fragment + A.F_TABLESPACE]
    page_words = mem[space + C.TS_PAGE_WORDS]
    frame = frame_of(mem, mem[space + C.TS_CACHE], page)
    if frame == 0:
        return A.ST_PAGE
    if state[W.CD_CHUNKS] + 2 * page_words > chunks.size or state[W.CD_CHAINS] + page_words > chains.size:
        return A.ST_SPACE
    flags = mem[find_entry(mem, mem[space + C.TS_CACHE], page) + C.CE_FLAGS]
    state[W.CD_LSN] = mem[frame + D.DP_LSN]
    state[W.CD_BUSY] = 1 if flags & (C.CE_IS_DIRTY | C.CE_WRITING) != 0 else 0
    if state[W.CD_SLOT] == 0:
        state[W.CD_WHERE] = -1
        fault = header_fault(mem, fragment, frame, page, page_words)
        if fault != A.OK:
            # Pieces of another page or owner cannot be judged here; a wrong count of free words does not affect pieces.
            state[W.CD_SLOT] = 1 if fault == W.DISK_FREE else page_words
            return fault
        state[W.CD_SLOT] = 1
    while state[W.CD_SLOT] <= page_entries(mem, frame, page_words):
        slot = state[W.CD_SLOT] - 1
        state[W.CD_SLOT] += 1
        piece = page_piece(mem, frame, page_words, slot)
        if piece != 0:
            size = page_piece_words(mem, frame, page_words, slot)
            fault = check_piece(mem, fragment, page << C.SLOT_BITS | slot, piece, size, marks, chunks, chains, state)
            if fault != A.OK:
                return fault
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])")
def rows_not_marked(mem, fragment, limit, marks, rowids, state):
    """List the ROWIDs of committed rows without a mark, from state[0] on, examining about `limit` slots.

    state: [next ROWID, ROWIDs found, committed rows seen]. Return OK at the end, ST_MORE, ST_SPACE (`rowids` full).
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    looked = 0
    while state[0] >> 16 < mem[fragment + A.F_PAGES]:
        if looked >= limit:
            return A.ST_MORE
        if state[1] >= rowids.size:
            return A.ST_SPACE
        rowid = state[0]
        looked += 1
        page = map_get(mem, fragment, rowid >> 16)
        base = page << A.PAGE_SHIFT
        if page <= 0 or rowid & 0xFFFF >= mem[base + A.PG_FRESH]:
            state[0] = ((rowid >> 16) + 1) << 16
            continue
        state[0] = rowid + 1
        row = base + A.PAGE_HEADER_WORDS + (rowid & 0xFFFF) * mem[fragment + A.F_ROW_WORDS]
        if not is_live(mem, row):
            continue
        state[2] += 1
        bit = mark_at(mem, fragment, rowid)
        if bit >> 5 >= marks.size or (marks[bit >> 5] >> (bit & 31)) & 1 == 0:
            rowids[state[1]] = rowid
            state[1] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])")
def check_disk_row(mem, fragment, rowid, chunks, state):
    """Verify a row's disk part from the row's side: its piece, then every chunk.

    state: [reference at the first call, next link, stamp, chunks done (references in `chunks`), page needed, chunks
    expected], all zero before that call. Return OK, with state[0] 0 if there is no such row; ST_PAGE: load page
    state[4] and call again; ST_MORE: the row was changed meanwhile, or is locked: start again; ST_SPACE: `chunks` needs
    state[5] words; a fault (DISK_LOST, DISK_LENGTH, DISK_CHAIN) with its page in state[4].
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    row = row_address(mem, fragment, rowid)
    if row == 0 or not is_live(mem, row):
        state[0] = 0
        return A.OK
    space = mem[fragment + A.F_TABLESPACE]
    reference = mem[reference_at(mem, fragment, row)]
    if state[0] != 0 and state[0] != reference:
        return A.ST_MORE
    is_busy = mem[row] & A.LOCK_MASK != 0
    if state[0] == 0:
        state[4] = reference >> C.SLOT_BITS
        if reference <= 0 or space_word(mem, reference >> C.SLOT_BITS) == 0:
            return W.DISK_LOST
        if frame_of(mem, mem[space + C.TS_CACHE], reference >> C.SLOT_BITS) == 0:
            return A.ST_PAGE
        address, _, words, link, stamp = part_on_page(mem, fragment, rowid, reference)
        fixed = mem[fragment + A.F_DISK_WORDS]
        if address == 0 or (fixed > 0 and words != fixed - D.PIECE_HEADER_WORDS):
            return A.ST_MORE if is_busy else W.DISK_LOST if address == 0 else W.DISK_LENGTH
        state[5] = chunks_of(mem, space, words)
        if state[5] > chunks.size:
            return A.ST_SPACE
        state[0] = reference
        state[1] = link
        state[2] = stamp
        state[3] = 0
    return check_chunks(mem, fragment, rowid, is_busy, chunks, state)


@helper
def check_chunks(mem, fragment, rowid, is_busy, chunks, state):
    """Check the chunks of a chained part, from state[1] on; see `check_disk_row`."""
    space = mem[fragment + A.F_TABLESPACE]
    page_words = mem[space + C.TS_PAGE_WORDS]
    while state[3] < state[5]:
        link = state[1]
        state[4] = link >> C.SLOT_BITS
        if link <= 0 or space_word(mem, link >> C.SLOT_BITS) == 0:
            return A.ST_MORE if is_busy else W.DISK_CHAIN
        frame = frame_of(mem, mem[space + C.TS_CACHE], link >> C.SLOT_BITS)
        if frame == 0:
            return A.ST_PAGE
        piece = page_piece(mem, frame, page_words, link & C.SLOT_MASK)
        size = page_piece_words(mem, frame, page_words, link & C.SLOT_MASK)
        is_ours = piece != 0 and size == LINKED_WORDS + chunk_words(mem, space)
        if not is_ours or mem[piece] != rowid | D.PIECE_CHUNK or mem[piece + 2] != state[2]:
            return A.ST_MORE if is_busy else W.DISK_CHAIN
        chunks[state[3]] = link
        state[3] += 1
        state[1] = mem[piece + 1]
    if state[1] != 0:
        return A.ST_MORE if is_busy else W.DISK_CHAIN
    return A.OK
