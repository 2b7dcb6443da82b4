"""Rollback of a transaction, whole or to a savepoint, in shared memory (D3).

Operations are undone from the newest to the oldest, each with its reservations: slots, index entries, var parts and
locks. Nothing of a rollback reaches the disk.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.changes_kernels import cancel_index_entries
from tidemark.engine.index.unique_changes_kernels import remove_of_row, remove_updated
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_evicted
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import free_cell
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.rows.var_parts_kernels import free_var
from tidemark.engine.txn.changes_kernels import restore_delete, set_lock
from tidemark.engine.txn.commit_kernels import finish, free_reserved, release_lock, release_row


@helper
def abort_insert(mem, txn, operation):
    fragment = mem[operation + A.O_FRAGMENT]
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    status = A.OK
    for rowid in range(first, first + count):
        remove_of_row(mem, txn, fragment, rowid, X.U_TAKES)
        if free_reserved(mem, txn, fragment, rowid, operation) != A.OK:
            status = A.ST_INVARIANT
    cancel_index_entries(mem, txn, fragment, count)
    return status


@helper
def abort_one(mem, txn, buf, operation, until):
    """Undo the newest operation of a transaction; OK, ST_SPOOLED with nothing done, or ST_INVARIANT.

    until: see `undo_until`; 0 is a whole rollback, which needs no records.
    """
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    if kind == L.KIND_INSERT:
        return abort_insert(mem, txn, operation)
    if word & A.OP_ABSENT:
        return release_lock(mem, txn, operation)
    if word & A.OP_REINSERT and until != 0 and is_evicted(mem, buf, mem[operation + A.O_PREVIOUS]):
        return A.ST_SPOOLED
    fragment = mem[operation + A.O_FRAGMENT]
    row = known_row_address(mem, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
    if kind == L.KIND_UPDATE:
        remove_updated(mem, txn, buf, operation, fragment, row)
    if mem[operation + A.O_VAR] != 0:
        free_var(mem, fragment, mem[operation + A.O_VAR])
    if kind == L.KIND_UPDATE:
        cancel_index_entries(mem, txn, fragment, 1)
    elif kind == L.KIND_DELETE:
        cancel_index_entries(mem, txn, fragment, 0)
    previous = mem[operation + A.O_PREVIOUS]
    if word & A.OP_REINSERT and until != 0:
        restore_delete(mem, buf, previous)
    if previous != 0:
        set_lock(mem, row, previous)
    else:
        release_row(mem, txn, row, operation)
        if word & A.OP_WAS_SHARED:
            mem[row] |= A.LOCK_SHARED
    return A.OK


@helper
def undo_until(mem, txn, buf, until, budget):
    """Undo operations newer than `until` (0: all), newest first, about `budget` rows. OK, ST_MORE, ST_SPOOLED or
    ST_INVARIANT.
    """
    status = A.OK
    done = 0
    while mem[txn + A.X_LAST] != until:
        operation = mem[txn + A.X_LAST]
        if operation == 0:
            return A.ST_INVARIANT
        if done >= budget:
            return A.ST_MORE
        done += 1 + (mem[operation + A.O_ROWID] >> A.COUNT_SHIFT)
        undone = abort_one(mem, txn, buf, operation, until)
        if undone == A.ST_SPOOLED:
            return A.ST_SPOOLED
        if undone != A.OK:
            status = A.ST_INVARIANT
        back = mem[operation + A.O_BACK]
        mem[txn + A.X_LAST] = back
        if back != 0:
            mem[back + A.O_NEXT] = 0
        else:
            mem[txn + A.X_FIRST] = 0
        mem[txn + A.X_OPS] -= 1
        free_cell(mem, operation)
    return status


@helper
def abort_some(mem, txn, buf, budget):
    """Undo about `budget` rows of a rollback, see `abort_step`."""
    status = undo_until(mem, txn, buf, 0, budget)
    if status == A.OK:
        finish(mem, txn)
    return status


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def abort_step(mem, txn, buf, budget):
    """Undo one slice of a rollback; OK when the transaction has ended, ST_MORE or ST_INVARIANT."""
    return abort_some(mem, txn, buf, budget)


@kernel("int64(int64[::1], int64, int64[::1], int64, int64, int64, int64)")
def abort_to_savepoint_step(mem, txn, buf, until, used, changes, budget):
    """Undo one slice of a rollback to a savepoint; OK when done, ST_MORE, ST_SPOOLED or ST_INVARIANT.

    until, used, changes: the newest operation, X_USED and X_CHANGES at the savepoint. Reservations of REDO and copies
    stay.
    """
    status = undo_until(mem, txn, buf, until, budget)
    if status == A.OK:
        mem[txn + A.X_USED] = used
        mem[txn + A.X_CHANGES] = changes
        mem[txn + A.X_RUN] = 0
        mem[txn + A.X_UNDO_PAGE] = 0
    return status


@kernel("int64(int64[::1], int64, int64)")
def end_run(mem, txn, savepoints):
    """End the run of the last insert record: the next insert starts a new one. savepoints: 1 if a savepoint begins
    here, else 0. Return the newest operation.
    """
    mem[txn + A.X_RUN] = 0
    mem[txn + A.X_SAVEPOINTS] += savepoints
    return mem[txn + A.X_LAST]
