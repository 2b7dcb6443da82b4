"""Unique indexes while transactions run: operations take entries, commits and rollbacks remove them.

See docs/internals/access.md, section 6.
Each image of a row has an entry; images with the same tag share it. An operation takes the entry of its new image
before it does anything else; commit and rollback only remove entries.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import place_of
from tidemark.engine.index.unique_entries_kernels import entry_at, find_conflict_of_others, remove_entry, take_entry
from tidemark.engine.index.unique_keys_kernels import NO_TAG, image_key_words, parted_tag, slot_tag, tag_in
from tidemark.engine.jit.kernel import helper
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import newest_operation, var_as_of
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import handle_of
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.ticks_kernels import adds_only


@helper
def uniques_of(mem, fragment):
    """Return the list of a table's indexes if it has a unique one, else 0."""
    indexes = mem[fragment + A.F_INDEXES]
    return indexes if indexes != 0 and mem[indexes + X.XL_UNIQUES] != 0 else 0


@helper
def takes_entries(mem, txn, index):
    return mem[index + X.I_UNIQUE] != 0 and mem[index + X.U_TAKES] <= mem[txn + A.X_GENERATION]


@helper
def claim(mem, txn, buf, index, fragment, images, at, place):
    """Take the entry that an image of the row at a place needs. Return (OK, tag), with NO_TAG if no entry was added; or
    (status, NO_TAG) with no entry taken. Status: ST_UNIQUE, ST_BUSY, ST_UNFINISHED or ST_MEMORY.
    """
    words = image_key_words(mem, index, fragment, images, at, X.SIDE_TARGET)
    if words == 0:
        return A.OK, NO_TAG
    tag = tag_in(mem, index, X.SIDE_TARGET, words)
    status = find_conflict_of_others(mem, txn, buf, index, tag, place, words)
    if (status == A.ST_UNIQUE and mem[A.S_UNFINISHED] != 0) or not adds_only(mem):
        return A.ST_UNFINISHED, NO_TAG  # a large commit may be about to give the key away, or has just taken it
    if status == A.ST_UNIQUE:
        if mem[index + X.I_STATE] != X.INDEX_READY:
            mem[index + X.U_SUSPECTS] += 1  # the build walks the rows again
            status = A.OK
        mem[txn + A.X_UNIQUE] = handle_of(mem, index)
    if status != A.OK:
        return status, NO_TAG
    if place != 0 and entry_at(mem, index, tag, place) != 0:
        return A.OK, NO_TAG
    if take_entry(mem, index, tag, place) != A.OK:
        return A.ST_MEMORY, NO_TAG
    return A.OK, tag


@helper
def remove_taken(mem, indexes, until, place):
    """Remove the entries that an operation has taken in the first `until` indexes for a place."""
    for i in range(until):
        if mem[indexes + X.XL_TAGS + i] != NO_TAG:
            remove_entry(mem, mem[indexes + X.XL_FIRST + i], mem[indexes + X.XL_TAGS + i], place)


@helper
def take_entries(mem, txn, buf, indexes, fragment, images, at, place):
    """Take the entries of an image for the row at a place. Returns OK, with the tags stored in the list (XL_TAGS), or a
    status, with nothing taken. place 0: the row has no place yet.
    """
    for i in range(mem[indexes + X.XL_COUNT]):
        mem[indexes + X.XL_TAGS + i] = NO_TAG
        index = mem[indexes + X.XL_FIRST + i]
        if takes_entries(mem, txn, index):
            status, tag = claim(mem, txn, buf, index, fragment, images, at, place)
            if status != A.OK:
                remove_taken(mem, indexes, i, place)
                return status
            mem[indexes + X.XL_TAGS + i] = tag
    return A.OK


@helper
def copy_entries(mem, txn, indexes, fragment, images, at, place):
    """Add the entries of an image for the row at a place to unique indexes; OK or ST_MEMORY.

    Does not check whether another row has the key: the primary did. Only the primary knew which rows the transaction
    had deleted in between, because the log does not have these deletes.
    """
    for i in range(mem[indexes + X.XL_COUNT]):
        index = mem[indexes + X.XL_FIRST + i]
        if not takes_entries(mem, txn, index):
            continue
        key_words = image_key_words(mem, index, fragment, images, at, X.SIDE_TARGET)
        if key_words == 0:
            continue
        tag = tag_in(mem, index, X.SIDE_TARGET, key_words)
        if entry_at(mem, index, tag, place) == 0 and take_entry(mem, index, tag, place) != A.OK:
            return A.ST_MEMORY
    return A.OK


