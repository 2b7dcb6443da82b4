"""Commit and abort of a transaction in shared memory (D3, D6).

Commit applies the operations in order. On rows that a running local checkpoint has not passed, it first copies the old
row and sets the checkpoint bit. Nothing here can fail: the operation has reserved every slot, index entry, var part and
copy.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.disk.undo_kernels import undo_unpromise
from tidemark.engine.index.changes_kernels import return_promises
from tidemark.engine.index.unique_changes_kernels import give_inserted, give_updated
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import move_words
from tidemark.engine.log import redo_layout as L
from tidemark.engine.log.own_images_kernels import is_away, newest_operation
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.lcp_kernels import write_lcp_entry
from tidemark.engine.rows.primary_kernels import index_remove, row_tag
from tidemark.engine.rows.rows_kernels import give_slot, known_row_address
from tidemark.engine.rows.side_pages_kernels import set_var, var_of, words_of_var
from tidemark.engine.rows.var_parts_kernels import give_var
from tidemark.engine.txn.changes_kernels import drop_operation, restore_delete, set_lock
from tidemark.engine.txn.delete_log_kernels import note_delete
from tidemark.engine.txn.versions_kernels import keep_version

_pack_kind = helper(L.pack_kind)

COMMIT_LOGGED = 1
COMMIT_WOKEN = 2
SMALL_WORDS = 32_768  # a larger buffer becomes its own REDO group instead of being copied into the filling one
SMALL_OPERATIONS = 1_000  # more are applied in slices, so that no kernel call holds the GIL too long
FILL_PAD_WORDS = 512  # a group ends on a multiple of 4 KiB


@helper
def author_of(mem, txn, word):
    """Return the author of the rows changed by an operation, given its word O_RECORD."""
    return mem[txn + A.X_AUTHOR] if word & A.OP_AUTHORED else 0


@helper
def not_passed(mem, fragment, rowid):
    """Whether a running local checkpoint has not reached this ROWID yet."""
    return (
        mem[fragment + A.F_LCP_ACTIVE] != 0
        and rowid >= mem[fragment + A.F_LCP_POSITION]
        and rowid >> 16 < mem[fragment + A.F_LCP_PAGES]
    )


@helper
def keep_old(mem, fragment, rowid, row, copies):
    """Copy a row about to change for the running local checkpoint, if that still needs it. OK or ST_INVARIANT."""
    if mem[row] & A.LCP_BIT or not not_passed(mem, fragment, rowid):
        return A.OK
    if mem[fragment + A.F_LCP_ACTIVE] == 1:
        need = A.ENTRY_WORDS + mem[fragment + A.F_FIXED_WORDS]
        if mem[fragment + A.F_LCP_HAS_VAR]:
            need += words_of_var(mem, var_of(mem, fragment, row))
        if copies[0] + need > copies.size:
            return A.ST_INVARIANT
        copies[0] += write_lcp_entry(mem, fragment, rowid, row, copies, copies[0])
        mem[fragment + A.F_LCP_COPIED] += 1
    mem[row] |= A.LCP_BIT
    return A.OK


@helper
def stamp(mem, txn, row, state, epoch, author):
    """Set state, epoch and author of a changed row, keeping lock and checkpoint bit."""
    mem[row] = (mem[row] & (A.LOCK_MASK | A.LCP_BIT)) | state << A.STATE_SHIFT | author << A.AUTHOR_SHIFT
    mem[row + 1] = epoch


@helper
def release_row(mem, txn, row, operation):
    """Free a row's lock if this operation is the newest on it; count locks with waiters."""
    if newest_operation(mem[row]) == operation:
        if mem[row] & A.LOCK_WAITED:
            mem[txn + A.X_WOKEN] += 1
        mem[row] &= ~A.LOCK_MASK


