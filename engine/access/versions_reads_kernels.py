"""Reads by an open view: an unchanged row from its slot, a changed one from the version store, a row that the reading
transaction has changed from its buffer.

A slot may have two rows for a reader: one that the view shows and another transaction has deleted since, and one that
the reading transaction has put in its place. The ROWID of the former then has the bit OLD.

Every kernel checks that the view is open before it reads a row. view 0: none, each row is read as it is. txn 0: no
transaction reads. The format of entries is that of `reads_kernels.py` and `disk_reads_kernels.py`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.disk_reads_kernels import (
    ENTRY_INCOMPLETE,
    PAGE_OF_OWN,
    copy_disk_part,
    disk_page_of,
    read_whole,
)
from tidemark.engine.access.reads_kernels import copy_row
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import lock_owner, newest_operation, own_kind
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.primary_kernels import entry_rowid, index_find, tag_of
from tidemark.engine.rows.rows_kernels import is_live, known_row_address, map_get, row_address
from tidemark.engine.rows.ticks_kernels import is_row_after, view_of
from tidemark.engine.txn import versions_layout as V
from tidemark.engine.txn.disk_changes_kernels import reference_at
from tidemark.engine.txn.versions_kernels import find_key, find_version

ASKED_SLOTS = 8  # a search of the version store counts as this many examined slots

OLD = 1 << 61  # in a ROWID, and in word 2 of an entry that a transaction reads: the row is in the version store
NO_VIEW = 0  # in place of a view's address: rows are read as they are

# States of a slot for a reader.
GONE = 0  # no row was there
SAME = 1  # the row is as it was
ASK = 2  # the version store must be searched
OWN = 3  # the reading transaction has changed the row

# What a scan does with rows.
COUNTED = 0
COPIED = 1
LISTED = 2


@helper
def open_view_of(mem, view):
    """Return (whether a reader may use a view, its address)."""
    at = NO_VIEW if view == 0 else view_of(mem, view)
    return view == 0 or at != NO_VIEW, at


@helper
def owned(mem, txn, row):
    """Return SAME if a transaction has not changed a row, else OWN, or GONE if it has deleted it."""
    head = mem[row]
    if txn == 0 or head & A.LOCK_MASK == 0 or lock_owner(mem, head) != txn:
        return SAME
    kind = own_kind(mem, row)
    if kind == A.OP_LOCK and mem[newest_operation(head) + A.O_PREVIOUS] == 0:
        return SAME
    return GONE if kind == L.KIND_DELETE else OWN


@helper
def slot_since(mem, txn, row, emptied, view):
    """Return GONE, SAME, ASK or OWN for a slot. emptied: the "emptied through" epoch of its page."""
    mine = owned(mem, txn, row)
    if mine != SAME:
        return mine
    if view == NO_VIEW:
        return SAME if is_live(mem, row) else GONE
    if not is_row_after(mem, view, row):
        if is_live(mem, row):
            return SAME
        return ASK if emptied >= mem[view + A.VW_EPOCH] else GONE
    return ASK


@helper
def is_put_over(mem, row, since, emptied, view):
    """Whether the reading transaction may have put a new row in the place of one that a view shows. emptied: the
    "emptied through" epoch of its page.
    """
    if view == NO_VIEW or row == 0 or (since != OWN and since != GONE):
        return False
    if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK != A.RESERVED:
        return False
    return emptied >= mem[view + A.VW_EPOCH] or is_row_after(mem, view, row)


@helper
def version_words(mem, at):
    """Return the words of the row's entry in a version, without its disk part."""
    return mem[at + V.V_DISK] >> V.V_ENTRY_SHIFT


@helper
def write_version(mem, txn, at, out, place):
    """Copy the row's entry of a version to out[place:] without its disk part; return its words, or ST_SPACE - words
    needed. txn: that reads it, 0 for none.
    """
    words = version_words(mem, at)
    if place + words > out.size:
        return A.ST_SPACE - words
    move_words(mem, at + V.V_ROW, out, place, words)
    if txn != 0:
        out[place + 2] |= OLD
    return words


