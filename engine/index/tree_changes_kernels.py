"""Adding and removing entries of an ordered index: nodes are split, balanced and joined.

The number of free blocks is checked before the first word changes. A node less than a quarter full is balanced with a
neighbour, or joined with it if both fit in three quarters of a node; the last leaf may start with one entry.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_here, side_part
from tidemark.engine.index.tree_nodes_kernels import (
    capacity_of,
    children_of,
    close_gap,
    copy_entries,
    copy_separator,
    disown_node,
    open_gap,
    own_node,
)
from tidemark.engine.index.tree_reservation_kernels import SPARE, blocks_needed, free_spare_blocks
from tidemark.engine.index.tree_search_kernels import descend, descend_right, find_in_leaf
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at
from tidemark.engine.memory import arena_layout as A


@helper
def put_entry(mem, tree, leaf, number, keys, at, place):
    """Insert an entry into a leaf that has room."""
    if word_at(mem, leaf + X.N_COUNT) * 2 < word_at(mem, tree + X.I_LEAF_CAPACITY):
        mem[tree + X.I_CREDIT] = min(mem[tree + X.I_CREDIT] + 1, mem[tree + X.I_LEAF_CAPACITY])
    open_gap(mem, tree, leaf, number, 1)
    capacity = mem[tree + X.I_LEAF_CAPACITY]
    entry = leaf + X.NODE_HEADER_WORDS + number
    for i in range(mem[tree + X.I_WORDS]):
        mem[entry] = keys[at + i]
        entry += capacity
    mem[entry] = place
    mem[tree + X.I_COUNT] += 1
    mem[tree + X.I_INSERTED] += 1
    mem[tree + X.I_VERSION] += 1


@helper
def put_child(mem, tree, node, number, source, child):
    """Insert a child into an inner node that has room; its separator is entry 0 of `source`."""
    open_gap(mem, tree, node, number, 1)
    copy_separator(mem, tree, source, 0, node, number)
    mem[children_of(mem, tree, node) + number] = child


@helper
def grow_root(mem, tree, level, made):
    """Add a root above the old one and the node split off it."""
    root = own_node(mem, tree, level)
    children = children_of(mem, tree, root)
    mem[root + X.N_COUNT] = 2
    copy_separator(mem, tree, made, 0, root, 0)
    copy_separator(mem, tree, made, 0, root, 1)
    mem[children] = mem[tree + X.I_ROOT]
    mem[children + 1] = made
    mem[tree + X.I_ROOT] = root
    mem[tree + X.I_HEIGHT] = level + 1


@helper
def split_inner(mem, tree, node, level):
    """Move the upper half of an inner node into a new node and return it."""
    half = mem[tree + X.I_INNER_CAPACITY] >> 1
    made = own_node(mem, tree, level)
    count = mem[node + X.N_COUNT] - half
    copy_entries(mem, tree, node, half, made, 0, count)
    mem[made + X.N_COUNT] = count
    mem[node + X.N_COUNT] = half
    return made


@helper
def insert_leaf(mem, tree, made):
    """Add a new leaf, next to the leaf of the path, to the levels above; the tree must have enough free blocks."""
    level = 1
    while level < mem[tree + X.I_HEIGHT]:
        node = mem[tree + X.I_PATH + 2 * level]
        number = mem[tree + X.I_PATH + 2 * level + 1] + 1
        if mem[node + X.N_COUNT] < mem[tree + X.I_INNER_CAPACITY]:
            put_child(mem, tree, node, number, made, made)
            return
        other = split_inner(mem, tree, node, level)
        half = mem[node + X.N_COUNT]
        if number <= half:
            put_child(mem, tree, node, number, made, made)
        else:
            put_child(mem, tree, other, number - half, made, made)
        made = other
        level += 1
    grow_root(mem, tree, level, made)


@helper
def blocks_of_split(mem, tree):
    needed = 1
    level = 1
    while level < mem[tree + X.I_HEIGHT]:
        if mem[mem[tree + X.I_PATH + 2 * level] + X.N_COUNT] < mem[tree + X.I_INNER_CAPACITY]:
            return needed
        needed += 1
        level += 1
    return needed + 1


@helper
def link_after(mem, tree, leaf, made):
    after = mem[leaf + X.N_NEXT]
    mem[made + X.N_PREVIOUS] = leaf
    mem[made + X.N_NEXT] = after
    mem[leaf + X.N_NEXT] = made
    if after != 0:
        mem[after + X.N_PREVIOUS] = made
    else:
        mem[tree + X.I_LAST_LEAF] = made


@helper
def split_and_put(mem, tree, leaf, number, keys, at, place):
    """Insert an entry into the path's leaf, which is full; OK, or ST_INVARIANT if no room was reserved."""
    if mem[tree + X.I_FREE_COUNT] < blocks_of_split(mem, tree):
        return A.ST_INVARIANT
    capacity = mem[tree + X.I_LEAF_CAPACITY]
    half = capacity >> 1
    if number == capacity and mem[leaf + X.N_NEXT] == 0 and mem[tree + X.I_CREDIT] >= half:
        mem[tree + X.I_CREDIT] -= half  # ascending keys leave full leaves
        half = capacity
    made = own_node(mem, tree, 0)
    copy_entries(mem, tree, leaf, half, made, 0, capacity - half)
    mem[made + X.N_COUNT] = capacity - half
    mem[leaf + X.N_COUNT] = half
    link_after(mem, tree, leaf, made)
    if number <= half and half < capacity:
        put_entry(mem, tree, leaf, number, keys, at, place)
    else:
        put_entry(mem, tree, made, number - half, keys, at, place)
    mem[tree + X.I_SPLITS] += 1
    insert_leaf(mem, tree, made)
    return A.OK