@helper
def release_lock(mem, txn, operation):
    """End an operation that is only a lock; for a lock of an absent row, also free the slot that holds its key. OK or
    ST_INVARIANT.
    """
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    if not mem[operation + A.O_RECORD] & A.OP_ABSENT:
        release_row(mem, txn, row, operation)
        return A.OK
    status = index_remove(mem, fragment, row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED]), rowid)
    if mem[fragment + A.F_HAS_VAR]:
        give_var(mem, fragment, set_var(mem, fragment, row, 0))
    release_row(mem, txn, row, operation)
    mem[row] = mem[row] & A.LCP_BIT
    give_slot(mem, fragment, rowid, row)
    mem[fragment + A.F_RESERVED_ROWS] -= 1
    return A.OK if status == A.OK else A.ST_INVARIANT


@helper
def apply_insert(mem, txn, operation, epoch, author):
    """Make the reserved rows of an insert run live; their images are in place."""
    fragment = mem[operation + A.O_FRAGMENT]
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    words = mem[fragment + A.F_ROW_WORDS]
    row = known_row_address(mem, fragment, first)
    for rowid in range(first, first + count):
        stamp(mem, txn, row, A.LIVE, epoch, author)
        if not_passed(mem, fragment, rowid):
            mem[row] |= A.LCP_BIT
        release_row(mem, txn, row, operation)
        row += words
    mem[fragment + A.F_ROWS] += count
    mem[fragment + A.F_RESERVED_ROWS] -= count


@helper
def apply_update(mem, txn, buf, operation, epoch, author, copies):
    """Replace a row by its after-image; OK, ST_SPOOLED with nothing done, or ST_INVARIANT."""
    if is_away(mem, buf, operation):
        return A.ST_SPOOLED
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    status = keep_old(mem, fragment, rowid, row, copies)
    if status != A.OK:
        return status
    record = mem[operation + A.O_RECORD] >> A.OP_RECORD_SHIFT
    if mem[A.S_SNAPSHOT_NEWEST] != 0:
        keep_version(mem, fragment, rowid, row, epoch, (buf[record] >> L.FLAGS_SHIFT) & L.FLAG_DISK_KEPT != 0)
    at = record + L.OPERATION_WORDS
    # The last word, the disk reference, stays.
    move_words(buf, at, mem, row + A.ROW_HEADER_WORDS, mem[fragment + A.F_FIXED_WORDS] - mem[fragment + A.F_HAS_DISK])
    if mem[operation + A.O_VAR] != 0:
        give_var(mem, fragment, set_var(mem, fragment, row, mem[operation + A.O_VAR]))
    stamp(mem, txn, row, A.LIVE, epoch, author)
    release_row(mem, txn, row, operation)
    return A.OK


@helper
def apply_delete(mem, txn, operation, epoch, author, copies):
    """Remove a row: index entry, var part, slot. The slot keeps the epoch."""
    fragment = mem[operation + A.O_FRAGMENT]
    rowid = mem[operation + A.O_ROWID] & A.ROWID_MASK
    row = known_row_address(mem, fragment, rowid)
    status = keep_old(mem, fragment, rowid, row, copies)
    if status != A.OK:
        return status
    if mem[A.S_SNAPSHOT_NEWEST] != 0:
        keep_version(mem, fragment, rowid, row, epoch, False)
    tag = row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED])
    status = index_remove(mem, fragment, tag, rowid)
    if status != A.OK:
        return A.ST_INVARIANT
    if mem[fragment + A.F_HAS_VAR]:
        give_var(mem, fragment, set_var(mem, fragment, row, 0))
    release_row(mem, txn, row, operation)
    stamp(mem, txn, row, A.FREE, epoch, author)
    give_slot(mem, fragment, rowid, row)
    note_delete(mem, fragment, rowid, epoch)
    mem[fragment + A.F_ROWS] -= 1
    return A.OK


