"""Node restart, the live node: a scan for changes after an epoch, slot by slot (docs/internals/node-group.md).

The scan holds the GIL, since it reads shared rows. `node_join_kernels.py` has the side of the joiner.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.lcp_kernels import whole_entry_words
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.store import node_copy_layout as M


# --- the live node --------------------------------------------------------------------------------
@helper
def note_empty(out, state, first, stop):
    """Note that the slots [first, stop) are empty: extend the range at state[N_RUN] to `stop`, or begin a range if
    that is negative. OK, or ST_SPACE - words needed if `out` is full.
    """
    if state[M.N_RUN] < 0:
        at = state[M.N_USED]
        if at + M.RANGE_WORDS > out.size:
            return A.ST_SPACE - M.RANGE_WORDS
        out[at] = -1 - first
        state[M.N_RUN] = at
        state[M.N_USED] = at + M.RANGE_WORDS
        state[M.N_RANGES] += 1
    out[state[M.N_RUN] + 1] = stop
    return A.OK


@helper
def is_changed(epoch, since):
    """Whether a slot of this epoch may have changed after `since`; 0: the epoch is unknown."""
    return epoch > since or epoch == 0


@helper
def scan_slots(mem, fragment, base, since, with_empty, limit, out, state):
    """Scan the used slots of one page from the position on; OK past the last, ST_MORE, or ST_SPACE - words needed."""
    row_words = mem[fragment + A.F_ROW_WORDS]
    emptied = mem[base + A.PG_EMPTIED]
    fresh = mem[base + A.PG_FRESH]
    position = state[M.N_POSITION]
    slot = position & 0xFFFF
    looked = state[M.N_LOOKED]
    status = A.OK
    while slot < fresh:
        if looked >= limit:
            status = A.ST_MORE
            break
        row = base + A.PAGE_HEADER_WORDS + slot * row_words
        epoch = word_at(mem, row + 1)
        if (word_at(mem, row) >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE:
            if is_changed(epoch, since):
                need = entry_words(mem, fragment, row, False)
                if state[M.N_USED] + need > out.size:
                    status = A.ST_SPACE - need
                    break
                rowid = (position >> 16) << 16 | slot
                state[M.N_USED] += write_entry(mem, out, fragment, rowid, row, False, out, state[M.N_USED])
                state[M.N_ROWS] += 1
            state[M.N_RUN] = -1
        elif with_empty and is_changed(max(epoch, emptied), since):
            rowid = (position >> 16) << 16 | slot
            status = note_empty(out, state, rowid, rowid + 1)
            if status != A.OK:
                break
        slot += 1
        looked += 1
    state[M.N_LOOKED] = looked
    state[M.N_POSITION] = (position >> 16) << 16 | slot
    return status


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1], int64[::1])")
def scan_changed(mem, fragment, since, with_empty, limit, out, state):
    """Write changes after epoch `since` in the slots of a fragment from ROWID state[N_POSITION] on to out, visiting
    about `limit` slots: committed rows and, with_empty, ranges of empty slots.

    A range may cover empty slots that have not changed. OK past the last possible ROWID, ST_MORE, ST_SPACE - words
    needed if out is full, or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    state[M.N_RUN] = -1
    state[M.N_LOOKED] = 0
    while state[M.N_POSITION] >> 16 < mem[fragment + A.F_PAGES]:
        if state[M.N_LOOKED] >= limit:
            return A.ST_MORE
        logical = state[M.N_POSITION] >> 16
        page = map_get(mem, fragment, logical)
        past = (logical + 1) << 16
        if page > 0:
            base = page << A.PAGE_SHIFT
            status = scan_slots(mem, fragment, base, since, with_empty, limit, out, state)
            if status != A.OK:
                return status
            emptied = mem[base + A.PG_EMPTIED]
            is_full = state[M.N_POSITION] & 0xFFFF >= mem[fragment + A.F_SLOTS]
        else:
            emptied = -1 - page if page < 0 else 0
            is_full = False
        if with_empty and not is_full and is_changed(emptied, since):
            status = note_empty(out, state, state[M.N_POSITION], past)
            if status != A.OK:
                return status
        state[M.N_LOOKED] += 1
        state[M.N_POSITION] = past
    if with_empty and state[M.N_POSITION] < M.ROWID_END:
        status = note_empty(out, state, state[M.N_POSITION], M.ROWID_END)
        if status != A.OK:
            return status
    state[M.N_POSITION] = M.ROWID_END
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1], int64[::1], int64[::1])", nogil=True)
def list_items(words, stop, fixed, has_var, has_disk, images, ranges, state):
    """List the offsets of row images in words[:stop], and the ranges as first ROWID and the ROWID after the last.
    has_disk: whether rows have disk parts. Counts are in state[N_ROWS] and state[N_RANGES]. OK, below ST_SPACE if
    images or ranges are full, or ST_INVARIANT at state[N_NEXT].
    """
    at = 0
    while at < stop:
        state[M.N_NEXT] = at
        if words[at] < 0:
            if state[M.N_RANGES] * M.RANGE_WORDS + M.RANGE_WORDS > ranges.size:
                return A.ST_SPACE - M.RANGE_WORDS
            if at + M.RANGE_WORDS > stop:
                return A.ST_INVARIANT
            ranges[state[M.N_RANGES] * M.RANGE_WORDS] = -1 - words[at]
            ranges[state[M.N_RANGES] * M.RANGE_WORDS + 1] = words[at + 1]
            state[M.N_RANGES] += 1
            at += M.RANGE_WORDS
        else:
            size, _ = whole_entry_words(fixed, has_var, has_disk, words, at, stop)
            if size < 0:
                return A.ST_INVARIANT
            if state[M.N_ROWS] >= images.size:
                return A.ST_SPACE - 1
            images[state[M.N_ROWS]] = at + A.ENTRY_WORDS
            state[M.N_ROWS] += 1
            at += size
    state[M.N_NEXT] = stop
    return A.OK
