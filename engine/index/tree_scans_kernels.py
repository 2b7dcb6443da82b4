"""Reading an ordered index: entries between two targets in either direction, and estimates of their number.

A scan keeps nothing in the tree between two calls. Its cursor is a target: a bound before the first call, then the
whole key and the place of the last entry returned. Each call searches for the entry after it.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_row, side_part
from tidemark.engine.index.tree_nodes_kernels import children_of, places_of
from tidemark.engine.index.tree_search_kernels import (
    compare_entry,
    descend,
    find_child,
    find_in_leaf,
    read_entry_words,
)
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of

WALK_LEAVES = 8  # an estimate over up to this many leaves is exact
SHARE_BITS = 40


@helper
def find_target(mem, tree, leaf, target):
    """Like `find_in_leaf`, for a target array."""
    return find_in_leaf(mem, tree, leaf, target, X.TG_KEY, target[X.TG_WORDS], target[X.TG_PLACE])


@helper
def leaf_of(mem, tree, target):
    """Like `descend`, for a target array."""
    return descend(mem, tree, target, X.TG_KEY, target[X.TG_WORDS], target[X.TG_PLACE])


@helper
def copy_out_entries(mem, tree, leaf, first, count, step, places, keys, done):
    """Copy the places of `count` entries of a leaf, from number `first` on, to places[done:], and their words to keys
    unless that is empty.
    """
    from_place = places_of(mem, tree, leaf) + first
    for i in range(count):
        places[done + i] = word_at(mem, from_place + i * step)
    if keys.size:
        words = mem[tree + X.I_WORDS]
        capacity = mem[tree + X.I_LEAF_CAPACITY]
        for j in range(words):
            plane = leaf + X.NODE_HEADER_WORDS + j * capacity + first
            for i in range(count):
                keys[(done + i) * words + j] = word_at(mem, plane + i * step)


@helper
def move_cursor(mem, tree, leaf, number, cursor):
    place = mem[places_of(mem, tree, leaf) + number]
    cursor[X.TG_PLACE] = place
    if mem[tree + X.I_IS_EXACT]:
        cursor[X.TG_WORDS] = mem[tree + X.I_WORDS]
        read_entry_words(mem, tree, leaf, number, cursor, X.TG_KEY)
    else:
        value = side_part(mem, tree, X.SIDE_VALUE)
        cursor[X.TG_WORDS] = encode_row(mem, tree, place, mem, value, cursor, X.TG_KEY, mem[tree + X.I_KEY_WORDS])


@helper
def next_entries(mem, tree, cursor, bound, limit, places, keys):
    """Read the places of the next entries after `cursor` and before `bound`; returns (count, leaf and number of the
    last).
    """
    leaf = leaf_of(mem, tree, cursor)
    found = find_target(mem, tree, leaf, cursor)
    number = (found >> 1) + (found & 1)
    done = 0
    last_leaf = 0
    last_number = 0
    while leaf != 0 and done < limit:
        count = mem[leaf + X.N_COUNT]
        end = count
        if (
            count > 0
            and compare_entry(mem, tree, leaf, count - 1, bound, X.TG_KEY, bound[X.TG_WORDS], bound[X.TG_PLACE]) >= 0
        ):
            end = find_target(mem, tree, leaf, bound) >> 1
        taken = min(end - number, limit - done)
        if taken > 0:
            copy_out_entries(mem, tree, leaf, number, taken, 1, places, keys, done)
            done += taken
            last_leaf = leaf
            last_number = number + taken - 1
        if end < count:
            break
        leaf = mem[leaf + X.N_NEXT]
        number = 0
    return done, last_leaf, last_number


@helper
def entries_before(mem, tree, cursor, bound, limit, places, keys):
    """Like `next_entries`, in descending order: before `cursor` and after `bound`."""
    leaf = leaf_of(mem, tree, cursor)
    end = find_target(mem, tree, leaf, cursor) >> 1
    done = 0
    last_leaf = 0
    last_number = 0
    while leaf != 0 and done < limit:
        first = 0
        if end > 0 and compare_entry(mem, tree, leaf, 0, bound, X.TG_KEY, bound[X.TG_WORDS], bound[X.TG_PLACE]) <= 0:
            found = find_target(mem, tree, leaf, bound)
            first = (found >> 1) + (found & 1)
        taken = min(end - first, limit - done)
        if taken > 0:
            copy_out_entries(mem, tree, leaf, end - 1, taken, -1, places, keys, done)
            done += taken
            last_leaf = leaf
            last_number = end - taken
        if first > 0:
            break
        leaf = mem[leaf + X.N_PREVIOUS]
        if leaf != 0:
            end = mem[leaf + X.N_COUNT]
    return done, last_leaf, last_number


@helper
def entries_between(mem, tree, cursor, bound, reverse, limit, places, keys):
    """Do `next_entries`, or `entries_before` if `reverse`."""
    if reverse:
        return entries_before(mem, tree, cursor, bound, limit, places, keys)
    return next_entries(mem, tree, cursor, bound, limit, places, keys)


@helper
def share_before(mem, tree, target):
    """Estimate the share of all entries that are before a target, in units of 2**-SHARE_BITS."""
    node = mem[tree + X.I_ROOT]
    begin = 0
    width = 1 << SHARE_BITS
    for _ in range(mem[tree + X.I_HEIGHT] - 1):
        child = find_child(mem, tree, node, target, X.TG_KEY, target[X.TG_WORDS], target[X.TG_PLACE])
        width //= mem[node + X.N_COUNT]
        begin += child * width
        node = mem[children_of(mem, tree, node) + child]
    if mem[node + X.N_COUNT] == 0:
        return begin
    return begin + width // mem[node + X.N_COUNT] * (find_target(mem, tree, node, target) >> 1)


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def tree_estimate(mem, tree, low, high):
    """Estimate the number of entries between two targets: exact over a few leaves, else from their positions in the
    tree. ST_DROPPED if the index was dropped.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    leaf = leaf_of(mem, tree, high)
    last = leaf
    past = find_target(mem, tree, leaf, high) >> 1
    leaf = leaf_of(mem, tree, low)
    before = find_target(mem, tree, leaf, low) >> 1
    total = 0
    for _ in range(WALK_LEAVES):
        if leaf == last:
            return max(0, total + past - before)
        total += mem[leaf + X.N_COUNT]
        leaf = mem[leaf + X.N_NEXT]
        if leaf == 0:
            return 0  # the bounds are reversed
    share = share_before(mem, tree, high) - share_before(mem, tree, low)
    return max(0, int(mem[tree + X.I_COUNT] * (share / (1 << SHARE_BITS))))