@helper
def point_taken_entries(mem, txn, indexes, fragment):
    """Point the entries taken for place 0 to the row that was inserted last."""
    operation = mem[txn + A.X_LAST]
    rowid = (mem[operation + A.O_ROWID] & A.ROWID_MASK) + (mem[operation + A.O_ROWID] >> A.COUNT_SHIFT) - 1
    place = place_of(mem, fragment, rowid)
    for i in range(mem[indexes + X.XL_COUNT]):
        tag = mem[indexes + X.XL_TAGS + i]
        if tag != NO_TAG:
            at = entry_at(mem, mem[indexes + X.XL_FIRST + i], tag, 0)
            mem[at] |= place


# --- commit ---------------------------------------------------------------------------------------
@helper
def image_tag(mem, buf, index, fragment, row, operation):
    at = (mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS
    reference = var_as_of(mem, fragment, row, operation) if mem[fragment + A.F_HAS_VAR] else 0
    return parted_tag(mem, index, buf, at, reference)


@helper
def applied_var(mem, fragment, row, newest, operation):
    """Return the var part of a row after its operation `newest`; operations before `operation` are applied and gone."""
    each = newest
    while each != operation:
        if mem[each + A.O_VAR] != 0:
            return mem[each + A.O_VAR]
        each = mem[each + A.O_PREVIOUS]
    if mem[operation + A.O_VAR] != 0:
        return mem[operation + A.O_VAR]
    return var_of(mem, fragment, row)


@helper
def applied_tag(mem, buf, index, fragment, row, newest, operation):
    """Return the tag of the image after operation `newest`; NO_TAG for a DELETE."""
    if mem[newest + A.O_RECORD] & A.OP_KIND_MASK == L.KIND_DELETE:
        return NO_TAG
    at = (mem[newest + A.O_RECORD] >> A.OP_RECORD_SHIFT) + L.OPERATION_WORDS
    reference = applied_var(mem, fragment, row, newest, operation) if mem[fragment + A.F_HAS_VAR] else 0
    return parted_tag(mem, index, buf, at, reference)


@helper
def remove_replaced(mem, txn, buf, operation, fragment, rowid, row):
    """Remove, at commit before an UPDATE is applied, the entries of the replaced image that are not needed any more."""
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        return
    place = place_of(mem, fragment, rowid)
    newest = newest_operation(mem[row])
    for i in range(mem[indexes + X.XL_COUNT]):
        index = mem[indexes + X.XL_FIRST + i]
        if mem[index + X.I_UNIQUE] == 0 or mem[index + X.I_BIRTH] > mem[txn + A.X_GENERATION]:
            continue
        tag = slot_tag(mem, index, place)
        if tag == NO_TAG or tag == applied_tag(mem, buf, index, fragment, row, operation, operation):
            continue
        if newest == operation or tag != applied_tag(mem, buf, index, fragment, row, newest, operation):
            remove_entry(mem, index, tag, place)


@helper
def remove_of_row(mem, txn, fragment, rowid, since):
    """Remove the entries of a row in its slot: at commit before a DELETE is applied, or at rollback of an INSERT.

    since: the word of an index with the first generation of transactions that have entries there: I_BIRTH or U_TAKES.
    """
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        return
    place = place_of(mem, fragment, rowid)
    for i in range(mem[indexes + X.XL_COUNT]):
        index = mem[indexes + X.XL_FIRST + i]
        if mem[index + X.I_UNIQUE] != 0 and mem[index + since] <= mem[txn + A.X_GENERATION]:
            tag = slot_tag(mem, index, place)
            if tag != NO_TAG:
                remove_entry(mem, index, tag, place)


# --- rollback -------------------------------------------------------------------------------------
@helper
def is_tag_before(mem, buf, index, fragment, row, place, operation, tag):
    """Whether an image of a row from before an operation has a tag; checks the latest image first."""
    each = mem[operation + A.O_PREVIOUS]
    while each != 0:
        if mem[each + A.O_RECORD] & A.OP_KIND_MASK == L.KIND_UPDATE:
            if image_tag(mem, buf, index, fragment, row, each) == tag:
                return True
        each = mem[each + A.O_PREVIOUS]
    return slot_tag(mem, index, place) == tag


@helper
def remove_updated(mem, txn, buf, operation, fragment, row):
    """Remove, at rollback of a row's newest UPDATE whose var part still exists, the entries no older image needs."""
    indexes = uniques_of(mem, fragment)
    if indexes == 0:
        return
    place = place_of(mem, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
    for i in range(mem[indexes + X.XL_COUNT]):
        index = mem[indexes + X.XL_FIRST + i]
        if not takes_entries(mem, txn, index):
            continue
        tag = image_tag(mem, buf, index, fragment, row, operation)
        if tag != NO_TAG and not is_tag_before(mem, buf, index, fragment, row, place, operation, tag):
            remove_entry(mem, index, tag, place)