@helper
def write_version_whole(mem, fragment, rowid, at, source, out, place, state):
    """Copy a version with its disk part, which the version at `source` holds (0: the live row does); return words or
    status as `read_whole`, or ST_TOO_OLD.
    """
    before = version_words(mem, at)
    is_begun = False
    if source != 0:
        if mem[source + V.V_DISK] & V.V_DISK_MASK == V.DISK_LOST:
            return A.ST_TOO_OLD
        address = source + V.V_ROW + version_words(mem, source)
        words = mem[address] & A.VAR_WORDS_MASK
        if place + before + words > out.size:
            return A.ST_SPACE - before - words
        move_words(mem, address, out, place + before, words)
    else:
        row = row_address(mem, fragment, rowid)
        if row == 0:
            return A.ST_TOO_OLD
        reference = mem[reference_at(mem, fragment, row)]
        words, is_begun = copy_disk_part(mem, fragment, rowid, reference, out, place, before, state)
        if words < 0:
            return words
    move_words(mem, at + V.V_ROW, out, place, before)
    out[place + 2] |= ENTRY_INCOMPLETE if is_begun else 0
    return before + words


@helper
def slot_of(mem, view, txn, fragment, rowid):
    """Return (address of a row, 0 if there is none; GONE, SAME, ASK or OWN); ASK for a ROWID with OLD."""
    row = row_address(mem, fragment, rowid & ~OLD)
    if row == 0 or rowid & OLD:
        return row, ASK
    return row, slot_since(mem, txn, row, mem[view + A.VW_EPOCH] if view != NO_VIEW else 0, view)


@helper
def read_at(mem, view, txn, buf, with_disk, fragment, rowid, out, place, state):
    """Copy a row as a reader sees it to out[place:]; return words or status as `read_whole`, or ST_TOO_OLD."""
    row, since = slot_of(mem, view, txn, fragment, rowid)
    rowid &= ~OLD
    if since == SAME or since == OWN:
        if with_disk:
            return read_whole(mem, txn if since == OWN else 0, buf, fragment, rowid, row, out, place, state)
        return copy_row(mem, buf, fragment, rowid, row, since == OWN, out, place)
    if since == GONE or view == NO_VIEW:
        return A.ST_MISSING
    at, source = find_version(mem, fragment, rowid, view)
    if at == 0:
        return A.ST_MISSING
    if with_disk:
        return write_version_whole(mem, fragment, rowid, at, source, out, place, state)
    return write_version(mem, txn, at, out, place)


@helper
def page_of_version(mem, fragment, rowid, source):
    """Return the page with the disk part of a version, PAGE_OF_OWN if the version at `source` has it, or it is lost."""
    row = row_address(mem, fragment, rowid)
    if source != 0 or row == 0:
        return PAGE_OF_OWN
    return disk_page_of(mem, fragment, row, False)


@helper
def page_at(mem, view, txn, fragment, rowid):
    """Return the page with the disk part of a row as a reader sees it: PAGE_OF_OWN if the reader needs none, -1 if
    there was no row.
    """
    row, since = slot_of(mem, view, txn, fragment, rowid)
    rowid &= ~OLD
    if since == GONE or (since == ASK and view == NO_VIEW):
        return -1
    if since == ASK:
        at, source = find_version(mem, fragment, rowid, view)
        return -1 if at == 0 else page_of_version(mem, fragment, rowid, source)
    return disk_page_of(mem, fragment, row, since == OWN)


# --- scans ----------------------------------------------------------------------------------------
@helper
def page_slots(mem, fragment, logical, view):
    """Return (address of a page's header; slots that have had rows, 0 if it was freed; its "emptied through" epoch;
    slots to examine).
    """
    page = map_get(mem, fragment, logical)
    if page > 0:
        base = page << A.PAGE_SHIFT
        emptied = mem[base + A.PG_EMPTIED]
        is_asked = view != NO_VIEW and emptied >= mem[view + A.VW_EPOCH]
        fresh = mem[base + A.PG_FRESH]
        return base, fresh, emptied, mem[fragment + A.F_SLOTS] if is_asked else fresh
    emptied = -1 - page if page < 0 else 0
    is_asked = view != NO_VIEW and emptied >= mem[view + A.VW_EPOCH]
    return 0, 0, emptied, mem[fragment + A.F_SLOTS] if is_asked else 0


