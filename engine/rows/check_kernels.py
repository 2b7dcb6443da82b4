"""Kernels that verify a live fragment: rows and index agree, and every reference has a valid target.

Each call checks a bounded number of slots and holds the GIL, so that rows do not change meanwhile. It follows a
reference only after checking that it points into the arena. It returns a fault and its place; the caller continues
after that place.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows import check_layout as W
from tidemark.engine.rows.primary_kernels import row_tag
from tidemark.engine.rows.rows_kernels import compact_rowid, map_get
from tidemark.engine.rows.segments_kernels import TAG_PARTS, segment_of, tag_part
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.schema import row_layout as R


@helper
def page_is_sound(mem, fragment, page, logical):
    """Whether a fixed page is the one its map entry names, with the right count of used slots and a valid side page."""
    if page >= mem.size >> A.PAGE_SHIFT:
        return False
    base = page << A.PAGE_SHIFT
    fresh = mem[base + A.PG_FRESH]
    if mem[base + A.PG_FRAGMENT] != fragment or mem[base + A.PG_LOGICAL] != logical:
        return False
    if fresh < 0 or fresh > mem[fragment + A.F_SLOTS]:
        return False
    used = 0
    for slot in range(fresh):
        head = mem[base + A.PAGE_HEADER_WORDS + slot * mem[fragment + A.F_ROW_WORDS]]
        used += 1 if (head >> A.STATE_SHIFT) & A.STATE_MASK != A.FREE else 0
    side = mem[base + A.PG_USED] >> A.SIDE_SHIFT
    if side != 0 and (mem[fragment + A.F_VAR_SINCE] == 0 or side < 0 or side >= mem.size >> A.PAGE_SHIFT):
        return False
    return used == mem[base + A.PG_USED] & A.USED_MASK


@helper
def chunk_is_sound(mem, fragment, reference):
    """Whether a reference is to a used chunk inside a var page of the fragment."""
    page = reference >> 16
    if page <= 0 or page >= mem.size >> A.PAGE_SHIFT:
        return False
    base = page << A.PAGE_SHIFT
    entry = reference & 0xFFFF
    if (
        mem[base + A.VP_FRAGMENT] != fragment
        or entry >= mem[base + A.VP_ENTRIES]
        or mem[base + A.VP_ENTRIES] >= A.PAGE_WORDS
    ):
        return False
    word = mem[base + A.PAGE_WORDS - 1 - entry]
    start = word & 0xFFFF
    end = start + ((word >> 16) & 0xFFFF)
    if word & A.VAR_ENTRY_FREE or start < A.VAR_HEADER_WORDS or end > A.PAGE_WORDS - mem[base + A.VP_ENTRIES]:
        return False
    return end - start > (1 if word & A.VAR_CHAINED else 0)


@helper
def ends_are_sound(mem, at, chunk_words, total):
    """Whether the end offsets of a var part never decrease and stay inside it. They must be in its first chunk."""
    count = (mem[at] >> R.VAR_COUNT_SHIFT) & R.VAR_COUNT_MASK
    first = 1 + ((mem[at] >> R.VAR_KEY_WORDS_SHIFT) & R.VAR_KEY_WORDS_MASK)
    bytes_from = first + ((count + 1) >> 1)
    if mem[at] < 0 or bytes_from > total or bytes_from > chunk_words:
        return False
    before = 0
    for i in range(count):
        end = (mem[at + first + (i >> 1)] >> ((i & 1) << 5)) & R.VAR_END_MASK
        if end < before or end > (total - bytes_from) * 8:
            return False
        before = end
    return True


@helper
def var_is_sound(mem, fragment, reference):
    """Whether a var part is sound: every chunk, the sum of their words, and the end offsets."""
    total = 0
    done = 0
    while reference != 0:
        if not chunk_is_sound(mem, fragment, reference):
            return False
        base = (reference >> 16) << A.PAGE_SHIFT
        word = mem[base + A.PAGE_WORDS - 1 - (reference & 0xFFFF)]
        chained = 1 if word & A.VAR_CHAINED else 0
        at = base + (word & 0xFFFF)
        words = ((word >> 16) & 0xFFFF) - chained
        if done == 0:
            total = mem[at + chained] & R.VAR_WORDS_MASK
            if not ends_are_sound(mem, at + chained, words, total):
                return False
        done += words
        if done > total:
            return False
        reference = mem[at] if chained else 0
    return done == total and total > 0


@helper
def entries_of(mem, fragment, tag, rowid):
    """Return the number of index entries that refer to a row."""
    if mem[fragment + A.F_SEGMENTS] == 0:
        return 0
    segment = segment_of(mem, fragment, tag)
    entry = (A.ENTRY_USED | tag) << A.ENTRY_TAG_SHIFT | compact_rowid(rowid)
    found = 0
    for part in range(TAG_PARTS):
        at, length = tag_part(mem, segment, tag, part)
        for i in range(at, at + length):
            found += 1 if mem[i] == entry else 0
    return found


@helper
def lock_is_sound(mem, fragment, rowid, head, state):
    """Whether a row's exclusive lock refers to an operation on that row, and a slot that needs a lock has one."""
    lock = head & A.LOCK_MASK
    if lock == 0:
        return state != A.RESERVED
    if state == A.FREE:
        return False
    if lock & A.LOCK_SHARED:
        return state == A.LIVE
    operation = (lock & A.LOCK_OP_MASK) << 3
    if operation + A.O_ROWID >= mem.size or mem[operation + A.O_FRAGMENT] != fragment:
        return False
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    return first <= rowid <= first + max(0, (mem[operation + A.O_ROWID] >> A.COUNT_SHIFT) - 1)


