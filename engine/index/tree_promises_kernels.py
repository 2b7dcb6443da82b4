"""Blocks promised to an ordered index, so that no commit asks the pool for one (D3; docs/access.md, 5).

Why what is kept is enough, whatever is added and removed between. Give a node of c entries, of capacity C, the weight
max(0, 2c/C - 1). An entry put into a node raises the sum of weights by at most 2/C, splitting one in halves lowers it
by one and makes one node; levelling two nodes lowers it or leaves it, joining two (to at most 3C/4) raises it by at
most a half and takes one node away. So nodes plus weights grow by at most 2/C for each entry. A lopsided split (what is
appended goes on in an empty leaf) makes a node and lowers nothing; it is paid with C/2 entries that were put into
leaves less than half full, where they raised no weight: the tree's credit, at most C. Weights are at most one a node,
hence L leaves become at most L + L + 2 + 2k/C by k entries. Splits, which are the entries of the level above,
are bounded in the same way with the weight max(0, 4c/C - 3): joined nodes weigh nothing by it.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import give_block, take_raw_block

SPARE = 16  # blocks that stay on the tree's own list although nobody was promised them


@helper
def blocks_needed(mem, tree, entries):
    """Most blocks that so many more entries may take from now on, whatever is removed meanwhile."""
    if entries <= 0:
        return 0
    capacity = mem[tree + X.I_LEAF_CAPACITY]
    leaves = mem[tree + X.I_LEVELS]
    total = min(entries, leaves + 3 + 2 * entries // capacity)
    splits = min(entries, leaves + 3 + 6 * entries // capacity)
    capacity = mem[tree + X.I_INNER_CAPACITY]
    for level in range(1, X.HEIGHT_MAX):
        nodes = mem[tree + X.I_LEVELS + level]
        if nodes == 0:
            total += 1  # a new root
        total += min(splits, nodes + 1 + 2 * splits // capacity)
        splits = min(splits, nodes + 4 * splits // capacity)
        if splits == 0:
            break
    return total


@helper
def take_own_block(mem, tree):
    """Move a block from the pool to the tree's own list; OK or ST_MEMORY."""
    block = take_raw_block(mem, mem[tree + X.I_POOL])
    if block == 0:
        return A.ST_MEMORY
    mem[block] = mem[tree + X.I_FREE]
    mem[tree + X.I_FREE] = block
    mem[tree + X.I_FREE_COUNT] += 1
    return A.OK


@helper
def give_spare_blocks(mem, tree, kept, most):
    """Give blocks over `kept` back to the pool, at most so many."""
    while mem[tree + X.I_FREE_COUNT] > kept and most > 0:
        block = mem[tree + X.I_FREE]
        mem[tree + X.I_FREE] = mem[block]
        mem[tree + X.I_FREE_COUNT] -= 1
        give_block(mem, mem[tree + X.I_POOL], block)
        most -= 1


@helper
def promise_entries(mem, tree, entries):
    """Promise room for entries to be added at commit; OK, or ST_MEMORY and nothing is changed."""
    needed = blocks_needed(mem, tree, mem[tree + X.I_PROMISED] + entries)
    before = mem[tree + X.I_FREE_COUNT]
    while mem[tree + X.I_FREE_COUNT] < needed:
        if take_own_block(mem, tree) != A.OK:
            give_spare_blocks(mem, tree, before, needed)
            return A.ST_MEMORY
    mem[tree + X.I_PROMISED] += entries
    return A.OK


@helper
def return_promise(mem, tree, entries, most):
    """Take a promise back, kept or not, and give at most so many blocks back that nobody needs any more."""
    mem[tree + X.I_PROMISED] -= entries
    kept = blocks_needed(mem, tree, mem[tree + X.I_PROMISED]) + SPARE
    give_spare_blocks(mem, tree, kept, most)


@kernel("int64(int64[::1], int64, int64)")
def tree_promise(mem, tree, entries):
    """Promise an index room for entries to be added later; OK, or ST_MEMORY and nothing is changed.

    About 50 ns a block: whoever promises very many at once calls for some thousands at a time.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    return promise_entries(mem, tree, entries)


@kernel("int64(int64[::1], int64, int64, int64)")
def tree_unpromise(mem, tree, entries, most):
    """Take a promise back and give at most `most` blocks nobody needs back to the pool; returns how many are over."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    return_promise(mem, tree, entries, most)
    return max(0, mem[tree + X.I_FREE_COUNT] - SPARE - blocks_needed(mem, tree, mem[tree + X.I_PROMISED]))