@helper
def apply_operations(mem, txn, buf, copies, epoch, budget):
    """Apply up to about `budget` rows; OK when all are applied, ST_MORE, ST_SPOOLED, or ST_INVARIANT."""
    done = 0
    operation = mem[txn + A.X_CURSOR]
    while operation != 0:
        if done >= budget:
            mem[txn + A.X_CURSOR] = operation
            return A.ST_MORE
        word = mem[operation + A.O_RECORD]
        kind = word & A.OP_KIND_MASK
        author = author_of(mem, txn, word)
        status = A.OK
        done += 1
        if kind == L.KIND_INSERT:
            apply_insert(mem, txn, operation, epoch, author)
            done += mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
        elif kind == L.KIND_UPDATE:
            status = apply_update(mem, txn, buf, operation, epoch, author, copies)
        elif kind == L.KIND_DELETE:
            if not word & A.OP_CANCELLED:
                status = apply_delete(mem, txn, operation, epoch, author, copies)
        else:
            status = release_lock(mem, txn, operation)
        if status != A.OK:
            mem[txn + A.X_CURSOR] = operation
            return status
        after = mem[operation + A.O_NEXT]
        drop_operation(mem, operation)
        operation = after
    finish(mem, txn)
    return A.OK


@helper
def finish(mem, txn):
    """End a transaction: clear its operations and reservations."""
    mem[A.S_COPY_RESERVED] -= mem[txn + A.X_COPY_WORDS]
    mem[txn + A.X_COPY_WORDS] = 0
    mem[A.S_REDO_RESERVED] -= mem[txn + A.X_REDO_WORDS]
    mem[txn + A.X_REDO_WORDS] = 0
    undo_unpromise(mem, txn)
    mem[txn + A.X_DISK] = 0
    mem[txn + A.X_INDEXED] = 0
    mem[txn + A.X_FIRST] = 0
    mem[txn + A.X_LAST] = 0
    mem[txn + A.X_CURSOR] = 0
    mem[txn + A.X_OPS] = 0
    mem[txn + A.X_STATE] = 2


@helper
def write_transaction_record(mem, txn, buf, txid):
    """Write the transaction record, the first of the transaction's records."""
    buf[L.GROUP_WORDS] = _pack_kind(L.KIND_TRANSACTION, 0, mem[txn + A.X_USED] - L.GROUP_WORDS)
    buf[L.GROUP_WORDS + 1] = txid
    buf[L.GROUP_WORDS + 2] = mem[txn + A.X_CHANGES]
    buf[L.GROUP_WORDS + 3] = 0


@helper
def log_records(mem, txn, buf, fill, copies, txid):
    """Copy a small transaction's records into the filling REDO group, if it changed anything.

    COMMIT_LOGGED or 0; or, with nothing done, ST_MORE (too large for one step), ST_COPIES (no room in copies), ST_SPACE
    (no room in fill).
    """
    words = mem[txn + A.X_USED] - L.GROUP_WORDS
    if mem[txn + A.X_OPS] > SMALL_OPERATIONS or words > SMALL_WORDS:
        return A.ST_MORE
    if copies.size > 0 and copies[0] + mem[txn + A.X_COPY_WORDS] > copies.size:
        return A.ST_COPIES
    if mem[txn + A.X_CHANGES] == 0:
        return 0
    at = fill[0]
    if at + words + FILL_PAD_WORDS > fill.size:
        return A.ST_SPACE
    write_transaction_record(mem, txn, buf, txid)
    move_words(buf, L.GROUP_WORDS, fill, at, words)
    fill[0] = at + words
    fill[1] += 1
    mem[A.S_REDO_FREE] -= words
    return COMMIT_LOGGED


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64)")
def commit_small(mem, txn, buf, fill, copies, epoch, txid):
    """Commit in one step: copy records into the filling REDO group and apply changes to the rows.

    fill[0] counts words, fill[1] transactions; copies is empty while no local checkpoint runs. The step is atomic: no
    thread and no signal can interrupt it. Returns COMMIT_LOGGED or 0 (nothing to log), plus COMMIT_WOKEN if a freed
    lock has waiters; or, with nothing done, ST_INDEXED (it changes ordered indexes, see `commit_indexed`), ST_PAGE (it
    changes disk parts, see `commit_disk`) or a status of `log_records`; or ST_INVARIANT.
    """
    if mem[txn + A.X_INDEXED] > 0:
        return A.ST_INDEXED
    if mem[txn + A.X_DISK] > 0:
        return A.ST_PAGE
    logged = log_records(mem, txn, buf, fill, copies, txid)
    if logged < 0:
        return logged
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    status = apply_operations(mem, txn, buf, copies, epoch, 1 << 60)
    if status != A.OK:
        return status
    return logged + (COMMIT_WOKEN if mem[txn + A.X_WOKEN] > 0 else 0)


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def commit_begin(mem, txn, buf, txid):
    """Begin a large commit: complete the buffer, which becomes a REDO group itself; returns the words used."""
    write_transaction_record(mem, txn, buf, txid)
    mem[txn + A.X_CURSOR] = mem[txn + A.X_FIRST]
    mem[txn + A.X_STATE] = 3
    return mem[txn + A.X_USED]


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def commit_step(mem, txn, buf, copies, epoch, budget):
    """Apply one slice of a large commit; OK when done, ST_MORE, ST_SPOOLED, or ST_INVARIANT."""
    return apply_operations(mem, txn, buf, copies, epoch, budget)


