"""Verification of ordered indexes in slices: each call is atomic under the GIL, but anything may change between calls.

A slice begins after the last entry of the previous one. Sums are valid only if the tree did not change meanwhile; the
caller compares I_VERSION.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_here, row_of_place, side_part
from tidemark.engine.index.tree_build_kernels import next_live
from tidemark.engine.index.tree_changes_kernels import has_row, least_of
from tidemark.engine.index.tree_nodes_kernels import capacity_of, children_of, places_of
from tidemark.engine.index.tree_scans_kernels import find_target, leaf_of, move_cursor
from tidemark.engine.index.tree_search_kernels import compare_entry
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.rows_kernels import map_get


@helper
def fault(state, number, evidence):
    state[X.CK_FAULT] = number
    state[X.CK_EVIDENCE] = evidence
    return A.ST_INVARIANT


@helper
def leads_to_live_row(mem, place):
    page = place >> X.PLACE_SHIFT
    if page <= 0 or page >= mem.size >> A.PAGE_SHIFT:
        return False
    fragment = mem[(page << A.PAGE_SHIFT) + A.PG_FRAGMENT]
    logical = mem[(page << A.PAGE_SHIFT) + A.PG_LOGICAL]
    if fragment <= 0 or fragment >= mem.size - 512 or logical < 0 or logical >= mem[fragment + A.F_PAGES]:
        return False
    if map_get(mem, fragment, logical) != page or place & X.PLACE_SLOT_MASK >= mem[(page << A.PAGE_SHIFT) + A.PG_FRESH]:
        return False
    return (mem[row_of_place(mem, place)] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE


@helper
def check_entry(mem, tree, leaf, number, state):
    """Check one entry: its row, its words, and that it sorts before the next one."""
    place = mem[places_of(mem, tree, leaf) + number]
    if not leads_to_live_row(mem, place):
        return fault(state, X.FAULT_ROW, place)
    words = encode_here(mem, tree, place, X.SIDE_TARGET, mem[tree + X.I_KEY_WORDS])
    keys = side_part(mem, tree, X.SIDE_TARGET)
    for i in range(mem[tree + X.I_WORDS]):
        if mem[leaf + X.NODE_HEADER_WORDS + i * mem[tree + X.I_LEAF_CAPACITY] + number] != mem[keys + i]:
            return fault(state, X.FAULT_KEY, place)
    if number + 1 < mem[leaf + X.N_COUNT]:
        after = mem[places_of(mem, tree, leaf) + number + 1]
        if not leads_to_live_row(mem, after):
            return fault(state, X.FAULT_ROW, after)
        if compare_entry(mem, tree, leaf, number + 1, mem, keys, words, place) <= 0:
            return fault(state, X.FAULT_ORDER, place)
    return A.OK


@helper
def order_of_separator(mem, tree, node, number, leaf, entry):
    """Compare a separator with an entry: -1, 0 or 1. In an inexact index 0 means that the words are equal."""
    one = node + X.NODE_HEADER_WORDS + number
    other = leaf + X.NODE_HEADER_WORDS + entry
    for _ in range(mem[tree + X.I_WORDS] + (1 if mem[tree + X.I_IS_EXACT] else 0)):
        if mem[one] != mem[other]:
            return -1 if mem[one] < mem[other] else 1
        one += mem[tree + X.I_INNER_CAPACITY]
        other += mem[tree + X.I_LEAF_CAPACITY]
    return 0


@helper
def check_node(mem, tree, node, level, is_exempt, state):
    count = mem[node + X.N_COUNT]
    least = least_of(mem, tree, level)
    if level + 1 == mem[tree + X.I_HEIGHT]:
        least = 0 if level == 0 else 2
    elif is_exempt:
        least = 1
    if mem[node + X.N_LEVEL] != level or mem[node + X.N_INDEX] != tree:
        return fault(state, X.FAULT_NODE, node)
    if count < least or count > capacity_of(mem, tree, level):
        return fault(state, X.FAULT_NODE, node)
    return A.OK


@helper
def check_path(mem, tree, leaf, state):
    """Check the leaf of the path, and that each node above it points to the node below; count the upper nodes."""
    is_new = True  # a node above is counted with its first leaf
    below = leaf
    if check_node(mem, tree, leaf, 0, leaf == mem[tree + X.I_LAST_LEAF], state) != A.OK:
        return A.ST_INVARIANT
    for level in range(1, mem[tree + X.I_HEIGHT]):
        node = mem[tree + X.I_PATH + 2 * level]
        child = mem[tree + X.I_PATH + 2 * level + 1]
        if check_node(mem, tree, node, level, False, state) != A.OK:
            return A.ST_INVARIANT
        if child < 0 or child >= mem[node + X.N_COUNT] or mem[children_of(mem, tree, node) + child] != below:
            return fault(state, X.FAULT_NODE, node)
        if child > 0 and order_of_separator(mem, tree, node, child, leaf, 0) > 0:
            return fault(state, X.FAULT_SEPARATOR, node)
        if child + 1 < mem[node + X.N_COUNT]:
            order = order_of_separator(mem, tree, node, child + 1, leaf, mem[leaf + X.N_COUNT] - 1)
            if order < 0 or (order == 0 and mem[tree + X.I_IS_EXACT]):
                return fault(state, X.FAULT_SEPARATOR, node)
        is_new = is_new and child == 0
        if is_new:
            state[X.CK_LEVELS + level] += 1
        below = node
    return A.OK


@helper
def next_on_path(mem, tree):
    """Move the path to the next leaf and return its address, 0 if there is none."""
    level = 1
    while level < mem[tree + X.I_HEIGHT]:
        node = mem[tree + X.I_PATH + 2 * level]
        if mem[tree + X.I_PATH + 2 * level + 1] + 1 < mem[node + X.N_COUNT]:
            break
        level += 1
    if level >= mem[tree + X.I_HEIGHT]:
        return 0
    mem[tree + X.I_PATH + 2 * level + 1] += 1
    while level > 0:
        node = mem[tree + X.I_PATH + 2 * level]
        below = mem[children_of(mem, tree, node) + mem[tree + X.I_PATH + 2 * level + 1]]
        level -= 1
        mem[tree + X.I_PATH + 2 * level] = below
        if level > 0:
            mem[tree + X.I_PATH + 2 * level + 1] = 0
    return mem[tree + X.I_PATH]


@helper
def check_leaf(mem, tree, leaf, number, cursor, state):
    """Check a leaf and its position in the tree; count entries from `number` on and move the cursor to the last one."""
    if check_path(mem, tree, leaf, state) != A.OK:
        return A.ST_INVARIANT
    count = mem[leaf + X.N_COUNT]
    before = mem[leaf + X.N_PREVIOUS]
    after = mem[leaf + X.N_NEXT]
    if (before == 0) != (leaf == mem[tree + X.I_FIRST_LEAF]) or (after == 0) != (leaf == mem[tree + X.I_LAST_LEAF]):
        return fault(state, X.FAULT_LINK, leaf)
    if (before != 0 and mem[before + X.N_NEXT] != leaf) or (after != 0 and mem[after + X.N_PREVIOUS] != leaf):
        return fault(state, X.FAULT_LINK, leaf)
    for i in range(count):
        if check_entry(mem, tree, leaf, i, state) != A.OK:
            return A.ST_INVARIANT
    if count > number:
        if compare_entry(mem, tree, leaf, number, cursor, 2, cursor[1], cursor[X.TG_PLACE]) <= 0:
            return fault(state, X.FAULT_ORDER, leaf)
        move_cursor(mem, tree, leaf, count - 1, cursor)
    state[X.CK_ENTRIES] += count - number
    state[X.CK_LEAVES] += 1
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1])")
def tree_check(mem, tree, cursor, leaves, state):
    """Check the next leaves after a cursor, and the nodes above them.

    state (CK_ words, zeroed before the first call): entries, leaves and nodes of each upper level seen so far, fault
    and evidence. OK at the end, ST_MORE, or ST_INVARIANT.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    leaf = leaf_of(mem, tree, cursor)
    found = find_target(mem, tree, leaf, cursor)
    number = (found >> 1) + (found & 1)
    if number > 0 and number == mem[leaf + X.N_COUNT]:
        leaf = next_on_path(mem, tree)
        number = 0
    while leaf != 0:
        if leaves <= 0:
            return A.ST_MORE
        if check_leaf(mem, tree, leaf, number, cursor, state) != A.OK:
            return A.ST_INVARIANT
        linked = mem[leaf + X.N_NEXT]
        leaf = next_on_path(mem, tree)
        if leaf != linked:
            return fault(state, X.FAULT_LINK, linked)
        number = 0
        leaves -= 1
    return A.OK


@kernel("int64(int64[::1], int64, int64[::1])")
def tree_check_free(mem, tree, state):
    """Check the tree's own list of free blocks; OK or ST_INVARIANT."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    block = mem[tree + X.I_FREE]
    for _ in range(mem[tree + X.I_FREE_COUNT]):
        if block <= 0 or block >= mem.size:
            return fault(state, X.FAULT_FREE, block)
        block = mem[block]
    return A.OK if block == 0 else fault(state, X.FAULT_FREE, block)


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1])")
def tree_check_rows(mem, tree, fragment, position, state):
    """Check that a fragment's LIVE rows have their entries.

    position: [next ROWID, slots to visit, rows seen so far]. OK at the end, ST_MORE, or ST_INVARIANT.
    """
    tree = descriptor_of(mem, tree)
    fragment = descriptor_of(mem, fragment)
    if tree == 0 or fragment == 0:
        return A.ST_DROPPED
    while True:
        place = next_live(mem, fragment, position[0], position)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        if not has_row(mem, tree, place):
            return fault(state, X.FAULT_MISSING, place)
        position[2] += 1
