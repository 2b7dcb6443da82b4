"""Reads by an open view and an ordered index: entries of rows that have not changed since, and versions to merge.

A scan takes the next entries of the tree and records the ring's head in one call; versions appended up to that head
belong to the range the cursor has passed by then, later ones to the next call (docs/internals/access.md, section 11).
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.index_reads_kernels import is_own_change, set_cursor
from tidemark.engine.access.reads_kernels import copy_row
from tidemark.engine.access.versions_reads_kernels import NO_VIEW, open_view_of, write_version
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import row_of_place
from tidemark.engine.index.tree_scans_kernels import entries_between
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.rows_kernels import is_live
from tidemark.engine.rows.ticks_kernels import is_row_after, view_of
from tidemark.engine.txn import versions_layout as V
from tidemark.engine.txn.versions_kernels import is_shown, version_at


@kernel(
    "int64(int64[::1], int64, int64, int64, int64, int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], "
    "int64[::1], int64[::1])"
)
def index_entries(mem, tree, view, txn, until, cursor, bound, reverse, limit, places, out, offsets, state):
    """Copy the rows, without disk parts, of the next entries between cursor and bound that have not changed since a
    view was opened, examining at most `limit` of them; places gets the place of each row copied.

    places: room for `limit` words. txn, until: rows this transaction had changed before word `until` of its buffer are
    skipped. Rows of dropped partitions are copied. state: [rows found, words used, head of the ring]. Return OK at the
    end, ST_MORE (the cursor says where to continue), ST_SPACE - words needed with nothing copied, ST_DROPPED if the
    index was dropped, or ST_TOO_OLD.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    is_open, view = open_view_of(mem, view)
    if not is_open:
        return A.ST_TOO_OLD
    state[0] = 0
    state[1] = 0
    state[2] = mem[A.S_VERSION_HEAD]
    found, _, _ = entries_between(mem, tree, cursor, bound, reverse, limit, places, places[:0])
    last = places[found - 1] if found > 0 else 0
    for i in range(found):
        place = places[i]
        row = row_of_place(mem, place)
        if (view != NO_VIEW and is_row_after(mem, view, row)) or not is_live(mem, row):
            continue
        base = (place >> X.PLACE_SHIFT) << A.PAGE_SHIFT
        fragment = mem[base + A.PG_FRAGMENT]
        if is_own_change(mem, txn, until, row):
            continue
        rowid = mem[base + A.PG_LOGICAL] << 16 | place & X.PLACE_SLOT_MASK
        words = copy_row(mem, mem, fragment, rowid, row, False, out, state[1])
        if words < 0:
            if state[0] == 0:
                return words
            set_cursor(mem, tree, places[i - 1], cursor)  # intact: no more places were written than examined
            return A.ST_MORE
        offsets[state[0]] = state[1] + A.ENTRY_WORDS
        places[state[0]] = place
        state[0] += 1
        state[1] += words
    if found > 0:
        set_cursor(mem, tree, last, cursor)
    return A.ST_MORE if found == limit else A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def gather_versions(mem, table_id, view, until, limit, places, out, offsets, state):
    """Copy the versions of a table that a view shows, without disk parts, from position state[2] of the ring on and
    before `until`, examining at most `limit`. places gets the place of each.

    state: [versions found, words used, next position]. Return OK when all were examined, ST_MORE, ST_SPACE - words
    needed (or ST_SPACE if places is full), or ST_TOO_OLD.
    """
    view = view_of(mem, view)
    if view == 0:
        return A.ST_TOO_OLD
    state[2] = max(state[2], mem[A.S_VERSION_TAIL])
    looked = 0
    while state[2] < until:
        if looked >= limit:
            return A.ST_MORE
        looked += 1
        at = version_at(mem, state[2])
        fragment = mem[at + V.V_FRAGMENT]
        if fragment != 0 and mem[fragment + A.F_TABLE] == table_id and is_shown(mem, at, view):
            if state[0] >= places.size:
                return A.ST_SPACE
            words = write_version(mem, 0, at, out, state[1])
            if words < 0:
                return words
            places[state[0]] = mem[at + V.V_PLACE]
            offsets[state[0]] = state[1] + A.ENTRY_WORDS
            state[0] += 1
            state[1] += words
        state[2] += mem[at + V.V_WORDS]
    return A.OK
