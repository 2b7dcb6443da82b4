"""Ordered indexes of a table while transactions run: operations reserve space, commits change entries.

A transaction uses only those indexes of the table's list that are no newer than itself: an online build begins after
all older transactions have ended. A commit does not touch entries of rows that a build has not reached. Changed rows of
a dropped partition lose their entries and get no new ones; the remaining entries are removed before the partition's
memory is freed.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import NO_VAR_PART, encode_here, encode_key, is_chained, side_part
from tidemark.engine.index.tree_changes_kernels import add_row, delete_entry, remove_row
from tidemark.engine.index.tree_reservation_kernels import release_entries, reserve_entries
from tidemark.engine.jit.kernel import helper
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.rows.rows_kernels import map_get
from tidemark.engine.rows.side_pages_kernels import var_of
from tidemark.engine.rows.var_parts_kernels import chunk_address

RETURNED_BLOCKS = 16  # most blocks an operation returns to the pool, plus one for each entry


@helper
def return_indexes(mem, txn, fragment, until, entries):
    """Return an operation's reservations in the first `until` indexes of the list."""
    indexes = mem[fragment + A.F_INDEXES]
    for i in range(until):
        tree = mem[indexes + X.XL_FIRST + i]
        if mem[tree + X.I_BIRTH] <= mem[txn + A.X_GENERATION] and mem[tree + X.I_UNIQUE] == 0:
            release_entries(mem, tree, entries, entries + RETURNED_BLOCKS)


@helper
def release_index_entries(mem, txn, fragment, entries):
    """Return the reservations of an operation that is committed."""
    return_indexes(mem, txn, fragment, entries_of(mem, fragment), entries)


@helper
def cancel_index_entries(mem, txn, fragment, entries):
    """Return the reservations of an operation that is refused or undone: its commit does not change these entries."""
    cancel_indexes(mem, txn, fragment, entries_of(mem, fragment), entries)


@helper
def cancel_indexes(mem, txn, fragment, until, entries):
    """Cancel an operation's reservations in the first `until` indexes of the list."""
    indexes = mem[fragment + A.F_INDEXES]
    for i in range(until):
        if mem[mem[indexes + X.XL_FIRST + i] + X.I_BIRTH] <= mem[txn + A.X_GENERATION]:
            mem[txn + A.X_INDEXED] -= changed_entries(entries)
    if entries > 0:
        return_indexes(mem, txn, fragment, until, entries)


@helper
def changed_entries(entries):
    """Return the most entries of one index that the commit of an operation changes: each of its `entries` new ones may
    replace one; 0 is an operation that only removes one.
    """
    return 2 * entries if entries > 0 else 1


@helper
def reserve_index_entries(mem, txn, fragment, entries):
    """Reserve room for `entries` in each index of an operation's table (0: it only removes entries). Returns OK, or
    ST_MEMORY with nothing reserved.
    """
    indexes = mem[fragment + A.F_INDEXES]
    for i in range(mem[indexes + X.XL_COUNT]):
        tree = mem[indexes + X.XL_FIRST + i]
        if mem[tree + X.I_BIRTH] > mem[txn + A.X_GENERATION]:
            continue
        if entries > 0 and mem[tree + X.I_UNIQUE] == 0 and reserve_entries(mem, tree, entries) != A.OK:
            cancel_indexes(mem, txn, fragment, i, entries)
            return A.ST_MEMORY
        mem[txn + A.X_INDEXED] += changed_entries(entries)
    return A.OK


@helper
def is_kept(mem, txn, tree, fragment, rowid):
    """Whether a commit maintains an ordered index's entry of a row."""
    if mem[tree + X.I_UNIQUE] != 0 or mem[tree + X.I_BIRTH] > mem[txn + A.X_GENERATION]:
        return False
    built = mem[tree + X.I_BUILT_FRAGMENT]
    if mem[fragment + A.F_NUMBER] != built:
        return mem[fragment + A.F_NUMBER] < built
    return rowid < mem[tree + X.I_BUILT_ROWID]


@helper
def place_of(mem, fragment, rowid):
    return map_get(mem, fragment, rowid >> 16) << X.PLACE_SHIFT | rowid & 0xFFFF