@helper
def row_fault(mem, fragment, rowid, row, newest_epoch):
    """Return the fault of a slot; OK if it has none."""
    head = mem[row]
    state = (head >> A.STATE_SHIFT) & A.STATE_MASK
    if state != A.FREE and state != A.RESERVED and state != A.LIVE:
        return W.FAULT_STATE
    if not lock_is_sound(mem, fragment, rowid, head, state):
        return W.FAULT_LOCK
    if state == A.FREE:
        return A.OK
    if state == A.LIVE and (mem[row + 1] < 0 or mem[row + 1] > newest_epoch):
        return W.FAULT_EPOCH
    if mem[fragment + A.F_HAS_VAR]:
        reference = var_of(mem, fragment, row)
        may_be_none = reference == 0 and mem[fragment + A.F_VAR_SINCE] != 0
        if not may_be_none and not var_is_sound(mem, fragment, reference):
            return W.FAULT_VAR
    if entries_of(mem, fragment, row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED]), rowid) != 1:
        return W.FAULT_INDEX
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64[::1])")
def check_rows(mem, fragment, limit, newest_epoch, state):
    """Verify about `limit` slots, from ROWID state[0] on.

    state: [ROWID where to continue, live rows seen, ROWID of the fault]. OK at the end, ST_MORE, ST_DROPPED, or a
    fault.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    looked = 0
    while state[0] >> 16 < mem[fragment + A.F_PAGES]:
        if looked >= limit:
            return A.ST_MORE
        rowid = state[0]
        page = map_get(mem, fragment, rowid >> 16)
        if rowid & 0xFFFF == 0 and page > 0:
            looked += mem[fragment + A.F_SLOTS] >> 3
            if not page_is_sound(mem, fragment, page, rowid >> 16):
                state[0] = ((rowid >> 16) + 1) << 16
                state[2] = rowid
                return W.FAULT_PAGE
        base = page << A.PAGE_SHIFT
        if page <= 0 or rowid & 0xFFFF >= mem[base + A.PG_FRESH]:
            state[0] = ((rowid >> 16) + 1) << 16
            looked += 1
            continue
        looked += 1
        state[0] = rowid + 1
        row = base + A.PAGE_HEADER_WORDS + (rowid & 0xFFFF) * mem[fragment + A.F_ROW_WORDS]
        fault = row_fault(mem, fragment, rowid, row, newest_epoch)
        if fault != A.OK:
            state[2] = rowid
            return fault
        state[1] += 1 if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE else 0
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def check_index(mem, fragment, limit, state):
    """Verify the counts of index segments from directory entry state[0] on, `limit` segments a call.

    state: [directory entry where to continue, -, place of the fault]. OK at the end, ST_MORE, ST_DROPPED, or a fault.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    counted = mem[fragment + A.F_ROWS] + mem[fragment + A.F_RESERVED_ROWS]
    if state[0] == 0 and mem[fragment + A.F_INDEX_COUNT] != counted:
        state[0] = 1 << mem[fragment + A.F_INDEX_DEPTH]
        state[2] = 0
        return W.FAULT_COUNT
    looked = 0
    while mem[fragment + A.F_SEGMENTS] > 0 and state[0] < 1 << mem[fragment + A.F_INDEX_DEPTH]:
        if looked >= limit:
            return A.ST_MORE
        number = state[0]
        state[0] = number + 1
        segment = mem[mem[fragment + A.F_DIRECTORY + (number >> 9)] + (number & 511)]
        if number >> mem[segment + A.SEG_DEPTH] != 0:
            continue  # several directory entries may refer to one segment; check it at the first only
        looked += 1
        count = mem[segment + A.SEG_OVERFLOW_COUNT]
        for block in range(min(mem[segment + A.SEG_BLOCKS], A.SEG_BLOCKS_MAX)):
            at = mem[segment + A.SEG_BLOCK + block]
            for i in range(A.BLOCK_WORDS):
                count += 1 if mem[at + i] != 0 else 0
        if count != mem[segment + A.SEG_COUNT]:
            state[2] = number
            return W.FAULT_SEGMENT
    return A.OK
