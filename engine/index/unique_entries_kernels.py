"""Entries of a unique index: finding, taking and removing them, and conflicts with other rows.

See docs/internals/access.md, section 6.
An entry maps a tag to a place, in the hash of the primary index (`primary_kernels.py`, `segments_kernels.py` and
`growth_kernels.py` of `engine/rows`), which uses the block at `I_UNIQUE` as a fragment descriptor.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import row_of_place, side_part
from tidemark.engine.index.unique_keys_kernels import are_words, own_key_words, slot_key_words
from tidemark.engine.jit.kernel import helper
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import lock_owner, own_kind
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import handle_of
from tidemark.engine.rows.primary_kernels import candidate, index_insert, index_remove
from tidemark.engine.rows.rows_kernels import wide_rowid
from tidemark.engine.rows.segments_kernels import bucket_address, first_bucket, second_bucket, segment_of
from tidemark.engine.rows.ticks_kernels import is_changed_since


@helper
def fragment_of_place(mem, place):
    return mem[((place >> X.PLACE_SHIFT) << A.PAGE_SHIFT) + A.PG_FRAGMENT]


@helper
def rowid_of_place(mem, place):
    return mem[((place >> X.PLACE_SHIFT) << A.PAGE_SHIFT) + A.PG_LOGICAL] << 16 | place & X.PLACE_SLOT_MASK


@helper
def find_in(mem, at, length, entry):
    """Return the address of an entry among `length` words at `at`, 0 if there is none."""
    for i in range(length):
        if mem[at + i] == entry:
            return at + i
    return 0


@helper
def entry_at(mem, index, tag, place):
    """Return the address of the entry of a tag and place, 0 if there is none."""
    hash = mem[index + X.I_UNIQUE]
    if mem[hash + A.F_SEGMENTS] == 0:
        return 0
    segment = segment_of(mem, hash, tag)
    entry = (A.ENTRY_USED | tag) << A.ENTRY_TAG_SHIFT | place
    found = find_in(mem, bucket_address(mem, segment, first_bucket(mem, segment, tag)), A.BUCKET_WORDS, entry)
    if found == 0:
        found = find_in(mem, bucket_address(mem, segment, second_bucket(mem, segment, tag)), A.BUCKET_WORDS, entry)
    if found == 0 and mem[segment + A.SEG_OVERFLOW_COUNT] > 0:
        found = find_in(mem, mem[segment + A.SEG_OVERFLOW], mem[segment + A.SEG_OVERFLOW_COUNT], entry)
    return found


@helper
def take_entry(mem, index, tag, place):
    """Add the entry of a tag and place; OK or ST_MEMORY."""
    status = index_insert(mem, mem[index + X.I_UNIQUE], tag, wide_rowid(place))
    if status == A.OK:
        mem[index + X.U_VERSION] += 1
    return status


@helper
def remove_entry(mem, index, tag, place):
    """Remove the entry of a tag and place; OK, or ST_MISSING if there is none."""
    if mem[mem[index + X.I_UNIQUE] + A.F_SEGMENTS] == 0:
        return A.ST_MISSING
    mem[index + X.U_VERSION] += 1
    return index_remove(mem, mem[index + X.I_UNIQUE], tag, wide_rowid(place))


@helper
def find_conflict(mem, txn, buf, index, place, words):
    """Check whether a row conflicts with the key in SIDE_TARGET; some image of the row has the tag of this key. OK,
    ST_UNIQUE if the row has the key, ST_CONFLICT if it has since the view of `txn` was opened, or ST_BUSY if another
    transaction holds the row exclusively (X_FRAGMENT, X_ROWID and X_LOCK of `txn` name row and lock).
    """
    fragment = fragment_of_place(mem, place)
    if mem[fragment + A.F_DROPPED]:
        return A.OK
    row = row_of_place(mem, place)
    head = mem[row]
    if head & A.LOCK_MASK and not head & A.LOCK_SHARED:
        if lock_owner(mem, head) != txn:
            mem[txn + A.X_FRAGMENT] = handle_of(mem, fragment)
            mem[txn + A.X_ROWID] = rowid_of_place(mem, place)
            mem[txn + A.X_LOCK] = head & A.LOCK_MASK
            return A.ST_BUSY
        if own_kind(mem, row) == L.KIND_DELETE:
            return A.OK
        held = own_key_words(mem, buf, index, fragment, row, X.SIDE_OTHER)
    else:
        held = slot_key_words(mem, index, place, X.SIDE_OTHER)
    target = side_part(mem, index, X.SIDE_TARGET)
    if held != words or not are_words(mem, side_part(mem, index, X.SIDE_OTHER), mem, target, words):
        return A.OK
    if head & A.LOCK_OP_MASK == 0 and is_changed_since(mem, txn, row):
        mem[txn + A.X_FRAGMENT] = handle_of(mem, fragment)
        mem[txn + A.X_ROWID] = rowid_of_place(mem, place)
        return A.ST_CONFLICT
    return A.ST_UNIQUE


@helper
def find_conflict_among(mem, txn, buf, index, at, length, wanted, own, words):
    """Call `find_conflict` for each of `length` entries at `at` with the tag; returns the first status that is not
    OK.
    """
    for i in range(length):
        entry = mem[at + i]
        if entry >> A.ENTRY_TAG_SHIFT == wanted and entry & A.COMPACT_MASK != own:
            status = find_conflict(mem, txn, buf, index, entry & A.COMPACT_MASK, words)
            if status != A.OK:
                return status
    return A.OK


@helper
def find_conflict_of_others(mem, txn, buf, index, tag, own, words):
    """Check all rows but the one at place `own` for conflict with the key of SIDE_TARGET: OK, ST_UNIQUE, ST_BUSY."""
    hash = mem[index + X.I_UNIQUE]
    if mem[hash + A.F_INDEX_COUNT] == 0:
        return A.OK
    segment = segment_of(mem, hash, tag)
    found = candidate(mem, segment, tag)
    if found != -1 and mem[segment + A.SEG_OVERFLOW_COUNT] == 0:
        if found == 0 or mem[found] & A.COMPACT_MASK == own:
            return A.OK
        return find_conflict(mem, txn, buf, index, mem[found] & A.COMPACT_MASK, words)
    wanted = A.ENTRY_USED | tag
    first = bucket_address(mem, segment, first_bucket(mem, segment, tag))
    second = bucket_address(mem, segment, second_bucket(mem, segment, tag))
    status = find_conflict_among(mem, txn, buf, index, first, A.BUCKET_WORDS, wanted, own, words)
    if status == A.OK:
        status = find_conflict_among(mem, txn, buf, index, second, A.BUCKET_WORDS, wanted, own, words)
    if status == A.OK:
        over = mem[segment + A.SEG_OVERFLOW_COUNT]
        status = find_conflict_among(mem, txn, buf, index, mem[segment + A.SEG_OVERFLOW], over, wanted, own, words)
    return status
