"""Changes of one row: values are read, the row is found and changed, in one kernel call.

The kernels of calls that are transactions of their own begin one in a descriptor kept for them, change the row, and
commit, by the helpers of the general path: only the Python code between them is left out. They are called with the
commit latch held.

Each kernel returns DONE; REFUSED by the condition of the change; or LEFT, with nothing done, for the general path:
values or a key that the plan does not know, another version of the table, new indexes, a lock, an unfinished large
commit, no room, no transaction id left, a row that is not there, or is there already, a key that another row has, an
error of a program. Only BROKEN means that the store must fail.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index.unique_changes_kernels import uniques_of
from tidemark.engine.index.unique_entries_kernels import fragment_of_place, rowid_of_place
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.objects_kernels import clear_error, is_none, is_null, left, object_kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.point import plan_layout as U
from tidemark.engine.point.changed_images_kernels import needs_image, put_changed_image
from tidemark.engine.point.get_kernels import FOUND, answer, fill_seen, find_place, find_rowid, note_shown, table_of
from tidemark.engine.point.images_kernels import NOT_KNOWN, put_changes, put_row_image, read_changes, read_row
from tidemark.engine.point.judge_kernels import judge, put_outputs
from tidemark.engine.point.keys_kernels import key_words, put_key
from tidemark.engine.point.trees_kernels import bind_tree
from tidemark.engine.point.values_kernels import leave, no_row, row_of_plan
from tidemark.engine.programs import program_layout as P
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.abort_kernels import abort_some
from tidemark.engine.txn.begin_kernels import begin_at, has_txid, txid_next
from tidemark.engine.txn.commit_kernels import WHOLE, commit_at_once
from tidemark.engine.txn.operations_kernels import put_each, put_existing, touch_row

LEFT = 0
DONE = 1
REFUSED = 2
BROKEN = -1
NO_SLOT = 0  # numbers of transactions in the lock table begin at 1


@helper
def is_current(mem, plan):
    """Whether the plan knows all indexes."""
    return plan[U.U_GENERATION] == mem[A.S_INDEX_GENERATION]


@helper
def has_uniques(mem, plan):
    """Whether the plan's table has unique indexes, whose keys the general path compares with those of a view."""
    table = table_of(mem, plan)
    return table == 0 or uniques_of(mem, mem[mem[table + A.T_FRAGMENT_LIST]]) != 0


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
def read_call(plan, mode, changes, where, trees, given, bound, keys, pairs):
    """Read what a change says. Return (how many columns get plain values, NOT_KNOWN for the general path; the program,
    an empty one if there is none).
    """
    count = NOT_KNOWN
    if given.size > 0 or is_none(where):
        count = read_changes(plan, changes, pairs) if mode == A.MODE_UPDATE else 0
    if count != NOT_KNOWN or given.size > 0:
        return count, given
    found = key_words()
    count, size = bind_tree(plan, trees, mode, changes, where, keys, found, pairs, bound)
    return count, bound[:size]


@helper
def change(mem, plan, txn, buf, image, mode, key, changes, where, trees, given, bound, rows, work, keys, pairs):
    """Change columns of a row in a transaction, or delete it, where the program accepts it; an empty one does. Return
    (OK or why nothing was changed, whether the program has refused the row, which is locked then).
    """
    count, program = read_call(plan, mode, changes, where, trees, given, bound, keys, pairs)
    if count == NOT_KNOWN:
        return A.ST_DROPPED, False
    status, fragment, rowid = find(mem, plan, txn, buf, key, keys)
    if status != FOUND:
        return status, False
    is_judged = program.size > 0
    if is_judged:
        status = touch_row(mem, txn, buf, fragment, rowid, A.MODE_FIND, None)
        if status != A.OK:
            return status, False
        verdict = judge(mem, plan, txn, buf, fragment, rowid, image, program, rows, work)
        mem[txn + A.X_SAVEPOINTS] += 1  # as the savepoint of the general path does
        if verdict == P.VERDICT_REFUSED:
            mem[txn + A.X_RUN] = 0  # that too
            return touch_row(mem, txn, buf, fragment, rowid, A.MODE_LOCK, None), True
        if verdict != P.VERDICT_OK:
            return A.ST_DROPPED, False
    if mode == A.MODE_UPDATE and needs_image(plan, pairs, count):
        row = known_row_address(mem, fragment, rowid)
        if put_changed_image(mem, plan, txn, buf, fragment, row, pairs, count, image) == 0:
            return A.ST_DROPPED, False
        if is_judged:
            put_outputs(program, work, image, 0)
        return put_existing(mem, txn, buf, fragment, rowid, image, 0, A.MODE_UPDATE, None), False
    status = touch_row(mem, txn, buf, fragment, rowid, mode, None)
    if status == A.OK and mode == A.MODE_UPDATE:
        # The new record, at the end of the buffer, has the row as it was.
        at = mem[txn + A.X_USED] - mem[fragment + A.F_FIXED_WORDS]
        put_changes(plan, pairs, count, buf, at)
        if is_judged:
            put_outputs(program, work, buf, at)
    return status, False


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
    return LEFT if abort_some(mem, txn, buf, WHOLE) == A.OK else BROKEN


