"""Commit of transactions that change indexes: as `commit_kernels.py` and `disk_commit_kernels.py`, with index entries.

An entry is removed before the row's image changes, and added after the row is LIVE (docs/access.md, section 5). The
operations have reserved blocks; each reservation is returned when its operation is applied.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk.parts_kernels import drop_chunks
from tidemark.engine.disk.undo_kernels import undo_has_room
from tidemark.engine.index.changes_kernels import (
    add_entries,
    entries_of,
    remove_changed,
    remove_entries,
    return_promises,
)
from tidemark.engine.index.unique_changes_kernels import leave_deleted, leave_replaced
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_away
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.changes_kernels import drop_operation
from tidemark.engine.txn.commit_kernels import (
    COMMIT_WOKEN,
    apply_delete,
    apply_insert,
    apply_update,
    author_of,
    finish,
    log_records,
    release_lock,
)
from tidemark.engine.txn.disk_changes_kernels import is_disk_kept
from tidemark.engine.txn.disk_commit_kernels import (
    apply_disk_insert,
    are_at_hand,
    finish_disk_delete,
    finish_disk_update,
    list_pages,
    prepare_disk_delete,
    prepare_disk_update,
)

SMALL_ENTRIES = 160  # more entries are changed in slices, so that no kernel call holds the GIL too long


@helper
def apply_indexed_insert(mem, txn, buf, operation, epoch, author):
    """Make the rows of an insert run live, and add their entries; OK or the status that stopped it."""
    fragment = mem[operation + A.O_FRAGMENT]
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    begin = 0
    end = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    status = A.OK
    if mem[fragment + A.F_HAS_DISK]:
        begin = mem[txn + A.X_PIECE]
        status = apply_disk_insert(mem, txn, buf, operation, epoch, author)
        if status != A.OK:
            end = mem[txn + A.X_PIECE]
    else:
        apply_insert(mem, txn, operation, epoch, author)
    if add_entries(mem, txn, fragment, first + begin, end - begin, -1) != A.OK:
        return A.ST_INVARIANT
    return_promises(mem, txn, fragment, end - begin)
    return status


@helper
def apply_indexed_update(mem, txn, buf, operation, epoch, author, copies):
    """Replace a row by its after-image and move the entries whose key changes; OK or the status that stopped it."""
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    has_part = mem[fragment + A.F_HAS_DISK] != 0 and not is_disk_kept(mem[operation + A.O_RECORD])
    if has_part:
        if mem[txn + A.X_FREEING]:
            return drop_chunks(mem, txn, fragment, epoch)
    if is_away(mem, buf, operation):
        return A.ST_SPOOLED
    if has_part:
        status = prepare_disk_update(mem, txn, buf, operation, epoch)
        if status != A.OK:
            return status
    row = known_row_address(mem, fragment, rowid)
    leave_replaced(mem, txn, buf, operation, fragment, rowid, row)
    changed = remove_changed(
        mem, txn, fragment, rowid, row, buf, record + L.OPERATION_WORDS, mem[operation + A.O_VAR] != 0
    )
    if changed < 0:
        return A.ST_INVARIANT
    status = apply_update(mem, txn, buf, operation, epoch, author, copies)
    if status == A.OK:
        status = add_entries(mem, txn, fragment, rowid, 1, changed)
    if status != A.OK:
        return status
    return_promises(mem, txn, fragment, 1)
    return finish_disk_update(mem, txn, buf, operation, epoch) if has_part else A.OK


@helper
def apply_indexed_delete(mem, txn, operation, epoch, author, copies):
    """Remove a row and its entries; OK or the status that stopped it."""
    fragment = mem[operation + A.O_FRAGMENT]
    has_disk = mem[fragment + A.F_HAS_DISK]
    old = 0
    if has_disk:
        if mem[txn + A.X_FREEING]:
            return drop_chunks(mem, txn, fragment, epoch)
        status, old = prepare_disk_delete(mem, txn, operation)
        if status != A.OK:
            return status
    leave_deleted(mem, txn, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
    status = remove_entries(mem, txn, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
    if status == A.OK:
        status = apply_delete(mem, txn, operation, epoch, author, copies)
    if status != A.OK or not has_disk:
        return status
    return finish_disk_delete(mem, txn, fragment, old, epoch)


@helper
def apply_indexed_one(mem, txn, buf, operation, epoch, author, copies):
    """Apply one operation of a transaction that changes indexes, and maybe disk parts; OK or the status that stopped
    it.
    """
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    if kind == L.KIND_INSERT:
        return apply_indexed_insert(mem, txn, buf, operation, epoch, author)
    if kind == L.KIND_UPDATE:
        return apply_indexed_update(mem, txn, buf, operation, epoch, author, copies)
    if kind == L.KIND_DELETE:
        if word & A.OP_CANCELLED:
            return A.OK
        return apply_indexed_delete(mem, txn, operation, epoch, author, copies)
    return release_lock(mem, txn, operation)


@helper
def apply_indexed_operations(mem, txn, buf, copies, epoch, budget):
    """Apply operations from X_CURSOR on: OK when all are applied, ST_MORE after about `budget` entries, or another
    status.
    """
    operation = mem[txn + A.X_CURSOR]
    done = 0
    while operation != 0:
        if done >= budget:
            return A.ST_MORE
        author = author_of(mem, txn, mem[operation + A.O_RECORD])
        status = apply_indexed_one(mem, txn, buf, operation, epoch, author, copies)
        if status != A.OK:
            return status
        done += 1 + max(1, mem[operation + A.O_ROWID] >> A.COUNT_SHIFT) * entries_of(mem, mem[operation + A.O_FRAGMENT])
        after = mem[operation + A.O_NEXT]
        drop_operation(mem, operation)
        operation = after
        mem[txn + A.X_CURSOR] = operation
    finish(mem, txn)
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def commit_indexed(mem, txn, buf, fill, copies, epoch, txid, budget, out):
    """Commit a transaction that changes indexes. budget 0: like `commit_small` or `commit_disk`; ST_MORE, with nothing
    done, if it changes many entries. Else apply one slice of a large commit, of about `budget` entries: OK when done,
    ST_MORE, ST_PAGE, ST_UNDO, ST_SPOOLED, or ST_INVARIANT.

    out: empty if the pages of disk parts are pinned; else as in `commit_at_hand`, with ST_PAGE if one is missing.
    """
    if budget > 0:
        return apply_indexed_operations(mem, txn, buf, copies, epoch, budget)
    if mem[txn + A.X_INDEXED] > SMALL_ENTRIES:
        return A.ST_MORE
    if out.size > 0 and mem[txn + A.X_DISK] > 0:
        if mem[txn + A.X_OPS] >= out.size or list_pages(mem, txn, buf, out) != A.OK or are_at_hand(mem, out) == 0:
            return A.ST_PAGE
    if mem[txn + A.X_DISK] > 0 and not undo_has_room(mem, mem[txn + A.X_UNDO_WORDS]):
        return A.ST_UNDO
    logged = log_records(mem, txn, buf, fill, copies, txid)
    if logged < 0:
        return logged
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    if apply_indexed_operations(mem, txn, buf, copies, epoch, 1 << 60) != A.OK:
        return A.ST_INVARIANT
    return logged + (COMMIT_WOKEN if mem[txn + A.X_WOKEN] > 0 else 0)
