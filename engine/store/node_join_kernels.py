"""Node restart on the joiner: slices and groups of a live node, on private memory (docs/internals/node-group.md).

These kernels change only epochs and the position of the copy. They find the rows that must be removed first,
and build the records that the strict replay of REDO applies.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.records_kernels import fragment_of, is_operation, record_at, record_has_var, rows_of
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.lcp_kernels import checked_disk_words, checked_image_words, whole_entry_words
from tidemark.engine.rows.primary_kernels import entry_rowid, image_key, index_find, key_equals, tag_of
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.store import node_copy_layout as M
from tidemark.engine.store.replay_kernels import live_row

_entry_table = helper(E.entry_table)
_entry_fragment = helper(E.entry_fragment)
_pack_kind = helper(L.pack_kind)


# --- the joiner: slices ---------------------------------------------------------------------------
@helper
def item_words(mem, fragment, words, at, stop):
    """Return (words of the item at words[at:stop], -1 if it is invalid for this fragment; words of its image without
    disk part, 0 for a range).
    """
    if words[at] < 0:
        if at + M.RANGE_WORDS > stop or not 0 <= -1 - words[at] < words[at + 1] <= M.ROWID_END:
            return -1, 0
        return M.RANGE_WORDS, 0
    size, part = whole_entry_words(
        mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_HAS_VAR], mem[fragment + A.F_HAS_DISK], words, at, stop
    )
    if size < 0 or words[at] & 0xFFFF >= mem[fragment + A.F_SLOTS]:
        return -1, 0
    if _entry_table(words[at + 2]) != mem[fragment + A.F_TABLE]:
        return -1, 0
    if _entry_fragment(words[at + 2]) != mem[fragment + A.F_NUMBER]:
        return -1, 0
    first, key_words = image_key(
        words, at + A.ENTRY_WORDS, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS]
    )
    if first + key_words > at + size:
        return -1, 0
    return size, part


@helper
def note_row(out, state, rowid):
    """Note a row by its ROWID; OK, or ST_SPACE - 1 if out is full."""
    if state[M.N_USED] >= out.size:
        return A.ST_SPACE - 1
    out[state[M.N_USED]] = rowid
    state[M.N_USED] += 1
    return A.OK


@helper
def rows_in_range(mem, fragment, first, stop, out, state):
    """Note every row at the slots [first, stop)."""
    for logical in range(first >> 16, min(mem[fragment + A.F_PAGES], (stop + 0xFFFF) >> 16)):
        page = map_get(mem, fragment, logical)
        if page > 0:
            begin = max(first, logical << 16) & 0xFFFF
            end = mem[(page << A.PAGE_SHIFT) + A.PG_FRESH]
            if stop >> 16 == logical:
                end = min(end, stop & 0xFFFF)
            for slot in range(begin, end):
                rowid = logical << 16 | slot
                if live_row(mem, fragment, rowid) != 0 and note_row(out, state, rowid) != A.OK:
                    return A.ST_SPACE - 1
    return A.OK


@helper
def rowid_of_key(mem, fragment, words, image):
    """Return the ROWID of the row with the key of an image, -1 if there is none."""
    first, key_words = image_key(words, image, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS])
    tag = tag_of(words, first, key_words, mem[fragment + A.F_INDEX_SEED])
    entry = index_find(mem, fragment, tag, words, first, key_words)
    return entry_rowid(mem, entry) if entry != 0 else -1


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def find_conflicting_rows(mem, fragment, words, stop, out, state):
    """Write to `out` the ROWIDs of the rows that must be removed before the slice words[:stop] can be applied, possibly
    with duplicates: rows in its ranges, rows with another key than the slice has for their slot, and rows in other
    slots with a key of the slice.

    state[N_POSITION]: first ROWID of the slice. OK; below ST_SPACE if out is too small; ST_INVARIANT for an invalid
    item at state[N_NEXT]; ST_DUPLICATE for a key that a slot copied before has; ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    at = 0
    last = state[M.N_POSITION] - 1
    while at < stop:
        state[M.N_NEXT] = at
        size, part = item_words(mem, fragment, words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        status = A.OK
        rowid = words[at] if words[at] >= 0 else -1 - words[at]
        if rowid <= last:
            return A.ST_INVARIANT
        if part == 0:
            status = rows_in_range(mem, fragment, rowid, words[at + 1], out, state)
            last = words[at + 1] - 1
        else:
            image = at + A.ENTRY_WORDS
            last = rowid
            row = live_row(mem, fragment, rowid)
            if row != 0:
                first, count = image_key(words, image, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS])
                if not key_equals(mem, fragment, row, words, first, count):
                    status = note_row(out, state, rowid)
            other = rowid_of_key(mem, fragment, words, image)
            if other >= 0 and other != rowid:
                if other < state[M.N_POSITION]:
                    return A.ST_DUPLICATE
                if status == A.OK:
                    status = note_row(out, state, other)
        if status != A.OK:
            return status
        at += size
    state[M.N_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64[::1], int64[::1])", nogil=True)