@helper
def entries_of(mem, fragment):
    """Return the number of indexes in the list of a fragment's table; 0 also if the last index was dropped after
    operations reserved space in it.
    """
    return mem[mem[fragment + A.F_INDEXES] + X.XL_COUNT] if mem[fragment + A.F_INDEXES] != 0 else 0


@helper
def missing_status(mem, fragment, status):
    """Map the status of a removal: an entry that is missing is a fault unless the partition was dropped."""
    return A.OK if status == A.OK or mem[fragment + A.F_DROPPED] else A.ST_INVARIANT


@helper
def remove_entries(mem, txn, fragment, rowid):
    """Remove the entries of a row about to be deleted; OK or ST_INVARIANT."""
    indexes = mem[fragment + A.F_INDEXES]
    place = place_of(mem, fragment, rowid)
    for i in range(entries_of(mem, fragment)):
        tree = mem[indexes + X.XL_FIRST + i]
        if is_kept(mem, txn, tree, fragment, rowid):
            if missing_status(mem, fragment, remove_row(mem, tree, place)) != A.OK:
                return A.ST_INVARIANT
    return A.OK


@helper
def add_entries(mem, txn, fragment, first, count, changed):
    """Add the entries of `count` LIVE rows to the indexes whose bits are set in `changed`; OK or ST_INVARIANT."""
    if mem[fragment + A.F_DROPPED]:
        return A.OK
    indexes = mem[fragment + A.F_INDEXES]
    for i in range(entries_of(mem, fragment)):
        if (changed >> i) & 1 == 0:
            continue
        tree = mem[indexes + X.XL_FIRST + i]
        for rowid in range(first, first + count):
            if is_kept(mem, txn, tree, fragment, rowid):
                if add_row(mem, tree, place_of(mem, fragment, rowid)) != A.OK:
                    return A.ST_INVARIANT
    return A.OK


@helper
def encode_image(mem, tree, fragment, row, buf, at, is_var_kept):
    """Encode the key words of a row's after-image buf[at:] into SIDE_OTHER; a var part that is kept is read from the
    row.
    """
    value = side_part(mem, tree, X.SIDE_VALUE)
    out = side_part(mem, tree, X.SIDE_OTHER)
    limit = mem[tree + X.I_KEY_WORDS]
    if not is_var_kept:
        var_at = at + mem[fragment + A.F_FIXED_WORDS]
        return encode_key(mem, tree, buf, at, buf, var_at, 0, mem, value, mem, out, limit)
    reference = var_of(mem, fragment, row)
    var_at = chunk_address(mem, reference) if reference != 0 else NO_VAR_PART
    if reference != 0 and not is_chained(mem, reference):
        reference = 0
    return encode_key(mem, tree, buf, at, mem, var_at, reference, mem, value, mem, out, limit)


@helper
def remove_changed(mem, txn, fragment, rowid, row, buf, at, has_var):
    """Remove the entries whose key an update changes; returns a bit for each such index, or ST_INVARIANT.

    has_var: whether the after-image buf[at:] has a var part.
    """
    indexes = mem[fragment + A.F_INDEXES]
    place = place_of(mem, fragment, rowid)
    is_var_kept = mem[fragment + A.F_HAS_VAR] != 0 and not has_var
    changed = 0
    for i in range(entries_of(mem, fragment)):
        tree = mem[indexes + X.XL_FIRST + i]
        if not is_kept(mem, txn, tree, fragment, rowid):
            continue
        words = encode_here(mem, tree, place, X.SIDE_TARGET, mem[tree + X.I_KEY_WORDS])
        after = encode_image(mem, tree, fragment, row, buf, at, is_var_kept)
        keys = side_part(mem, tree, X.SIDE_TARGET)
        other = side_part(mem, tree, X.SIDE_OTHER)
        same = 0
        while same < min(words, after) and mem[keys + same] == mem[other + same]:
            same += 1
        if same == words and same == after:
            continue
        changed |= 1 << i
        if missing_status(mem, fragment, delete_entry(mem, tree, mem, keys, words, place)) != A.OK:
            return A.ST_INVARIANT
    return changed


assert A.ST_MISSING < 0