@helper
def is_past_all(mem, tree, leaf, keys, at, place):
    """Whether a target is past every entry, as far as that is visible without reading a row."""
    count = mem[leaf + X.N_COUNT]
    if count == 0:
        return True
    entry = leaf + X.NODE_HEADER_WORDS + count - 1
    for i in range(word_at(mem, tree + X.I_WORDS)):
        word = word_at(mem, entry)
        if word != keys[at + i]:
            return word < keys[at + i]
        entry += word_at(mem, tree + X.I_LEAF_CAPACITY)
    return word_at(mem, tree + X.I_IS_EXACT) != 0 and word_at(mem, entry) < place


@helper
def insert_entry(mem, tree, keys, at, words, place):
    """Add an entry; OK, ST_DUPLICATE if it exists, or ST_INVARIANT if no room was reserved."""
    leaf = mem[tree + X.I_LAST_LEAF]
    if is_past_all(mem, tree, leaf, keys, at, place):
        number = mem[leaf + X.N_COUNT]
        if number == mem[tree + X.I_LEAF_CAPACITY]:
            descend_right(mem, tree)
    else:
        leaf = descend(mem, tree, keys, at, words, place)
        found = find_in_leaf(mem, tree, leaf, keys, at, words, place)
        if found & 1:
            return A.ST_DUPLICATE
        number = found >> 1
    if mem[leaf + X.N_COUNT] < mem[tree + X.I_LEAF_CAPACITY]:
        put_entry(mem, tree, leaf, number, keys, at, place)
        return A.OK
    return split_and_put(mem, tree, leaf, number, keys, at, place)


@helper
def least_of(mem, tree, level):
    """Return the minimum entries of a node that is neither the root nor the last leaf."""
    return max(1 if level == 0 else 2, capacity_of(mem, tree, level) >> 2)


@helper
def join_nodes(mem, tree, parent, number, left, right, level):
    """Move all entries of child `number` of an inner node to the child before it, and free the emptied node."""
    if level > 0:
        copy_separator(mem, tree, parent, number, right, 0)
    copy_entries(mem, tree, right, 0, left, mem[left + X.N_COUNT], mem[right + X.N_COUNT])
    mem[left + X.N_COUNT] += mem[right + X.N_COUNT]
    if level == 0:
        after = mem[right + X.N_NEXT]
        mem[left + X.N_NEXT] = after
        if after != 0:
            mem[after + X.N_PREVIOUS] = left
        else:
            mem[tree + X.I_LAST_LEAF] = left
    disown_node(mem, tree, right)
    close_gap(mem, tree, parent, number, 1)
    mem[tree + X.I_JOINS] += 1