@helper
def make(mem, plan, txn, buf, image, mode, what, changes, where, trees, given, bound, rows, work, keys, values):
    """Make a change in a transaction; return as `change`."""
    if mode == A.MODE_UPDATE or mode == A.MODE_DELETE:
        return change(
            mem, plan, txn, buf, image, mode, what, changes, where, trees, given, bound, rows, work, keys, values
        )
    return put(mem, plan, txn, buf, what, mode, image, keys, values), False


@object_kernel(
    "int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, object_,"
    " object_, object_, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def change_row(
    mem, plan, txn, buf, fill, copies, image, epoch, mode, what, changes, where, trees, given, bound, rows, work
):
    """Make a change and commit it. txn, buf: a descriptor and a buffer for this alone. image: scratch memory.

    mode: MODE_UPDATE (what: a primary key, changes: a dict), MODE_DELETE (what: a primary key), MODE_INSERT or
    MODE_WRITE (what: a row, as a tuple, or as a dict of all columns).

    where: a condition, or None. It and the expressions among the changes are bound to a program of `trees`.

    given: such a program, already bound; then `where` is None. It changes columns that are changed in place. bound,
    rows, work: memory for programs.
    """
    if not is_current(mem, plan) or not has_txid(mem):
        return LEFT
    if begin_at(mem, txn, NO_SLOT, 0, U.REDO_WORDS) != A.OK:
        return LEFT
    keys = key_words()
    values = key_words()
    status, is_refused = make(
        mem, plan, txn, buf, image, mode, what, changes, where, trees, given, bound, rows, work, keys, values
    )
    done = end(mem, txn, buf, fill, copies, epoch, status)
    return REFUSED if done == DONE and is_refused else done


@object_kernel(
    "int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, object_, object_, object_,"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def change_seen(mem, plan, txn, buf, shown, image, mode, what, changes, where, trees, given, bound, rows, work):
    """Make a change in an open transaction, see `change_row`."""
    if not is_current(mem, plan) or (shown.size > 1 and has_uniques(mem, plan)):
        return LEFT
    keys = key_words()
    values = key_words()
    status, is_refused = make(
        mem, plan, txn, buf, image, mode, what, changes, where, trees, given, bound, rows, work, keys, values
    )
    if status != A.OK:
        return LEFT
    shown[0] = U.EPOCH_LAST
    return REFUSED if is_refused else DONE


@object_kernel(
    "object_(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], object_, int64[::1], int64[::1],"
    " int64[::1])"
)
def get_locked(mem, plan, txn, buf, shown, image, key, program, rows, work):
    """Return the row with a primary key as a transaction sees it, locked to its end; None, also for a row that the
    program refuses; or ... for the general path. program, rows, work: as for `change_row`.
    """
    made = row_of_plan(plan)
    if is_null(made):
        clear_error()
        return left()
    if not is_current(mem, plan) or shown.size > 1:
        return leave(made)
    keys = key_words()
    status, fragment, rowid = touch(mem, plan, txn, buf, key, keys, A.MODE_LOCK)
    row = 0
    verdict = P.VERDICT_OK
    if status == A.OK:
        row = known_row_address(mem, fragment, rowid)
        if program.size > 0:
            verdict = judge(mem, plan, txn, buf, fragment, rowid, image, program, rows, work)
        if verdict == P.VERDICT_OK:
            status = fill_seen(made, mem, plan, txn, buf, fragment, row)
        else:
            status = FOUND if verdict == P.VERDICT_REFUSED else A.ST_UNFINISHED
    elif status != A.ST_MISSING:
        return leave(made)
    note_shown(mem, shown, status, row)
    return no_row(made) if status == FOUND and verdict == P.VERDICT_REFUSED else answer(made, status)
