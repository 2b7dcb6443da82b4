"""Commit of transactions that change ordered indexes: as `commit.py` and `disk_commit.py`, entries with their rows.

A removal comes before the row's image changes, an addition once the row is LIVE (docs/access.md, section 5). Blocks
were promised by the operations; the promises are taken back as each is applied.
"""

# mypy: ignore-errors

from __future__ import annotations

from engine.disk.parts_kernels import drop_chunks
from engine.disk.undo_kernels import undo_has_room
from engine.index.changes_kernels import (
    add_entries,
    entries_of,
    remove_changed,
    remove_entries,
    return_promises,
)
from engine.index.unique_changes_kernels import leave_deleted, leave_replaced
from engine.jit.kernel import helper, kernel
from engine.log.own_images_kernels import is_away
from engine.log.redo_layout import KIND_DELETE, KIND_INSERT, KIND_UPDATE, OPERATION_WORDS
from engine.memory.arena_layout import (
    COUNT_SHIFT,
    F_HAS_DISK,
    O_FRAGMENT,
    O_NEXT,
    O_RECORD,
    O_ROWID,
    O_VAR,
    OK,
    OP_CANCELLED,
    OP_KIND_MASK,
    OP_RECORD_SHIFT,
    ROWID_MASK,
    ST_INVARIANT,
    ST_MORE,
    ST_PAGE,
    ST_SPOOLED,
    ST_UNDO,
    X_CURSOR,
    X_DISK,
    X_FIRST,
    X_FREEING,
    X_INDEXED,
    X_OPS,
    X_PIECE,
    X_UNDO_WORDS,
    X_WOKEN,
)
from engine.rows.rows_kernels import known_row_address
from engine.txn.changes_kernels import drop_operation
from engine.txn.commit_kernels import (
    COMMIT_WOKEN,
    apply_delete,
    apply_insert,
    apply_update,
    author_of,
    finish,
    log_records,
    release_lock,
)
from engine.txn.disk_changes_kernels import is_disk_kept
from engine.txn.disk_commit_kernels import (
    apply_disk_insert,
    are_at_hand,
    finish_disk_delete,
    finish_disk_update,
    list_pages,
    prepare_disk_delete,
    prepare_disk_update,
)

SMALL_ENTRIES = 160  # more entries are changed in slices, or one kernel call would hold the GIL too long


@helper
def apply_indexed_insert(mem, txn, buf, operation, epoch, author):
    """Make the rows of an insert run live, and add their entries; OK or why it stopped."""
    fragment = mem[operation + O_FRAGMENT]
    first = mem[operation + O_ROWID] & ROWID_MASK
    begin = 0
    end = mem[operation + O_ROWID] >> COUNT_SHIFT
    status = OK
    if mem[fragment + F_HAS_DISK]:
        begin = mem[txn + X_PIECE]
        status = apply_disk_insert(mem, txn, buf, operation, epoch, author)
        if status != OK:
            end = mem[txn + X_PIECE]
    else:
        apply_insert(mem, txn, operation, epoch, author)
    if add_entries(mem, txn, fragment, first + begin, end - begin, -1) != OK:
        return ST_INVARIANT
    return_promises(mem, txn, fragment, end - begin)
    return status


@helper
def apply_indexed_update(mem, txn, buf, operation, epoch, author, copies):
    """Replace a row by its after-image and move the entries whose key changes; OK or why it stopped."""
    fragment = mem[operation + O_FRAGMENT]
    rowid = mem[operation + O_ROWID] & ROWID_MASK
    record = mem[operation + O_RECORD] >> OP_RECORD_SHIFT
    has_part = mem[fragment + F_HAS_DISK] != 0 and not is_disk_kept(mem[operation + O_RECORD])
    if has_part:
        if mem[txn + X_FREEING]:
            return drop_chunks(mem, txn, fragment, epoch)
    if is_away(mem, buf, operation):
        return ST_SPOOLED
    if has_part:
        status = prepare_disk_update(mem, txn, buf, operation, epoch)
        if status != OK:
            return status
    row = known_row_address(mem, fragment, rowid)
    leave_replaced(mem, txn, buf, operation, fragment, rowid, row)
    changed = remove_changed(mem, txn, fragment, rowid, row, buf, record + OPERATION_WORDS, mem[operation + O_VAR] != 0)
    if changed < 0:
        return ST_INVARIANT
    status = apply_update(mem, txn, buf, operation, epoch, author, copies)
    if status == OK:
        status = add_entries(mem, txn, fragment, rowid, 1, changed)
    if status != OK:
        return status
    return_promises(mem, txn, fragment, 1)
    return finish_disk_update(mem, txn, buf, operation, epoch) if has_part else OK