@helper
def look_at(mem, view, txn, base, fresh, row_words, emptied, slot):
    """Return (GONE, SAME, ASK or OWN; address of the row) of one slot."""
    if slot >= fresh:
        return ASK, 0
    row = base + A.PAGE_HEADER_WORDS + slot * row_words
    return slot_since(mem, txn, row, emptied, view), row


@helper
def take_version(mem, txn, way, fragment, rowid, at, source, out, offsets, state):
    """Copy, list or count the row of a version. Return OK, or as `write_version`."""
    if way != COUNTED:
        if state[0] >= offsets.size:
            return A.ST_SPACE
        if way == LISTED:
            out[state[0]] = rowid | OLD
            offsets[state[0]] = page_of_version(mem, fragment, rowid, source)
        else:
            words = write_version(mem, txn, at, out, state[1])
            if words < 0:
                return words
            offsets[state[0]] = state[1] + A.ENTRY_WORDS
            state[1] += words
    state[0] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64, int64[::1], int64, int64, int64[::1], int64[::1], int64[::1])")
def scan_rows(mem, fragment, view, txn, buf, way, limit, out, offsets, state):
    """Take rows from ROWID state[2] on: COPIED without disk parts, COUNTED only, or LISTED: then `out` gets their
    ROWIDs, and `offsets` the pages needed to read their disk parts. One call examines about `limit` slots.

    state: [rows found, words used, next ROWID; with OLD if the row that the slot had is taken, and the one that the
    transaction has put there is not]. Return OK at the fragment's end, ST_SPACE if `offsets` is full,
    ST_MORE, ST_SPACE - words needed, ST_SPOOLED, ST_DROPPED, or ST_TOO_OLD.
    """
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
    is_open, view = open_view_of(mem, view)
    if not is_open:
        return A.ST_TOO_OLD
    looked = 0
    row_words = mem[fragment + A.F_ROW_WORDS]
    is_half = state[2] & OLD != 0
    state[2] &= ~OLD
    while state[2] >> 16 < mem[fragment + A.F_PAGES]:
        logical = state[2] >> 16
        base, fresh, emptied, slots = page_slots(mem, fragment, logical, view)
        looked += 1
        for slot in range(state[2] & 0xFFFF, slots):
            if looked >= limit:
                state[2] |= OLD if is_half else 0
                return A.ST_MORE
            looked += 1
            rowid = logical << 16 | slot
            since, row = look_at(mem, view, txn, base, fresh, row_words, emptied, slot)
            if not is_half and (since == ASK or is_put_over(mem, row, since, emptied, view)):
                looked += ASKED_SLOTS - 1
                at, source = find_version(mem, fragment, rowid, view)
                if at != 0:
                    status = take_version(mem, txn, way, fragment, rowid, at, source, out, offsets, state)
                    if status != A.OK:
                        return status
                    is_half = True
                    state[2] = rowid
            if since == SAME or since == OWN:
                if way != COUNTED:
                    words = A.ST_SPACE
                    if state[0] < offsets.size:
                        if way == LISTED:
                            out[state[0]] = rowid
                            words = disk_page_of(mem, fragment, row, since == OWN)
                        else:
                            words = copy_row(mem, buf, fragment, rowid, row, since == OWN, out, state[1])
                    if words < 0:
                        state[2] |= OLD if is_half else 0
                        return words
                    offsets[state[0]] = words if way == LISTED else state[1] + A.ENTRY_WORDS
                    state[1] += words
                state[0] += 1
            is_half = False
            state[2] = rowid + 1
        is_half = False
        state[2] = (logical + 1) << 16
        if looked >= limit:
            return A.ST_MORE
    return A.OK