@helper
def balance_nodes(mem, tree, parent, number, left, right, level):
    """Balance the entries of child `number` of an inner node and the child before it."""
    if level > 0:
        copy_separator(mem, tree, parent, number, right, 0)
    have = mem[left + X.N_COUNT]
    want = (have + mem[right + X.N_COUNT]) >> 1
    if have < want:
        copy_entries(mem, tree, right, 0, left, have, want - have)
        close_gap(mem, tree, right, 0, want - have)
    else:
        open_gap(mem, tree, right, 0, have - want)
        copy_entries(mem, tree, left, want, right, 0, have - want)
    mem[left + X.N_COUNT] = want
    copy_separator(mem, tree, right, 0, parent, number)


@helper
def lower_root(mem, tree):
    while mem[tree + X.I_HEIGHT] > 1 and mem[mem[tree + X.I_ROOT] + X.N_COUNT] == 1:
        root = mem[tree + X.I_ROOT]
        mem[tree + X.I_ROOT] = mem[children_of(mem, tree, root)]
        mem[tree + X.I_HEIGHT] -= 1
        disown_node(mem, tree, root)


@helper
def rebalance_path(mem, tree, level):
    """Refill the path's node at `level` if it is less than a quarter full, then the nodes above it."""
    joined = False
    while level + 1 < mem[tree + X.I_HEIGHT]:
        node = mem[tree + X.I_PATH + 2 * level]
        if mem[node + X.N_COUNT] >= least_of(mem, tree, level):
            break
        parent = mem[tree + X.I_PATH + 2 * level + 2]
        number = mem[tree + X.I_PATH + 2 * level + 3]
        children = children_of(mem, tree, parent)
        number = number + 1 if number + 1 < mem[parent + X.N_COUNT] else number
        left = mem[children + number - 1]
        right = mem[children + number]
        if 4 * (mem[left + X.N_COUNT] + mem[right + X.N_COUNT]) > 3 * capacity_of(mem, tree, level):
            balance_nodes(mem, tree, parent, number, left, right, level)
            break
        join_nodes(mem, tree, parent, number, left, right, level)
        joined = True
        level += 1
    if joined:
        lower_root(mem, tree)
        free_spare_blocks(mem, tree, blocks_needed(mem, tree, mem[tree + X.I_RESERVED]) + SPARE, SPARE)


@helper
def delete_entry(mem, tree, keys, at, words, place):
    """Remove an entry; OK or ST_MISSING."""
    leaf = descend(mem, tree, keys, at, words, place)
    found = find_in_leaf(mem, tree, leaf, keys, at, words, place)
    if found & 1 == 0:
        return A.ST_MISSING
    close_gap(mem, tree, leaf, found >> 1, 1)
    mem[tree + X.I_COUNT] -= 1
    mem[tree + X.I_DELETED] += 1
    mem[tree + X.I_VERSION] += 1
    if mem[leaf + X.N_COUNT] < least_of(mem, tree, 0):
        rebalance_path(mem, tree, 0)
    return A.OK


@helper
def add_row(mem, tree, place):
    """Add the entry of the LIVE row at a place; returns what `insert_entry` returns."""
    words = encode_here(mem, tree, place, X.SIDE_TARGET, mem[tree + X.I_KEY_WORDS])
    return insert_entry(mem, tree, mem, side_part(mem, tree, X.SIDE_TARGET), words, place)


@helper
def remove_row(mem, tree, place):
    """Remove the entry of the row at a place, which must still have its image; returns what `delete_entry` returns."""
    words = encode_here(mem, tree, place, X.SIDE_TARGET, mem[tree + X.I_KEY_WORDS])
    return delete_entry(mem, tree, mem, side_part(mem, tree, X.SIDE_TARGET), words, place)


@helper
def has_row(mem, tree, place):
    words = encode_here(mem, tree, place, X.SIDE_TARGET, mem[tree + X.I_KEY_WORDS])
    keys = side_part(mem, tree, X.SIDE_TARGET)
    leaf = descend(mem, tree, mem, keys, words, place)
    return find_in_leaf(mem, tree, leaf, mem, keys, words, place) & 1
