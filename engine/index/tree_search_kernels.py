"""Finding places in an ordered index.

A target is at least W key words and a place: the place of an entry, or one below or above all places, which makes the
target a bound. Entries of equal words are ordered by the whole key, then by place. Unless the index is exact, only the
row has the whole key.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_here, side_part
from tidemark.engine.index.tree_nodes_kernels import capacity_of, children_of, words_below, words_up_to
from tidemark.engine.jit.kernel import helper
from tidemark.engine.jit.words_kernels import word_at


@helper
def compare_rest(mem, tree, held, keys, at, words, place):
    """Compare the entry with place `held`, whose W words equal the target's, with the target: -1, 0 or 1."""
    if word_at(mem, tree + X.I_IS_EXACT) == 0 and words > word_at(mem, tree + X.I_WORDS):  # else the places decide
        length = encode_here(mem, tree, held, X.SIDE_OTHER, words)
        other = side_part(mem, tree, X.SIDE_OTHER)
        for i in range(word_at(mem, tree + X.I_WORDS), min(words, length)):
            if mem[other + i] != keys[at + i]:
                return -1 if mem[other + i] < keys[at + i] else 1
    if held == place:
        return 0
    return -1 if held < place else 1


@helper
def compare_entry(mem, tree, leaf, number, keys, at, words, place):
    """Like `compare_rest`, for any entry of a leaf."""
    capacity = word_at(mem, tree + X.I_LEAF_CAPACITY)
    entry = leaf + X.NODE_HEADER_WORDS + number
    for i in range(word_at(mem, tree + X.I_WORDS)):
        word = word_at(mem, entry)
        if word != word_at(keys, at + i):
            return -1 if word < keys[at + i] else 1
        entry += capacity
    return compare_rest(mem, tree, word_at(mem, entry), keys, at, words, place)


@helper
def find_in_leaf(mem, tree, leaf, keys, at, words, place):
    """Return twice the number of entries before the target, plus 1 if the next entry is the target."""
    capacity = word_at(mem, tree + X.I_LEAF_CAPACITY)
    base = leaf + X.NODE_HEADER_WORDS
    low = 0
    high = word_at(mem, leaf + X.N_COUNT)
    for i in range(word_at(mem, tree + X.I_WORDS)):
        wanted = word_at(keys, at + i)
        low += words_below(mem, base + low, high - low, wanted)
        if low == high or word_at(mem, base + low) != wanted:
            return low << 1
        if low + 1 < high and word_at(mem, base + low + 1) == wanted:
            high = low + words_up_to(mem, base + low, high - low, wanted)
        else:
            high = low + 1
        base += capacity
    if word_at(mem, tree + X.I_IS_EXACT):
        low += words_below(mem, base + low, high - low, place)
        return low << 1 | (1 if low < high and word_at(mem, base + low) == place else 0)
    while low < high:
        middle = (low + high) >> 1
        order = compare_rest(mem, tree, mem[base + middle], keys, at, words, place)
        if order == 0:
            return middle << 1 | 1
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return low << 1


@helper
def first_leaf_below(mem, tree, node):
    while mem[node + X.N_LEVEL] > 0:
        node = mem[children_of(mem, tree, node)]
    return node


@helper
def find_child(mem, tree, node, keys, at, words, place):
    """Return the number of the child whose subtree a target belongs to."""
    capacity = word_at(mem, tree + X.I_INNER_CAPACITY)
    base = node + X.NODE_HEADER_WORDS
    low = 1
    high = word_at(mem, node + X.N_COUNT)
    for i in range(word_at(mem, tree + X.I_WORDS)):
        wanted = word_at(keys, at + i)
        low += words_below(mem, base + low, high - low, wanted)
        if low == high or word_at(mem, base + low) != wanted:
            return low - 1
        if low + 1 < high and word_at(mem, base + low + 1) == wanted:
            high = low + words_up_to(mem, base + low, high - low, wanted)
        else:
            high = low + 1
        base += capacity
    if word_at(mem, tree + X.I_IS_EXACT):
        return low + words_up_to(mem, base + low, high - low, place) - 1
    children = children_of(mem, tree, node)
    while low < high:
        # The separator's row may be gone. The first entry of the child decides; its words may differ from the
        # separator's.
        middle = (low + high) >> 1
        leaf = first_leaf_below(mem, tree, mem[children + middle])
        if compare_entry(mem, tree, leaf, 0, keys, at, words, place) <= 0:
            low = middle + 1
        else:
            high = middle
    return low - 1


@helper
def descend(mem, tree, keys, at, words, place):
    """Return the leaf a target belongs to; stores the path to it in the descriptor."""
    node = word_at(mem, tree + X.I_ROOT)
    level = word_at(mem, tree + X.I_HEIGHT) - 1
    while level > 0:
        child = find_child(mem, tree, node, keys, at, words, place)
        mem[tree + X.I_PATH + 2 * level] = node
        mem[tree + X.I_PATH + 2 * level + 1] = child
        node = word_at(mem, children_of(mem, tree, node) + child)
        level -= 1
    mem[tree + X.I_PATH] = node
    return node


@helper
def descend_right(mem, tree):
    """Return the last leaf; stores the path to it in the descriptor."""
    node = mem[tree + X.I_ROOT]
    for level in range(mem[tree + X.I_HEIGHT] - 1, 0, -1):
        child = mem[node + X.N_COUNT] - 1
        mem[tree + X.I_PATH + 2 * level] = node
        mem[tree + X.I_PATH + 2 * level + 1] = child
        node = mem[children_of(mem, tree, node) + child]
    mem[tree + X.I_PATH] = node
    return node


@helper
def read_entry_words(mem, tree, node, number, out, at):
    capacity = capacity_of(mem, tree, mem[node + X.N_LEVEL])
    entry = node + X.NODE_HEADER_WORDS + number
    for i in range(mem[tree + X.I_WORDS]):
        out[at + i] = word_at(mem, entry)
        entry += capacity
