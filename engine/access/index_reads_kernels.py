"""Rows that the reading transaction has changed, for scans by an ordered index.

They are not part of the stream of entries: those that it had changed when the scan began are skipped there, and come
from `own_rows`.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.access.reads_kernels import visible
from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_row, side_part
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import (
    entry_words,
    is_image_evicted,
    lock_owner,
    newest_operation,
    write_entry,
)
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import known_row_address
from tidemark.engine.txn.before_images_kernels import ANY_WORD, has_change


@helper
def set_cursor(mem, tree, place, cursor):
    value = side_part(mem, tree, X.SIDE_VALUE)
    cursor[X.TG_PLACE] = place
    cursor[X.TG_WORDS] = encode_row(mem, tree, place, mem, value, cursor, X.TG_KEY, mem[tree + X.I_KEY_WORDS])


@helper
def is_own_change(mem, txn, until, row):
    """Whether a transaction had changed a row before word `until` of its buffer."""
    if txn == 0 or mem[row] & A.LOCK_MASK == 0 or lock_owner(mem, mem[row]) != txn:
        return False
    return has_change(mem, newest_operation(mem[row]), until)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1], int64[::1])")
def own_rows(mem, table_id, txn, buf, budget, out, offsets, state):
    """Copy the rows of a table that a transaction has changed and not deleted, each once, as it sees them, without disk
    parts.

    Processes operations from state[2] on (0: the first), about `budget` rows per call. state: [rows found, words used,
    next operation]. Return OK at the end, ST_MORE, ST_SPOOLED, ST_SPACE - words needed, or ST_SPACE if `offsets` is
    full.
    """
    operation = state[2] if state[2] != 0 else mem[txn + A.X_FIRST]
    looked = 0
    while operation != 0:
        state[2] = operation
        if looked >= budget:
            return A.ST_MORE
        fragment = mem[operation + A.O_FRAGMENT]
        count = mem[operation + A.O_ROWID] >> A.COUNT_SHIFT
        if mem[fragment + A.F_TABLE] == table_id and mem[fragment + A.F_DROPPED] == 0:
            if state[0] + max(count, 1) > offsets.size:
                return A.ST_SPACE
            words = own_words(mem, txn, buf, fragment, operation, out, offsets, state)
            if words > 0:
                return A.ST_SPACE - words
            if words < 0:
                return words
        looked += 1 + count
        operation = mem[operation + A.O_NEXT]
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64)")
def may_have_changed(mem, table_id, txn, most):
    """Return whether a transaction has changed or deleted rows of a table, or more than `most` operations would have to
    be looked at.
    """
    operation = mem[txn + A.X_FIRST]
    for _ in range(most):
        if operation == 0:
            return 0
        if mem[mem[operation + A.O_FRAGMENT] + A.F_TABLE] == table_id:
            return 1
        operation = mem[operation + A.O_NEXT]
    return int(operation != 0)


@helper
def own_words(mem, txn, buf, fragment, operation, out, offsets, state):
    """Copy the rows whose newest operation this is. Return 0; or, with nothing copied, the words needed for all, or
    ST_SPOOLED.
    """
    first = mem[operation + A.O_ROWID] & A.ROWID_MASK
    count = max(1, mem[operation + A.O_ROWID] >> A.COUNT_SHIFT)
    need = 0
    for rowid in range(first, first + count):
        row = known_row_address(mem, fragment, rowid)
        if stands_for(mem, txn, operation, row):
            if is_image_evicted(mem, buf, row):
                return A.ST_SPOOLED
            need += entry_words(mem, fragment, row, True)
    if state[1] + need > out.size:
        return need
    for rowid in range(first, first + count):
        row = known_row_address(mem, fragment, rowid)
        if stands_for(mem, txn, operation, row):
            offsets[state[0]] = state[1] + A.ENTRY_WORDS
            state[1] += write_entry(mem, buf, fragment, rowid, row, True, out, state[1])
            state[0] += 1
    return 0


@helper
def stands_for(mem, txn, operation, row):
    """Whether an operation is the newest on a row that its transaction has changed and not deleted."""
    if newest_operation(mem[row]) != operation or lock_owner(mem, mem[row]) != txn:
        return False
    return has_change(mem, operation, ANY_WORD) and visible(mem, txn, row) == 2