@kernel(
    "int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], "
    "int64[::1], int64[::1])"
)
def read_places(mem, view, txn, buf, with_disk, fragments, rowids, order, start, stop, out, offsets, state):
    """Copy the rows i of order[start:stop]. fragments[i]: handle. rowids[i]: negative for none. offsets[i] becomes the
    start of the image, -1 if there was no row.

    state: [rows found, words used, next place in order, page, incomplete entries]. Return OK, or why the copy stopped
    at state[2]: ST_SPACE - words needed, ST_PAGE, ST_DAMAGED, ST_SPOOLED, or ST_TOO_OLD.
    """
    is_open, view = open_view_of(mem, view)
    if not is_open:
        return A.ST_TOO_OLD
    for position in range(start, stop):
        i = order[position]
        state[2] = position
        offsets[i] = -1
        if rowids[i] < 0:
            continue
        fragment = descriptor_of(mem, fragments[i])
        if fragment == 0:  # its partition was dropped meanwhile
            continue
        done = read_at(mem, view, txn, buf, with_disk, fragment, rowids[i], out, state[1], state)
        if done > 0:
            offsets[i] = state[1] + A.ENTRY_WORDS
            state[0] += 1
            state[1] += done
        elif done != A.ST_MISSING:
            return done
    state[2] = stop
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, int64[::1])")
def pages_of_places(mem, view, txn, fragments, rowids, start, stop, pages):
    """Write to pages[i], for each row i of [start, stop), the page that a read of its disk part needs, 0 for none.
    Return OK or ST_TOO_OLD.
    """
    is_open, view = open_view_of(mem, view)
    if not is_open:
        return A.ST_TOO_OLD
    for i in range(start, stop):
        pages[i] = PAGE_OF_OWN
        fragment = descriptor_of(mem, fragments[i])
        if fragment == 0:  # its partition was dropped meanwhile
            continue
        pages[i] = max(PAGE_OF_OWN, page_at(mem, view, txn, fragment, rowids[i]))
    return A.OK


# --- keys -----------------------------------------------------------------------------------------
@helper
def rowid_at(mem, view, txn, fragment, tag, keys, first, words):
    """Return the ROWID of the row that has a key for a reader, -1 if none has."""
    entry = index_find(mem, fragment, tag, keys, first, words)
    if entry != 0:
        rowid = entry_rowid(mem, entry)
        since = slot_since(mem, txn, known_row_address(mem, fragment, rowid), 0, view)
        if since == SAME or since == OWN:
            return rowid
        if txn != 0 and owned(mem, txn, known_row_address(mem, fragment, rowid)) == GONE:
            return -1
    if view == NO_VIEW:
        return -1
    at = find_key(mem, fragment, tag, keys, first, words, view)
    if at != 0:
        return mem[at + V.V_ROW] | OLD
    return -1


@kernel(
    "int64(int64[::1], int64, int64, int64, int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, "
    "int64[::1], int64[::1])"
)
def find_keys(mem, view, txn, seed, with_disk, fragments, keys, key_offsets, stride, start, stop, rowids, pages):
    """Write to rowids[i], for each key i of [start, stop), the ROWID of its row, -1 for none; if `with_disk`, to
    pages[i] the page that its disk part needs. fragments[i]: handle, 0 for none.

    Return OK or ST_TOO_OLD.
    """
    is_open, view = open_view_of(mem, view)
    if not is_open:
        return A.ST_TOO_OLD
    for i in range(start, stop):
        rowids[i] = -1
        pages[i] = PAGE_OF_OWN
        if fragments[i] == 0:
            continue
        fragment = descriptor_of(mem, fragments[i])
        if fragment == 0:  # its partition was dropped meanwhile
            continue
        first = key_offsets[i] if key_offsets.size else i * stride
        words = key_offsets[i + 1] - first if key_offsets.size else stride
        tag = tag_of(keys, first, words, seed)
        rowids[i] = rowid_at(mem, view, txn, fragment, tag, keys, first, words)
        if with_disk and rowids[i] >= 0:
            pages[i] = max(PAGE_OF_OWN, page_at(mem, view, txn, fragment, rowids[i]))
    return A.OK
