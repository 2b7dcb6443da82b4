"""Creating and freeing ordered indexes."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.tree_nodes_kernels import children_of, disown_node, own_node
from tidemark.engine.index.tree_reservation_kernels import free_spare_blocks, take_own_block
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of, free_descriptor, handle_of, take_descriptor
from tidemark.engine.memory.pool_kernels import free_block, free_page, take_block, take_page
from tidemark.engine.rows import columns_layout as K


@helper
def free_side(mem, tree):
    if mem[tree + X.I_SIDE_IS_PAGE]:
        free_page(mem, mem[tree + X.I_POOL], mem[tree + X.I_SIDE] >> A.PAGE_SHIFT)
    elif mem[tree + X.I_SIDE] != 0:
        free_block(mem, mem[tree + X.I_POOL], mem[tree + X.I_SIDE])


@helper
def shape_descriptor(mem, pool, shape, constants):
    """Create a descriptor from `shape`, with scratch parts; returns its address, 0 when memory is exhausted."""
    tree = take_descriptor(mem)
    if tree == 0:
        return 0
    mem[tree + X.I_POOL] = pool
    mem[tree + X.I_STATE] = shape[0]
    mem[tree + X.I_BUILT_FRAGMENT] = X.BUILT_WHOLLY if shape[0] == X.INDEX_READY else 0
    mem[tree + X.I_WORDS] = shape[1]
    mem[tree + X.I_IS_EXACT] = shape[2]
    mem[tree + X.I_LEAF_CAPACITY] = shape[3]
    mem[tree + X.I_INNER_CAPACITY] = shape[4]
    mem[tree + X.I_KEY_WORDS] = shape[5]
    mem[tree + X.I_NULLABLE] = shape[6]
    mem[tree + X.I_COLUMN_COUNT] = shape[8]
    for i in range(shape[7]):
        mem[tree + X.I_PIECE_WORDS + i] = shape[9 + i]
    for i in range(shape[8] * K.COLUMN_WORDS):
        mem[tree + X.I_COLUMNS + i] = shape[9 + shape[7] + i]
    stride = shape[5] + 2
    if 4 * stride <= A.BLOCK_WORDS:
        side = take_block(mem, pool)
    else:
        mem[tree + X.I_SIDE_IS_PAGE] = 1
        side = take_page(mem, pool) << A.PAGE_SHIFT
    if side == 0:
        free_descriptor(mem, tree)
        return 0
    mem[tree + X.I_SIDE] = side
    mem[tree + X.I_SIDE_STRIDE] = stride
    for i in range(constants.size):
        mem[side + X.SIDE_CONSTANTS * stride + i] = constants[i]
    return tree


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])")
def make_tree(mem, pool, shape, constants):
    """Create an empty ordered index; returns its handle, 0 when memory is exhausted (then nothing is kept).

    shape: [state, W, is exact, leaf capacity, inner capacity, maximum key words, nullable bits, pieces, key columns],
    then the words of each piece, then column words. constants: defaults that the column words point into.
    """
    tree = shape_descriptor(mem, pool, shape, constants)
    if tree == 0:
        return 0
    if take_own_block(mem, tree) != A.OK:
        free_side(mem, tree)
        free_descriptor(mem, tree)
        return 0
    leaf = own_node(mem, tree, 0)
    mem[tree + X.I_ROOT] = leaf
    mem[tree + X.I_HEIGHT] = 1
    mem[tree + X.I_FIRST_LEAF] = leaf
    mem[tree + X.I_LAST_LEAF] = leaf
    mem[tree + X.I_CREDIT] = 0
    mem[A.S_UNLISTED] = handle_of(mem, tree)
    return mem[A.S_UNLISTED]


@kernel("int64(int64[::1], int64, int64)")
def drop_tree(mem, tree, budget):
    """Free a withdrawn index, at most `budget` nodes a call; OK when all memory is freed, or ST_MORE."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    while mem[tree + X.I_ROOT] != 0:
        if budget <= 0:
            return A.ST_MORE
        parent = 0
        node = mem[tree + X.I_ROOT]
        for _ in range(X.HEIGHT_MAX):
            if mem[node + X.N_LEVEL] == 0 or mem[node + X.N_COUNT] == 0:
                break
            parent = node
            node = mem[children_of(mem, tree, node) + mem[node + X.N_COUNT] - 1]
        disown_node(mem, tree, node)
        if parent == 0:
            mem[tree + X.I_ROOT] = 0
        else:
            mem[parent + X.N_COUNT] -= 1
        free_spare_blocks(mem, tree, 0, 1)
        budget -= 1
    free_spare_blocks(mem, tree, 0, budget)
    if mem[tree + X.I_FREE_COUNT] > 0:
        return A.ST_MORE
    free_side(mem, tree)
    free_descriptor(mem, tree)
    return A.OK
