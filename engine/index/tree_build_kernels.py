"""Filling an ordered index with many rows: at restart from sorted entries, online from slices of rows.

Collecting and sorting work on private arrays without the GIL and need rows that no thread changes: only a restart uses
them. The sorted entries are appended at the right edge, leaf by leaf; nodes are filled to 15/16.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.index import index_layout as X
from tidemark.engine.index.key_words_kernels import encode_row
from tidemark.engine.index.tree_changes_kernels import add_row, grow_root, least_of, link_after, rebalance_path
from tidemark.engine.index.tree_nodes_kernels import children_of, copy_separator, own_node
from tidemark.engine.index.tree_reservation_kernels import SPARE, blocks_needed, free_spare_blocks, take_own_block
from tidemark.engine.index.tree_search_kernels import descend_right
from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.handles_kernels import descriptor_of
from tidemark.engine.rows.rows_kernels import map_get

SHORT = 8  # length of runs sorted by insertion


@helper
def next_live(mem, fragment, position, state):
    """Return the place of the first LIVE row from ROWID `position` on; -1 at the end, -2 when state[1] is used up.

    state[0]: the next ROWID; state[1]: slots that may still be visited.
    """
    words = mem[fragment + A.F_ROW_WORDS]
    while position >> 16 < mem[fragment + A.F_PAGES]:
        page = map_get(mem, fragment, position >> 16)
        base = page << A.PAGE_SHIFT
        slot = position & 0xFFFF
        fresh = mem[base + A.PG_FRESH] if page > 0 else 0
        state[1] -= 1
        while slot < fresh and state[1] > 0:
            row = base + A.PAGE_HEADER_WORDS + slot * words
            slot += 1
            state[1] -= 1
            if (mem[row] >> A.STATE_SHIFT) & A.STATE_MASK == A.LIVE:
                state[0] = (position >> 16) << 16 | slot
                return page << X.PLACE_SHIFT | (slot - 1)
        position = (position >> 16) << 16 | slot if slot < fresh else ((position >> 16) + 1) << 16
        state[0] = position
        if state[1] <= 0:
            return -2
    state[0] = position
    return -1


@kernel("int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def collect_keys(mem, tree, fragment, words, places, side, state):
    """Collect the key words and places of a fragment's LIVE rows from ROWID state[0] on into private arrays.

    places: room for entries; words: W planes of that size. side: two scratch parts, each the longest key plus two
    words. state: [next ROWID, slots to visit, entries so far]. OK at the fragment's end, or ST_MORE.
    """
    tree = descriptor_of(mem, tree)
    fragment = descriptor_of(mem, fragment)
    if tree == 0 or fragment == 0:
        return A.ST_DROPPED
    width = mem[tree + X.I_WORDS]
    out = mem[tree + X.I_KEY_WORDS] + 2
    while state[2] < places.size:
        place = next_live(mem, fragment, state[0], state)
        if place < 0:
            return A.OK if place == -1 else A.ST_MORE
        encode_row(mem, tree, place, side, 0, side, out, width)
        places[state[2]] = place
        for i in range(width):
            words[i * places.size + state[2]] = side[out + i]
        state[2] += 1
    return A.ST_MORE


@helper
def lies_before(mem, tree, words, stride, places, side, one, other):
    """Whether entry `one` sorts before entry `other`; their first words are equal."""
    width = mem[tree + X.I_WORDS]
    for i in range(1, width):
        if words[i * stride + one] != words[i * stride + other]:
            return words[i * stride + one] < words[i * stride + other]
    if mem[tree + X.I_IS_EXACT] == 0:
        part = mem[tree + X.I_KEY_WORDS] + 2
        first = encode_row(mem, tree, places[one], side, 0, side, part, part - 2)
        second = encode_row(mem, tree, places[other], side, 0, side, 2 * part, part - 2)
        for i in range(width, min(first, second)):
            if side[part + i] != side[2 * part + i]:
                return side[part + i] < side[2 * part + i]
    return places[one] < places[other]


@helper
def sort_run(mem, tree, words, stride, places, side, order, work, begin, end):
    """Sort order[begin:end] with a bottom-up merge sort."""
    for first in range(begin, end, SHORT):
        for i in range(first + 1, min(first + SHORT, end)):
            each = order[i]
            j = i
            while j > first and lies_before(mem, tree, words, stride, places, side, each, order[j - 1]):
                order[j] = order[j - 1]
                j -= 1
            order[j] = each
    length = SHORT
    while length < end - begin:
        for first in range(begin, end - length, 2 * length):
            middle = first + length
            last = min(middle + length, end)
            if not lies_before(mem, tree, words, stride, places, side, order[middle], order[middle - 1]):
                continue
            for i in range(first, middle):
                work[i] = order[i]
            i, j, at = first, middle, first
            while i < middle and j < last:
                if lies_before(mem, tree, words, stride, places, side, order[j], work[i]):
                    order[at] = order[j]
                    j += 1
                else:
                    order[at] = work[i]
                    i += 1
                at += 1
            while i < middle:
                order[at] = work[i]
                i += 1
                at += 1
        length *= 2


@kernel(
    "int64(int64[::1], int64, int64[::1], int64, int64[::1], int64[::1], int64, int64[::1], int64[::1])", nogil=True
)
def order_ties(mem, tree, words, stride, places, order, count, work, side):
    """Sort the entry numbers in `order`, which are sorted by first word, within each run of equal first words.

    words: W planes, `stride` words apart. work: as long as order. side: three scratch parts. Returns the number of runs
    of equal first words.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    runs = 0
    begin = 0
    while begin < count:
        end = begin + 1
        while end < count and words[order[end]] == words[order[begin]]:
            end += 1
        if end - begin > 1:
            sort_run(mem, tree, words, stride, places, side, order, work, begin, end)
            runs += 1
        begin = end
    return runs


