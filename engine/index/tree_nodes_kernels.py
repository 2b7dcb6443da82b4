"""Nodes of an ordered index: finding and moving words in their planes, and blocks from the tree's own list.

A node is a header and planes of one word for each entry: W planes of key words, one of places, and in inner nodes one
of children. Entry 0 of an inner node has no separator; its key words are left over from a move.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.index import index_layout as X
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at

LINE = 16  # words compared without a branch at the end of a search


@helper
def words_below(mem, at, count, wanted):
    """Return how many of `count` ascending words are less than `wanted`.

    Halves are chosen without a branch, which would be unpredictable; the last few words are compared as a vector.
    """
    first = at
    while count > LINE:
        half = count >> 1
        at += half if word_at(mem, at + half - 1) < wanted else 0
        count -= half
    found = 0
    base = np.uint64(at)
    for i in range(count):
        found += 1 if mem[base + np.uint64(i)] < wanted else 0
    return at - first + found


@helper
def words_up_to(mem, at, count, wanted):
    """Return how many of `count` ascending words are not greater than `wanted`."""
    first = at
    while count > LINE:
        half = count >> 1
        at += half if word_at(mem, at + half - 1) <= wanted else 0
        count -= half
    found = 0
    base = np.uint64(at)
    for i in range(count):
        found += 1 if mem[base + np.uint64(i)] <= wanted else 0
    return at - first + found


@helper
def capacity_of(mem, tree, level):
    """Return the capacity of a node: entries of a leaf (level 0), or children of an inner node."""
    return word_at(mem, tree + (X.I_LEAF_CAPACITY if level == 0 else X.I_INNER_CAPACITY))


@helper
def planes_of(mem, tree, level):
    """Return the number of planes of a node: key words, places, and in inner nodes children."""
    return word_at(mem, tree + X.I_WORDS) + (1 if level == 0 else 2)


@helper
def children_of(mem, tree, node):
    return node + X.NODE_HEADER_WORDS + (word_at(mem, tree + X.I_WORDS) + 1) * word_at(mem, tree + X.I_INNER_CAPACITY)


@helper
def places_of(mem, tree, leaf):
    return leaf + X.NODE_HEADER_WORDS + word_at(mem, tree + X.I_WORDS) * word_at(mem, tree + X.I_LEAF_CAPACITY)


@helper
def shift_words_up(mem, at, count, by):
    """Shift the `count` words at `at` up by `by`, eight at a time; from the top, because the ranges overlap."""
    left = count
    step = np.uint64(by)
    while left >= 8:
        left -= 8
        p0 = np.uint64(at + left)
        p1 = p0 + np.uint64(1)
        p2 = p0 + np.uint64(2)
        p3 = p0 + np.uint64(3)
        p4 = p0 + np.uint64(4)
        p5 = p0 + np.uint64(5)
        p6 = p0 + np.uint64(6)
        p7 = p0 + np.uint64(7)
        w0, w1, w2, w3 = mem[p0], mem[p1], mem[p2], mem[p3]
        w4, w5, w6, w7 = mem[p4], mem[p5], mem[p6], mem[p7]
        mem[p0 + step] = w0
        mem[p1 + step] = w1
        mem[p2 + step] = w2
        mem[p3 + step] = w3
        mem[p4 + step] = w4
        mem[p5 + step] = w5
        mem[p6 + step] = w6
        mem[p7 + step] = w7
    while left > 0:
        left -= 1
        place = np.uint64(at + left)
        mem[place + step] = mem[place]


@helper
def shift_words_down(mem, at, count, by):
    """Shift the `count` words at `at` down by `by`."""
    step = np.uint64(by)
    for i in range(count):
        place = np.uint64(at + i)
        mem[place - step] = mem[place]


@helper
def open_gap(mem, tree, node, at, by):
    """Make room for `by` entries before entry `at`, and raise the node's count."""
    level = mem[node + X.N_LEVEL]
    capacity = capacity_of(mem, tree, level)
    count = mem[node + X.N_COUNT]
    base = node + X.NODE_HEADER_WORDS + at
    for _ in range(planes_of(mem, tree, level)):
        shift_words_up(mem, base, count - at, by)
        base += capacity
    mem[node + X.N_COUNT] = count + by


@helper
def close_gap(mem, tree, node, at, by):
    """Remove entries [at, at + by), and lower the node's count."""
    level = mem[node + X.N_LEVEL]
    capacity = capacity_of(mem, tree, level)
    count = mem[node + X.N_COUNT]
    base = node + X.NODE_HEADER_WORDS + at + by
    for _ in range(planes_of(mem, tree, level)):
        shift_words_down(mem, base, count - at - by, by)
        base += capacity
    mem[node + X.N_COUNT] = count - by


@helper
def copy_entries(mem, tree, source, start, target, at, count):
    """Copy entries between two nodes of the same level."""
    level = mem[source + X.N_LEVEL]
    capacity = capacity_of(mem, tree, level)
    origin = np.uint64(source + X.NODE_HEADER_WORDS + start)
    goal = np.uint64(target + X.NODE_HEADER_WORDS + at)
    for _ in range(planes_of(mem, tree, level)):
        for i in range(count):
            step = np.uint64(i)
            mem[goal + step] = mem[origin + step]
        origin += np.uint64(capacity)
        goal += np.uint64(capacity)


@helper
def copy_separator(mem, tree, source, start, target, at):
    """Copy the key words and place of one entry of any node to an entry of an inner node."""
    capacity = capacity_of(mem, tree, mem[source + X.N_LEVEL])
    origin = source + X.NODE_HEADER_WORDS + start
    goal = target + X.NODE_HEADER_WORDS + at
    for _ in range(mem[tree + X.I_WORDS] + 1):
        mem[goal] = mem[origin]
        origin += capacity
        goal += mem[tree + X.I_INNER_CAPACITY]


@helper
def own_node(mem, tree, level):
    """Take a node from the tree's own list, which must not be empty."""
    node = mem[tree + X.I_FREE]
    mem[tree + X.I_FREE] = mem[node]
    mem[tree + X.I_FREE_COUNT] -= 1
    mem[node + X.N_LEVEL] = level
    mem[node + X.N_COUNT] = 0
    mem[node + X.N_PREVIOUS] = 0
    mem[node + X.N_NEXT] = 0
    mem[node + X.N_INDEX] = tree
    mem[tree + X.I_LEVELS + level] += 1
    return node


@helper
def disown_node(mem, tree, node):
    """Return a node to the tree's own list."""
    mem[tree + X.I_LEVELS + mem[node + X.N_LEVEL]] -= 1
    mem[node] = mem[tree + X.I_FREE]
    mem[tree + X.I_FREE] = node
    mem[tree + X.I_FREE_COUNT] += 1