def records_of_slice(mem, fragment, words, stop, identity, out, state):
    """After conflicting rows are removed, write the records that apply the rows of the slice words[:stop]: UPDATE
    where the row exists, else INSERT. identity: word 1 of each. Counts are in state[N_USED] and state[N_ROWS].

    OK; ST_SPACE - words needed if out is too small; ST_INVARIANT at state[N_NEXT]; ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    at = 0
    while at < stop:
        state[M.N_NEXT] = at
        size, part = item_words(mem, fragment, words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if part > 0:
            to = state[M.N_USED]
            need = L.OPERATION_WORDS + size - A.ENTRY_WORDS
            if to + need > out.size:
                return A.ST_SPACE - need
            kind = L.KIND_UPDATE if live_row(mem, fragment, words[at]) != 0 else L.KIND_INSERT
            out[to] = _pack_kind(kind, 0, need)
            out[to + 1] = identity
            out[to + 2] = words[at] | 1 << A.COUNT_SHIFT
            out[to + 3] = (words[at + 2] & E.ENTRY_AUTHOR_MASK) << L.AUTHOR_SHIFT
            move_words(words, at + A.ENTRY_WORDS, out, to + L.OPERATION_WORDS, size - A.ENTRY_WORDS)
            state[M.N_USED] = to + need
            state[M.N_ROWS] += 1
        at += size
    state[M.N_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64)", nogil=True)
def stamp_slice(mem, fragment, words, stop):
    """Set the epochs of the rows of the applied slice words[:stop] to those of the live node. OK, ST_INVARIANT,
    ST_MISSING or ST_DROPPED.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    at = 0
    while at < stop:
        size, part = item_words(mem, fragment, words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if part > 0:
            row = live_row(mem, fragment, words[at])
            if row == 0:
                return A.ST_MISSING
            mem[row + 1] = words[at + 1]
        at += size
    return A.OK


@kernel("int64(int64[::1], int64, int64)", nogil=True)
def set_uncopied(mem, fragment, position):
    """Set the first ROWID still to be copied; ROWID_END: none. Return OK or ST_DROPPED."""
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    mem[fragment + M.F_UNCOPIED] = 0 if position >= M.ROWID_END else position + 1
    return A.OK


# --- the joiner: groups of the stream, and the delete log -----------------------------------------
@helper
def uncopied_of(mem, fragment):
    """Return the first ROWID of a fragment that is still to be copied."""
    left = mem[fragment + M.F_UNCOPIED]
    return left - 1 if left != 0 else M.ROWID_END


@helper
def inserted_image_words(mem, fragment, words, at, image, stop):
    """Return the words of one image of the INSERT record at `at`, disk part included; -1 if it is invalid."""
    part = checked_image_words(
        mem[fragment + A.F_FIXED_WORDS], record_has_var(mem, fragment, words[at + 1]), words, image, stop
    )
    if part < 0:
        return -1
    first, key_words = image_key(words, image, mem[fragment + A.F_FIXED_WORDS], mem[fragment + A.F_KEY_WORDS])
    if first + key_words > image + part:
        return -1
    if mem[fragment + A.F_HAS_DISK] == 0:
        return part
    disk = checked_disk_words(words, image + part, stop)
    return -1 if disk < 0 else part + disk


@helper
def executed_rows(mem, fragment, words, at, kind):
    """Return how many rows of the record at `at` must be executed: those in copied slots, which come first in the
    record; -1 if it is invalid.
    """
    first, count = rows_of(words, at, kind)
    return min(count, max(0, uncopied_of(mem, fragment) - first))


@helper
def stale_of_record(mem, fragment, words, at, kind, size, out, state):
    """Note the rows in slots not copied yet that the operation at `at` makes stale: the row that it deletes, rows with
    the keys that it inserts.
    """
    left = uncopied_of(mem, fragment)
    rowid = words[at + 2] & A.ROWID_MASK
    status = A.OK
    if kind == L.KIND_DELETE:
        if rowid >= left and live_row(mem, fragment, rowid) != 0:
            status = note_stale(out, state, words[at + 1], rowid)
    elif kind == L.KIND_INSERT:
        image = at + L.OPERATION_WORDS
        rows = executed_rows(mem, fragment, words, at, kind)
        if rows < 0:
            return A.ST_INVARIANT
        for _ in range(rows):
            words_of_image = inserted_image_words(mem, fragment, words, at, image, at + size)
            if words_of_image < 0:
                return A.ST_INVARIANT
            other = rowid_of_key(mem, fragment, words, image)
            if other >= left and note_stale(out, state, words[at + 1], other) != A.OK:
                return A.ST_SPACE - 2
            image += words_of_image
    return status


@helper
def note_stale(out, state, identity, rowid):
    """Note a row by its ROWID and by word 1 of a record, without the version; OK, or ST_SPACE - 2 if out is full."""
    at = state[M.N_USED]
    if at + 2 > out.size:
        return A.ST_SPACE - 2
    out[at] = identity & (L.TABLE_MASK | L.FRAGMENT_MASK << L.FRAGMENT_SHIFT)
    out[at + 1] = rowid
    state[M.N_USED] = at + 2
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])", nogil=True)
def find_stale(mem, tables, words, start, stop, out, state):
    """Find the rows in slots not copied yet that must be removed before the records words[start:stop] of a group can be
    executed, as pairs of table and fragment (as in word 1 of a record) and ROWID, possibly with duplicates. For a row
    that the live node deletes, this is the row that this node has in the same slot, whatever its key.

    tables: handles by number, 0 for tables to be skipped. OK; below ST_SPACE if out is too small; ST_INVARIANT at
    state[N_NEXT].
    """
    at = start
    while at < stop:
        state[M.N_NEXT] = at
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        if is_operation(kind):
            fragment = fragment_of(mem, tables, words[at + 1])
            if fragment < 0:
                return A.ST_INVARIANT
            if fragment > 0 and mem[fragment + M.F_UNCOPIED] != 0:
                status = stale_of_record(mem, fragment, words, at, kind, size, out, state)
                if status != A.OK:
                    return status
        at += size
    state[M.N_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1])", nogil=True)