@helper
def abort_insert(mem, txn, operation):
    """Release the reservations of an insert run. Reads keys from the slots, since its record may be away."""
    fragment = mem[operation + A.O_FRAGMENT]
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
    status = A.OK
    for rowid in range(first, first + count):
        row = known_row_address(mem, fragment, rowid)
        tag = row_tag(mem, fragment, row, mem[fragment + A.F_INDEX_SEED])
        if index_remove(mem, fragment, tag, rowid) != A.OK:
            status = A.ST_INVARIANT
        give_inserted(mem, txn, fragment, rowid)
        if mem[fragment + A.F_HAS_VAR]:
            give_var(mem, fragment, set_var(mem, fragment, row, 0))
        release_row(mem, txn, row, operation)
        mem[row] = mem[row] & A.LCP_BIT
        give_slot(mem, fragment, rowid, row)
    mem[fragment + A.F_RESERVED_ROWS] -= count
    return_promises(mem, txn, fragment, count)
    return status


@helper
def abort_one(mem, txn, buf, operation, until):
    """Undo the newest operation of a transaction; OK, ST_SPOOLED with nothing done, or ST_INVARIANT.

    until: see `undo_until`; if it is 0, the records are not needed any more.
    """
    word = mem[operation + A.O_RECORD]
    kind = word & A.OP_KIND_MASK
    if kind == L.KIND_INSERT:
        return abort_insert(mem, txn, operation)
    if word & A.OP_ABSENT:
        return release_lock(mem, txn, operation)
    if word & A.OP_REINSERT and until != 0 and is_away(mem, buf, mem[operation + A.O_PREVIOUS]):
        return A.ST_SPOOLED
    fragment = mem[operation + A.O_FRAGMENT]
    row = known_row_address(mem, fragment, mem[operation + A.O_ROWID] & A.ROWID_MASK)
    if kind == L.KIND_UPDATE:
        give_updated(mem, txn, buf, operation, fragment, row)
    if mem[operation + A.O_VAR] != 0:
        give_var(mem, fragment, mem[operation + A.O_VAR])
    if kind == L.KIND_UPDATE:
        return_promises(mem, txn, fragment, 1)
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
        drop_operation(mem, operation)
    return status


@kernel("int64(int64[::1], int64, int64[::1], int64)")
def abort_step(mem, txn, buf, budget):
    """Undo one slice of a rollback; OK when the transaction has ended, ST_MORE or ST_INVARIANT."""
    status = undo_until(mem, txn, buf, 0, budget)
    if status == A.OK:
        finish(mem, txn)
    return status


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
    """Let the next insert start a new record; `savepoints` begin here (1 or 0). Returns the newest operation."""
    mem[txn + A.X_RUN] = 0
    mem[txn + A.X_SAVEPOINTS] += savepoints
    return mem[txn + A.X_LAST]


assert L.FLAG_VAR_KEPT
