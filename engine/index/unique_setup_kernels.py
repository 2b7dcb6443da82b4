"""Creating, announcing, filling and freeing unique indexes (docs/internals/access.md, 6 to 8)."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import NO_VAR_PART, encode_row, row_of_place, var_of_place
from tidemark.engine.index.tree_build_kernels import next_live
from tidemark.engine.index.tree_setup_kernels import free_side, shape_descriptor
from tidemark.engine.index.unique_entries_kernels import (
    entry_at,
    find_conflict_of_others,
    fragment_of_place,
    rowid_of_place,
    take_entry,
)
from tidemark.engine.index.unique_keys_kernels import has_null, slot_key_words, tag_in
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.log.own_images_kernels import entry_words, write_entry
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of, free_descriptor, handle_of
from tidemark.engine.memory.pool_kernels import free_block, take_block
from tidemark.engine.rows.growth_kernels import drop_index, reserve_step
from tidemark.engine.rows.primary_kernels import ask_for_buckets, tag_of
from tidemark.engine.rows.var_parts_kernels import chunk_address

AHEAD_ENTRIES = 32


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64)")
def make_unique(mem, pool, shape, constants, seed):
    """Create an empty unique index; returns its handle, 0 when memory is exhausted (then nothing is kept).

    shape, constants: as for `make_tree`. seed: of the hash over key words. In an index created READY, all transactions
    take entries.
    """
    index = shape_descriptor(mem, pool, shape, constants)
    if index == 0:
        return 0
    hash = take_block(mem, pool)
    if hash == 0:
        free_side(mem, index)
        free_descriptor(mem, index)
        return 0
    mem[hash + A.F_POOL] = pool
    mem[index + X.I_UNIQUE] = hash
    mem[index + X.U_SEED] = seed
    mem[index + X.U_TAKES] = 0 if shape[0] == X.INDEX_READY else X.TAKES_NEVER
    mem[index + X.I_BUILT_FRAGMENT] = 0
    mem[A.S_UNLISTED] = handle_of(mem, index)
    return mem[A.S_UNLISTED]


@kernel("int64(int64[::1], int64)")
def drop_unique(mem, index):
    """Free a withdrawn index."""
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    pool = mem[index + X.I_POOL]
    drop_index(mem, mem[index + X.I_UNIQUE])
    free_block(mem, pool, mem[index + X.I_UNIQUE])
    free_side(mem, index)
    free_descriptor(mem, index)
    return A.OK


@kernel("int64(int64[::1], int64)")
def begin_unique(mem, index):
    """Announce an index a second time: transactions that begin from now on take entries. Returns their generation."""
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    mem[A.S_INDEX_GENERATION] += 1
    mem[index + X.U_TAKES] = mem[A.S_INDEX_GENERATION]
    mem[index + X.I_STATE] = X.INDEX_BUILDING
    return mem[A.S_INDEX_GENERATION]


@kernel("int64(int64[::1], int64, int64)")
def enforce_unique(mem, index, is_forced):
    """Enforce uniqueness after a walk over all rows, if since the last call no operation has found its key in another
    row (U_SUSPECTS), or if `is_forced`. OK, or ST_MORE: rows must be walked again.
    """
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    suspects = mem[index + X.U_SUSPECTS]
    mem[index + X.U_SUSPECTS] = 0
    if suspects == 0 or is_forced:
        mem[index + X.I_STATE] = X.INDEX_READY
    return A.OK if suspects == 0 else A.ST_MORE


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])")
def walk_unique(mem, index, fragment, state, out):
    """Check a fragment's LIVE rows from ROWID state[0] on, and take the entries of those without one.

    state: [next ROWID, slots to visit, rows to check]. OK at the fragment's end, ST_MORE, ST_MEMORY, ST_BUSY (a
    transaction has locked a row with the same tag), or ST_UNIQUE: two rows have the same key; `out` gets the entry of
    one.
    """
    index = descriptor_of(mem, index)
    fragment = descriptor_of(mem, fragment)
    if index == 0 or fragment == 0:
        return A.ST_DROPPED
    while state[2] > 0:
        before = state[0]
        place = next_live(mem, fragment, before, state)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        state[2] -= 1
        words = slot_key_words(mem, index, place, X.SIDE_TARGET)
        if words == 0:
            continue
        tag = tag_in(mem, index, X.SIDE_TARGET, words)
        status = find_conflict_of_others(mem, index + X.U_EVIDENCE, mem, index, tag, place, words)
        if status == A.OK and entry_at(mem, index, tag, place) == 0:
            status = take_entry(mem, index, tag, place)
        if status != A.OK:
            state[0] = before
            if status == A.ST_UNIQUE:
                copy_evidence(mem, place, out)
            return status
    return A.ST_MORE


@helper
def copy_evidence(mem, place, out):
    """Write the entry of the row at a place (`write_entry`) to out, if there is room."""
    fragment = fragment_of_place(mem, place)
    row = row_of_place(mem, place)
    if entry_words(mem, fragment, row, False) <= out.size:
        write_entry(mem, mem, fragment, rowid_of_place(mem, place), row, False, out, 0)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def collect_unique(mem, index, fragment, tags, places, side, state):
    """Collect the tags and places of a fragment's LIVE rows from ROWID state[0] on into private arrays.

    side: two scratch parts, each the longest key plus two words. state: [next ROWID, slots to visit, entries so far].
    OK at the fragment's end, or ST_MORE.
    """
    index = descriptor_of(mem, index)
    fragment = descriptor_of(mem, fragment)
    if index == 0 or fragment == 0:
        return A.ST_DROPPED
    out = mem[index + X.I_KEY_WORDS] + 2
    while state[2] < places.size:
        place = next_live(mem, fragment, state[0], state)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        reference = var_of_place(mem, place)
        var_at = chunk_address(mem, reference) if reference else NO_VAR_PART
        if not has_null(mem, index, mem, row_of_place(mem, place) + A.ROW_HEADER_WORDS, mem, var_at):
            words = encode_row(mem, index, place, side, 0, side, out, out - 2)
            tags[state[2]] = tag_of(side, out, words, mem[index + X.U_SEED])
            places[state[2]] = place
            state[2] += 1
    return A.ST_MORE


@kernel("int64(int64[::1], int64, int64, int64)")
def reserve_unique(mem, index, expected, at):
    """Run one step of sizing an index for `expected` entries; call again with the result until it is negative."""
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    return reserve_step(mem, mem[index + X.I_UNIQUE], expected, at)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def load_unique(mem, index, tags, places, start, stop):
    """Add entries [start, stop) while no other thread uses the index; OK or ST_MEMORY."""
    index = descriptor_of(mem, index)
    if index == 0:
        return A.ST_DROPPED
    hash = mem[index + X.I_UNIQUE]
    for begin in range(start, stop, AHEAD_ENTRIES):
        end = min(begin + AHEAD_ENTRIES, stop)
        for i in range(begin, end):
            ask_for_buckets(mem, hash, tags[i])
        for i in range(begin, end):
            if take_entry(mem, index, tags[i], places[i]) != A.OK:
                return A.ST_MEMORY
    return A.OK
