"""Blocks reserved for an ordered index, so that no commit needs one from the pool (D3; docs/internals/access.md, 5).

Why the reserve is enough, whatever is added and removed meanwhile: give a node of c entries and capacity C the weight
max(0, 2c/C - 1). An entry inserted into a node raises the sum of weights by at most 2/C. Splitting a node in halves
lowers the sum by one and adds one node. Balancing two nodes does not raise it. Joining two (to at most 3C/4) raises it
by at most a half and removes one node. So nodes plus weights grow by at most 2/C for each entry. A lopsided or append
split (the full last leaf keeps its entries, and the next key starts a new leaf) adds a node and lowers nothing. It is
paid for by C/2 entries inserted earlier into leaves less than half full, where they raised no weight: the tree's
credit, at most C. A node weighs at most one, hence k entries turn L leaves into at most L + L + 2 + 2k/C. Splits, which
are the entries of the level above, are bounded in the same way with the weight max(0, 4c/C - 3), in which joined nodes
weigh nothing.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.memory.pool_kernels import free_block, take_raw_block

SPARE = 16  # unreserved blocks that stay on the tree's own list


@helper
def blocks_needed(mem, tree, entries):
    """Return the maximum number of blocks that this many more entries may take, whatever is removed meanwhile."""
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
def free_spare_blocks(mem, tree, kept, most):
    """Return blocks in excess of `kept` to the pool, at most `most`."""
    while mem[tree + X.I_FREE_COUNT] > kept and most > 0:
        block = mem[tree + X.I_FREE]
        mem[tree + X.I_FREE] = mem[block]
        mem[tree + X.I_FREE_COUNT] -= 1
        free_block(mem, mem[tree + X.I_POOL], block)
        most -= 1


@helper
def reserve_entries(mem, tree, entries):
    """Reserve room for entries to be added at commit; OK, or ST_MEMORY with nothing changed."""
    needed = blocks_needed(mem, tree, mem[tree + X.I_RESERVED] + entries)
    before = mem[tree + X.I_FREE_COUNT]
    while mem[tree + X.I_FREE_COUNT] < needed:
        if take_own_block(mem, tree) != A.OK:
            free_spare_blocks(mem, tree, before, needed)
            return A.ST_MEMORY
    mem[tree + X.I_RESERVED] += entries
    return A.OK


@helper
def release_entries(mem, tree, entries, most):
    """Return a reservation, used or not, and return at most `most` unneeded blocks to the pool."""
    mem[tree + X.I_RESERVED] -= entries
    kept = blocks_needed(mem, tree, mem[tree + X.I_RESERVED]) + SPARE
    free_spare_blocks(mem, tree, kept, most)


@kernel("int64(int64[::1], int64, int64)")
def tree_reserve(mem, tree, entries):
    """Reserve room for entries to be added later; OK, or ST_MEMORY with nothing changed.

    Takes about 50 ns a block: a caller that reserves many does so in batches of a few thousand.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    return reserve_entries(mem, tree, entries)


@kernel("int64(int64[::1], int64, int64, int64)")
def tree_release(mem, tree, entries, most):
    """Return a reservation, and at most `most` unneeded blocks to the pool; returns how many unneeded ones are left."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    release_entries(mem, tree, entries, most)
    return max(0, mem[tree + X.I_FREE_COUNT] - SPARE - blocks_needed(mem, tree, mem[tree + X.I_RESERVED]))