@helper
def heads_in_order(mem, tree, words, stride, places, side, one, other):
    if words[one] != words[other]:
        return words[one] < words[other]
    return lies_before(mem, tree, words, stride, places, side, one, other)


@helper
def sift_down(mem, tree, words, stride, places, side, order, heads, at, count):
    """Sift the run at `at` down a heap of runs. heads: position of each run in `order`, and its end."""
    run = heads[2 * at]
    end = heads[2 * at + 1]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and heads_in_order(
            mem, tree, words, stride, places, side, order[heads[2 * child + 2]], order[heads[2 * child]]
        ):
            child += 1
        if not heads_in_order(mem, tree, words, stride, places, side, order[heads[2 * child]], order[run]):
            break
        heads[2 * at] = heads[2 * child]
        heads[2 * at + 1] = heads[2 * child + 1]
        at = child
    heads[2 * at] = run
    heads[2 * at + 1] = end


@kernel(
    "int64(int64[::1], int64, int64[::1], int64, int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1])",
    nogil=True,
)
def merge_runs(mem, tree, words, stride, places, order, heads, count, merged, side):
    """Merge `count` sorted runs. `order` has the numbers of their entries; heads has two words for each run, its begin
    and its end in `order`. No run is empty. side: three scratch parts. Returns the number of entries.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    for at in range(count // 2 - 1, -1, -1):
        sift_down(mem, tree, words, stride, places, side, order, heads, at, count)
    done = 0
    while count > 0:
        merged[done] = order[heads[0]]
        done += 1
        heads[0] += 1
        if heads[0] == heads[1]:
            count -= 1
            heads[0] = heads[2 * count]
            heads[1] = heads[2 * count + 1]
        if count > 1:
            sift_down(mem, tree, words, stride, places, side, order, heads, 0, count)
    return done


@helper
def append_leaf(mem, tree, made):
    """Add a new last leaf to the levels above; the path is the right edge."""
    level = 1
    full = mem[tree + X.I_INNER_CAPACITY] * 15 >> 4
    while level < mem[tree + X.I_HEIGHT]:
        node = mem[tree + X.I_PATH + 2 * level]
        count = mem[node + X.N_COUNT]
        fresh = count >= full
        if fresh:
            node = own_node(mem, tree, level)
            mem[tree + X.I_PATH + 2 * level] = node
            count = 0
        mem[node + X.N_COUNT] = count + 1
        copy_separator(mem, tree, made, 0, node, count)
        mem[children_of(mem, tree, node) + count] = mem[tree + X.I_PATH + 2 * level - 2]
        if not fresh:
            return
        made = node
        level += 1
    grow_root(mem, tree, level, made)
    mem[tree + X.I_PATH + 2 * level] = mem[tree + X.I_ROOT]


@kernel("int64(int64[::1], int64, int64[::1], int64, int64[::1], int64[::1], int64, int64)")
def tree_load(mem, tree, words, stride, places, order, start, stop):
    """Append entries order[start:stop], which sort after all existing ones; returns the number appended.

    Fewer than requested means that memory is exhausted. The tree is complete only after `tree_load_finish`.
    """
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    leaf = descend_right(mem, tree)
    capacity = mem[tree + X.I_LEAF_CAPACITY]
    full = capacity * 15 >> 4
    for i in range(start, stop):
        number = mem[leaf + X.N_COUNT]
        is_new = number >= full
        if is_new:
            while mem[tree + X.I_FREE_COUNT] <= mem[tree + X.I_HEIGHT] + 1:
                if take_own_block(mem, tree) != A.OK:
                    return i - start
            made = own_node(mem, tree, 0)
            link_after(mem, tree, leaf, made)
            leaf = made
            number = 0
        each = order[i]
        entry = leaf + X.NODE_HEADER_WORDS + number
        for j in range(mem[tree + X.I_WORDS]):
            mem[entry] = words[j * stride + each]
            entry += capacity
        mem[entry] = places[each]
        mem[leaf + X.N_COUNT] = number + 1
        mem[tree + X.I_COUNT] += 1
        if is_new:
            mem[tree + X.I_PATH] = leaf
            append_leaf(mem, tree, leaf)
    mem[tree + X.I_INSERTED] += stop - start
    mem[tree + X.I_VERSION] += 1
    return stop - start


@kernel("int64(int64[::1], int64)")
def tree_load_finish(mem, tree):
    """Refill the nodes at the right edge after the last `tree_load`, and return spare blocks to the pool."""
    tree = descriptor_of(mem, tree)
    if tree == 0:
        return A.ST_DROPPED
    mem[tree + X.I_CREDIT] = mem[tree + X.I_LEAF_CAPACITY]
    is_whole = False
    while not is_whole:
        is_whole = True
        descend_right(mem, tree)
        for level in range(mem[tree + X.I_HEIGHT] - 2, -1, -1):
            if mem[mem[tree + X.I_PATH + 2 * level] + X.N_COUNT] < least_of(mem, tree, level):
                rebalance_path(mem, tree, level)
                is_whole = False
                break
    free_spare_blocks(mem, tree, blocks_needed(mem, tree, mem[tree + X.I_RESERVED]) + SPARE, SPARE)
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def tree_add_rows(mem, tree, fragment, state):
    """In an online build, add the entries of a fragment's LIVE rows from ROWID state[0] on; room must be reserved.

    state: [next ROWID, slots to visit, entries that may be added]. OK at the fragment's end, ST_MORE, or a status code.
    Skips a row that has its entry. Commits read the progress of the build in the descriptor.
    """
    tree = descriptor_of(mem, tree)
    fragment = descriptor_of(mem, fragment)
    if tree == 0 or fragment == 0:
        return A.ST_DROPPED
    mem[tree + X.I_BUILT_FRAGMENT] = mem[fragment + A.F_NUMBER]
    while state[2] > 0:
        place = next_live(mem, fragment, state[0], state)
        mem[tree + X.I_BUILT_ROWID] = state[0]
        if place == -1:
            mem[tree + X.I_BUILT_FRAGMENT] = mem[fragment + A.F_NUMBER] + 1
            mem[tree + X.I_BUILT_ROWID] = 0
            return A.OK
        if place < 0:
            return A.ST_MORE
        status = add_row(mem, tree, place)
        if status == A.OK:
            state[2] -= 1
        elif status != A.ST_DUPLICATE:
            return status
    return A.ST_MORE
