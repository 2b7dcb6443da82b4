"""Changes of one row: values are read, the row is found and changed, in one kernel call.

The kernels of calls that are transactions of their own begin one in a descriptor kept for them, change the row, and
commit, by the helpers of the general path: only the Python code between them is left out. They are called with the
commit latch held.

Each kernel returns DONE, or LEFT, with nothing done, for the general path: values or a key that the plan does not know,
another version of the table, new indexes, a lock, an unfinished large commit, no room, a row that is not there, or is
there already, a key that another row has. Only BROKEN means that the store must fail.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index.unique_entries_kernels import fragment_of_place, rowid_of_place
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import clear_error, is_null, left, object_kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.changed_images_kernels import needs_image, put_changed_image
from tidemark.engine.point.get_kernels import FOUND, answer, fill_seen, find_place, find_rowid, note_shown, table_of
from tidemark.engine.point.images_kernels import put_changes, put_row_image, read_changes, read_row
from tidemark.engine.point.keys_kernels import key_words, put_key
from tidemark.engine.point.values_kernels import leave, row_of_plan
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.abort_kernels import abort_at_once
from tidemark.engine.txn.begin_kernels import begin_at, txid_next
from tidemark.engine.txn.commit_kernels import commit_at_once
from tidemark.engine.txn.operations_kernels import put_each, put_existing, touch_row

LEFT = 0
DONE = 1
BROKEN = -1
NO_SLOT = 0  # numbers of transactions in the lock table begin at 1


@helper
def is_current(mem, plan):
    """Whether the plan knows all indexes."""
    return plan[U.U_GENERATION] == mem[A.S_INDEX_GENERATION]


@helper
def find(mem, plan, txn, buf, key, keys):
    """Return (FOUND or why not, fragment, ROWID) of the row with a key of the plan, of the table or of a unique index.
    A row by a unique index has its key for this transaction, and no other transaction holds one that may have it.
    """
    if plan[plan[U.U_KEY] + U.UK_HANDLE] != 0:
        octets = key_words()
        status, place = find_place(mem, plan, key, octets, keys, txn, buf, True)
        if status != FOUND:
            return status, 0, 0
        return FOUND, fragment_of_place(mem, place), rowid_of_place(mem, place)
    words = put_key(plan, plan[U.U_KEY], key, keys)
    table = table_of(mem, plan)
    if words == 0 or table == 0:
        return A.ST_DROPPED, 0, 0
    return find_rowid(mem, table, keys, words)


@helper
def touch(mem, plan, txn, buf, key, keys, mode):
    """Lock, change or delete the row with a key; return (OK or why not, its fragment, its ROWID)."""
    status, fragment, rowid = find(mem, plan, txn, buf, key, keys)
    if status == FOUND:
        status = touch_row(mem, txn, buf, fragment, rowid, mode, None)
    return status, fragment, rowid


@helper
def replace(mem, plan, txn, buf, image, key, keys, pairs, count):
    """Change columns of a row in a transaction by a new image; return OK or why nothing was changed."""
    status, fragment, rowid = find(mem, plan, txn, buf, key, keys)
    if status != FOUND:
        return status
    row = known_row_address(mem, fragment, rowid)
    if put_changed_image(mem, plan, txn, buf, fragment, row, pairs, count, image) == 0:
        return A.ST_DROPPED
    return put_existing(mem, txn, buf, fragment, rowid, image, 0, A.MODE_UPDATE, None)


@helper
def change(mem, plan, txn, buf, image, key, changes, keys, pairs):
    """Change columns of a row in a transaction; return OK or why nothing was changed."""
    count = read_changes(plan, changes, pairs)
    if count < 0:
        return A.ST_DROPPED
    if needs_image(plan, pairs, count):
        return replace(mem, plan, txn, buf, image, key, keys, pairs, count)
    status, fragment, _ = touch(mem, plan, txn, buf, key, keys, A.MODE_UPDATE)
    if status == A.OK:
        # The new record, at the end of the buffer, has the row as it was.
        put_changes(plan, pairs, count, buf, mem[txn + A.X_USED] - mem[fragment + A.F_FIXED_WORDS])
    return status


@helper
def put(mem, plan, txn, buf, row, mode, image, keys, values):
    """Insert or write a row in a transaction; return OK or why nothing was changed."""
    if plan[U.U_IS_PUT] == 0 or read_row(plan, row, values) == 0:
        return A.ST_DROPPED
    table = table_of(mem, plan)
    if table == 0 or put_row_image(plan, values, keys, image) == 0:
        return A.ST_DROPPED
    none = image[:0]
    return put_each(mem, table, txn, buf, image, none, none, none, 0, 1, mode | plan[U.U_STAMP], None)


@helper
def end(mem, txn, buf, fill, copies, epoch, status):
    """Commit the one operation of a transaction, if there is one; DONE, LEFT or BROKEN."""
    if status == A.OK:
        status = commit_at_once(mem, txn, buf, fill, copies, epoch, txid_next(mem), None, 1, None)
        if status >= A.OK:
            return DONE
        if status == A.ST_INVARIANT:
            return BROKEN
        mem[A.S_TXID] -= 1
    return LEFT if abort_at_once(mem, txn, buf) == A.OK else BROKEN


@helper
def make(mem, plan, txn, buf, image, mode, what, changes, keys, values):
    """Make a change in a transaction; return OK or why nothing was changed."""
    if mode == A.MODE_UPDATE:
        return change(mem, plan, txn, buf, image, what, changes, keys, values)
    if mode == A.MODE_DELETE:
        status, _, _ = touch(mem, plan, txn, buf, what, keys, mode)
        return status
    return put(mem, plan, txn, buf, what, mode, image, keys, values)


@object_kernel(
    "int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, object_,"
    " object_)"
)
def change_row(mem, plan, txn, buf, fill, copies, image, epoch, mode, what, changes):
    """Make a change and commit it. txn, buf: a descriptor and a buffer for this alone. image: scratch memory.

    mode: MODE_UPDATE (what: a primary key, changes: a dict), MODE_DELETE (what: a primary key), MODE_INSERT or
    MODE_WRITE (what: a row, as a tuple, or as a dict of all columns).
    """
    if not is_current(mem, plan) or begin_at(mem, txn, NO_SLOT, 0, U.REDO_WORDS) != A.OK:
        return LEFT
    keys = key_words()
    values = key_words()
    status = make(mem, plan, txn, buf, image, mode, what, changes, keys, values)
    return end(mem, txn, buf, fill, copies, epoch, status)


@object_kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, object_, object_)")
def change_seen(mem, plan, txn, buf, shown, image, mode, what, changes):
    """Make a change in an open transaction, see `change_row`."""
    if not is_current(mem, plan):
        return LEFT
    keys = key_words()
    values = key_words()
    if make(mem, plan, txn, buf, image, mode, what, changes, keys, values) != A.OK:
        return LEFT
    shown[0] = U.EPOCH_LAST
    return DONE


@object_kernel("object_(int64[::1], int64[::1], int64, int64[::1], int64[::1], object_)")
def get_locked(mem, plan, txn, buf, shown, key):
    """Return the row with a primary key as a transaction sees it, locked to its end; None, or ... for the general
    path.
    """
    made = row_of_plan(plan)
    if is_null(made):
        clear_error()
        return left()
    if not is_current(mem, plan):
        return leave(made)
    keys = key_words()
    status, fragment, rowid = touch(mem, plan, txn, buf, key, keys, A.MODE_LOCK)
    row = 0
    if status == A.OK:
        row = known_row_address(mem, fragment, rowid)
        status = fill_seen(made, mem, plan, txn, buf, fragment, row)
    elif status != A.ST_MISSING:
        return leave(made)
    note_shown(mem, shown, status, row)
    return answer(made, status)