@helper
def apply_indexed_delete(mem, txn, operation, epoch, author, copies):
    """Remove a row and its entries; OK or why it stopped."""
    fragment = mem[operation + O_FRAGMENT]
    has_disk = mem[fragment + F_HAS_DISK]
    old = 0
    if has_disk:
        if mem[txn + X_FREEING]:
            return drop_chunks(mem, txn, fragment, epoch)
        status, old = prepare_disk_delete(mem, txn, operation)
        if status != OK:
            return status
    leave_deleted(mem, txn, fragment, mem[operation + O_ROWID] & ROWID_MASK)
    status = remove_entries(mem, txn, fragment, mem[operation + O_ROWID] & ROWID_MASK)
    if status == OK:
        status = apply_delete(mem, txn, operation, epoch, author, copies)
    if status != OK or not has_disk:
        return status
    return finish_disk_delete(mem, txn, fragment, old, epoch)


@helper
def apply_indexed_one(mem, txn, buf, operation, epoch, author, copies):
    """Apply one operation of a transaction that changes indexes, and maybe disk parts; OK or why it stopped."""
    word = mem[operation + O_RECORD]
    kind = word & OP_KIND_MASK
    if kind == KIND_INSERT:
        return apply_indexed_insert(mem, txn, buf, operation, epoch, author)
    if kind == KIND_UPDATE:
        return apply_indexed_update(mem, txn, buf, operation, epoch, author, copies)
    if kind == KIND_DELETE:
        if word & OP_CANCELLED:
            return OK
        return apply_indexed_delete(mem, txn, operation, epoch, author, copies)
    return release_lock(mem, txn, operation)


@helper
def apply_indexed_operations(mem, txn, buf, copies, epoch, budget):
    """Apply operations from X_CURSOR on: OK when all are, ST_MORE behind about `budget` entries, or why it stopped."""
    operation = mem[txn + X_CURSOR]
    done = 0
    while operation != 0:
        if done >= budget:
            return ST_MORE
        author = author_of(mem, txn, mem[operation + O_RECORD])
        status = apply_indexed_one(mem, txn, buf, operation, epoch, author, copies)
        if status != OK:
            return status
        done += 1 + max(1, mem[operation + O_ROWID] >> COUNT_SHIFT) * entries_of(mem, mem[operation + O_FRAGMENT])
        after = mem[operation + O_NEXT]
        drop_operation(mem, operation)
        operation = after
        mem[txn + X_CURSOR] = operation
    finish(mem, txn)
    return OK


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def commit_indexed(mem, txn, buf, fill, copies, epoch, txid, budget, out):
    """budget 0: `commit_small`, or `commit_disk`, for a transaction that changes ordered indexes; ST_MORE, nothing
    done, if it changes many entries. Else one slice of a large commit, of about so many entries: OK when done, ST_MORE,
    ST_PAGE, ST_UNDO, ST_SPOOLED, or ST_INVARIANT.

    out: empty if the pages that disk parts need are pinned; else as in `commit_at_hand`, and ST_PAGE if one is missing.
    """
    if budget > 0:
        return apply_indexed_operations(mem, txn, buf, copies, epoch, budget)
    if mem[txn + X_INDEXED] > SMALL_ENTRIES:
        return ST_MORE
    if out.size > 0 and mem[txn + X_DISK] > 0:
        if mem[txn + X_OPS] >= out.size or list_pages(mem, txn, buf, out) != OK or are_at_hand(mem, out) == 0:
            return ST_PAGE
    if mem[txn + X_DISK] > 0 and not undo_has_room(mem, mem[txn + X_UNDO_WORDS]):
        return ST_UNDO
    logged = log_records(mem, txn, buf, fill, copies, txid)
    if logged < 0:
        return logged
    mem[txn + X_CURSOR] = mem[txn + X_FIRST]
    if apply_indexed_operations(mem, txn, buf, copies, epoch, 1 << 60) != OK:
        return ST_INVARIANT
    return logged + (COMMIT_WOKEN if mem[txn + X_WOKEN] > 0 else 0)
