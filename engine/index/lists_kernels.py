"""The list of a table's indexes: one block that every fragment descriptor points to, changed in one call.

The table keeps the block for good, so a transaction that used a partition before its drop still finds the current list.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.tree_build_kernels import next_live
from tidemark.engine.index.tree_changes_kernels import remove_row
from tidemark.engine.index.unique_entries_kernels import remove_entry
from tidemark.engine.index.unique_keys_kernels import NO_TAG, slot_tag
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of, renew_handle
from tidemark.engine.memory.pool_kernels import take_block


@helper
def set_lists(mem, table):
    """Point every fragment of a table to the table's list of indexes; to 0 if the list is empty."""
    indexes = mem[table + A.T_INDEXES]
    if mem[indexes + X.XL_COUNT] == 0:
        indexes = 0
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            mem[fragment + A.F_INDEXES] = indexes


@kernel("int64(int64[::1], int64, int64)")
def announce_index(mem, table, tree):
    """Append an index to a table's list: transactions that begin from now on reserve space in it. OK, ST_MEMORY or
    ST_DROPPED.
    """
    table = descriptor_of(mem, table)
    tree = descriptor_of(mem, tree)
    if table == 0 or tree == 0:
        return A.ST_DROPPED
    if mem[table + A.T_INDEXES] == 0:
        mem[table + A.T_INDEXES] = take_block(mem, A.S_POOL)
        if mem[table + A.T_INDEXES] == 0:
            return A.ST_MEMORY
    indexes = mem[table + A.T_INDEXES]
    mem[A.S_INDEX_GENERATION] += 1
    mem[tree + X.I_BIRTH] = mem[A.S_INDEX_GENERATION]
    mem[indexes + X.XL_FIRST + mem[indexes + X.XL_COUNT]] = tree
    mem[indexes + X.XL_COUNT] += 1
    mem[indexes + X.XL_UNIQUES] += 1 if mem[tree + X.I_UNIQUE] != 0 else 0
    mem[A.S_UNLISTED] = 0
    set_lists(mem, table)
    return A.OK


@kernel("int64(int64[::1], int64, int64)")
def withdraw_index(mem, table, tree):
    """Remove an index from a table's list and make every existing handle of the index stale. The caller frees the
    memory with the new handle (`next_handle`). No commit maintains the index any more, and no scan reads it. OK;
    ST_MISSING if it was not in the list; ST_DROPPED if it was withdrawn before.
    """
    table = descriptor_of(mem, table)
    tree = descriptor_of(mem, tree)
    if table == 0 or tree == 0:
        return A.ST_DROPPED
    renew_handle(mem, tree)
    indexes = mem[table + A.T_INDEXES]
    if indexes == 0:
        return A.ST_MISSING
    status = A.ST_MISSING
    count = mem[indexes + X.XL_COUNT]
    for i in range(count):
        each = mem[indexes + X.XL_FIRST + i]
        if each == tree:
            status = A.OK
        elif status == A.OK:
            mem[indexes + X.XL_FIRST + i - 1] = each
    if status == A.OK:
        mem[indexes + X.XL_COUNT] = count - 1
        mem[indexes + X.XL_UNIQUES] -= 1 if mem[tree + X.I_UNIQUE] != 0 else 0
        set_lists(mem, table)
    return status


@kernel("int64(int64[::1], int64, int64, int64)")
def publish_index(mem, table, tree, version):
    """Set a new version of the table's definition, in which the index `tree` is built (0: an index was dropped)."""
    table = descriptor_of(mem, table)
    if table == 0:
        return A.ST_DROPPED
    if tree != 0:
        tree = descriptor_of(mem, tree)
        if tree == 0:
            return A.ST_DROPPED
    if tree != 0:
        mem[tree + X.I_STATE] = X.INDEX_READY
        mem[tree + X.I_BUILT_FRAGMENT] = X.BUILT_WHOLLY
    mem[table + A.T_SCHEMA_VERSION] = version
    for number in range(mem[table + A.T_FRAGMENTS]):
        fragment = mem[mem[table + A.T_FRAGMENT_LIST] + number]
        if fragment != 0:
            mem[fragment + A.F_SCHEMA_VERSION] = version
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def remove_rows(mem, tree, fragment, state):
    """Remove the entries of a dropped fragment's LIVE rows from ROWID state[0] on, visiting at most state[1] slots. OK
    at the fragment's end, or ST_MORE. tree: an ordered or unique index.
    """
    tree = descriptor_of(mem, tree)
    fragment = descriptor_of(mem, fragment)
    if tree == 0 or fragment == 0:
        return A.ST_DROPPED
    while True:
        place = next_live(mem, fragment, state[0], state)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        if mem[tree + X.I_UNIQUE] == 0:
            remove_row(mem, tree, place)
            continue
        tag = slot_tag(mem, tree, place)
        if tag != NO_TAG:
            remove_entry(mem, tree, tag, place)
