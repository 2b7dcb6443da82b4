"""Making ordered indexes and taking them apart."""

# mypy: ignore-errors

from __future__ import annotations

from engine.index.index_layout import (
    BUILT_WHOLLY,
    HEIGHT_MAX,
    I_BUILT_FRAGMENT,
    I_COLUMN_COUNT,
    I_COLUMNS,
    I_CREDIT,
    I_FIRST_LEAF,
    I_FREE_COUNT,
    I_HEIGHT,
    I_INNER_CAPACITY,
    I_IS_EXACT,
    I_KEY_WORDS,
    I_LAST_LEAF,
    I_LEAF_CAPACITY,
    I_NULLABLE,
    I_PIECE_WORDS,
    I_PIECES,
    I_POOL,
    I_ROOT,
    I_SIDE,
    I_SIDE_IS_PAGE,
    I_SIDE_STRIDE,
    I_STATE,
    I_WORDS,
    INDEX_READY,
    N_COUNT,
    N_LEVEL,
    SIDE_CONSTANTS,
)
from engine.index.tree_nodes_kernels import children_of, disown_node, own_node
from engine.index.tree_promises_kernels import give_spare_blocks, take_own_block
from engine.jit.kernel import helper, kernel
from engine.memory.arena_layout import BLOCK_WORDS, OK, PAGE_SHIFT, S_UNLISTED, ST_DROPPED, ST_MORE
from engine.memory.handles_kernels import descriptor_of, give_descriptor, handle_of, take_descriptor
from engine.memory.pool_kernels import give_block, give_page, take_block, take_page
from engine.rows.columns_layout import COLUMN_WORDS


@helper
def give_side(mem, tree):
    """Give the scratch parts back."""
    if mem[tree + I_SIDE_IS_PAGE]:
        give_page(mem, mem[tree + I_POOL], mem[tree + I_SIDE] >> PAGE_SHIFT)
    elif mem[tree + I_SIDE] != 0:
        give_block(mem, mem[tree + I_POOL], mem[tree + I_SIDE])


@helper
def shape_descriptor(mem, pool, shape, constants):
    """A descriptor of the shape given, with scratch parts; its address, 0 when memory is exhausted."""
    tree = take_descriptor(mem)
    if tree == 0:
        return 0
    mem[tree + I_POOL] = pool
    mem[tree + I_STATE] = shape[0]
    mem[tree + I_BUILT_FRAGMENT] = BUILT_WHOLLY if shape[0] == INDEX_READY else 0
    mem[tree + I_WORDS] = shape[1]
    mem[tree + I_IS_EXACT] = shape[2]
    mem[tree + I_LEAF_CAPACITY] = shape[3]
    mem[tree + I_INNER_CAPACITY] = shape[4]
    mem[tree + I_KEY_WORDS] = shape[5]
    mem[tree + I_NULLABLE] = shape[6]
    mem[tree + I_PIECES] = shape[7]
    mem[tree + I_COLUMN_COUNT] = shape[8]
    for i in range(shape[7]):
        mem[tree + I_PIECE_WORDS + i] = shape[9 + i]
    for i in range(shape[8] * COLUMN_WORDS):
        mem[tree + I_COLUMNS + i] = shape[9 + shape[7] + i]
    stride = shape[5] + 2
    if 4 * stride <= BLOCK_WORDS:
        side = take_block(mem, pool)
    else:
        mem[tree + I_SIDE_IS_PAGE] = 1
        side = take_page(mem, pool) << PAGE_SHIFT
    if side == 0:
        give_descriptor(mem, tree)
        return 0
    mem[tree + I_SIDE] = side
    mem[tree + I_SIDE_STRIDE] = stride
    for i in range(constants.size):
        mem[side + SIDE_CONSTANTS * stride + i] = constants[i]
    return tree


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def make_tree(mem, pool, shape, constants):
    """Make an empty ordered index; its handle, 0 when memory is exhausted (then nothing is kept).

    shape: [state, W, is exact, leaf capacity, inner capacity, most key words, nullable bits, pieces, key columns], then
    words of each piece, then column words. constants: defaults that the column words point into.
    """
    tree = shape_descriptor(mem, pool, shape, constants)
    if tree == 0:
        return 0
    if take_own_block(mem, tree) != OK:
        give_side(mem, tree)
        give_descriptor(mem, tree)
        return 0
    leaf = own_node(mem, tree, 0)
    mem[tree + I_ROOT] = leaf
    mem[tree + I_HEIGHT] = 1
    mem[tree + I_FIRST_LEAF] = leaf
    mem[tree + I_LAST_LEAF] = leaf
    mem[tree + I_CREDIT] = 0
    mem[S_UNLISTED] = handle_of(mem, tree)
    return mem[S_UNLISTED]


@kernel("int64(int64[::1], int64, int64)")
def set_tree_state(mem, tree, state):
    """Publish an index that was built, from where on commits maintain the entries of every row."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return ST_DROPPED
    mem[tree + I_STATE] = state
    if state == INDEX_READY:
        mem[tree + I_BUILT_FRAGMENT] = BUILT_WHOLLY
    return OK


@kernel("int64(int64[::1], int64, int64)")
def drop_tree(mem, tree, budget):
    """Give all memory of a withdrawn index back, at most `budget` nodes a call; OK when it is gone, or ST_MORE."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return ST_DROPPED
    while mem[tree + I_ROOT] != 0:
        if budget <= 0:
            return ST_MORE
        parent = 0
        node = mem[tree + I_ROOT]
        for _ in range(HEIGHT_MAX):
            if mem[node + N_LEVEL] == 0 or mem[node + N_COUNT] == 0:
                break
            parent = node
            node = mem[children_of(mem, tree, node) + mem[node + N_COUNT] - 1]
        disown_node(mem, tree, node)
        if parent == 0:
            mem[tree + I_ROOT] = 0
        else:
            mem[parent + N_COUNT] -= 1
        give_spare_blocks(mem, tree, 0, 1)
        budget -= 1
    give_spare_blocks(mem, tree, 0, budget)
    if mem[tree + I_FREE_COUNT] > 0:
        return ST_MORE
    give_side(mem, tree)
    give_descriptor(mem, tree)
    return OK