def find_deleted(mem, tables, words, stop, out, state):
    """Find the existing rows in slots not copied yet that the live node has deleted, as pairs like `find_stale`.
    words[:stop]: pairs of table and fragment (as in word 1 of a record) and first ROWID with a count (as in word 2).

    tables: as for `find_stale`. OK; below ST_SPACE if out is too small; ST_INVARIANT at state[N_NEXT].
    """
    for at in range(0, stop, M.DELETED_WORDS):
        state[M.N_NEXT] = at
        fragment = fragment_of(mem, tables, words[at]) if at + M.DELETED_WORDS <= stop else -1
        if fragment < 0:
            return A.ST_INVARIANT
        if fragment > 0:
            first = words[at + 1] & A.ROWID_MASK
            past = first + (words[at + 1] >> A.COUNT_SHIFT)
            if past <= first or (past - 1) >> 16 != first >> 16:
                return A.ST_INVARIANT
            for rowid in range(max(first, uncopied_of(mem, fragment)), past):
                if live_row(mem, fragment, rowid) != 0 and note_stale(out, state, words[at], rowid) != A.OK:
                    return A.ST_SPACE - 2
    state[M.N_NEXT] = stop
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])", nogil=True)
def executed_records(mem, tables, words, start, stop, out, state):
    """Copy the operations of the records words[start:stop] on copied slots to `out`, which has as many words; the scan
    copies the others later. A run of inserts is cut at the position of the copy.

    Counts are in state[N_USED] and state[N_ROWS] (operations or runs left out completely). OK, or ST_INVARIANT at
    state[N_NEXT].
    """
    at = start
    while at < stop:
        state[M.N_NEXT] = at
        kind, size = record_at(words, at, stop)
        if size < 0:
            return A.ST_INVARIANT
        fragment = fragment_of(mem, tables, words[at + 1]) if is_operation(kind) else 0
        if fragment < 0:
            return A.ST_INVARIANT
        if fragment > 0:
            rows = executed_rows(mem, fragment, words, at, kind)
            if rows < 0:
                return A.ST_INVARIANT
            kept = size
            if rows > 0 and kind == L.KIND_INSERT and rows < words[at + 2] >> A.COUNT_SHIFT:
                kept = L.OPERATION_WORDS
                for _ in range(rows):
                    one = inserted_image_words(mem, fragment, words, at, at + kept, at + size)
                    if one < 0:
                        return A.ST_INVARIANT
                    kept += one
            if rows > 0:
                to = state[M.N_USED]
                if to + kept > out.size:
                    return A.ST_INVARIANT
                move_words(words, at, out, to, kept)
                if kept != size:
                    out[to] = _pack_kind(L.KIND_INSERT, 0, kept)
                    out[to + 2] = (words[at + 2] & A.ROWID_MASK) | rows << A.COUNT_SHIFT
                state[M.N_USED] = to + kept
            else:
                state[M.N_ROWS] += 1
        at += size
    state[M.N_NEXT] = stop
    return A.OK
