"""Indexes filled with many rows at once, online and at restart, taken apart, and found damaged when they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.engine.pool_words import free_blocks
from tests.index.stage import Stage
from tests.index.test_tree import LONG, SHAPES, SMALL, TINY, make
from tidemark.engine.base.errors import MemoryExhausted
from tidemark.engine.index import index_layout as ix
from tidemark.engine.index.ordered import OrderedIndex
from tidemark.engine.index.tree_setup_kernels import drop_tree
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of, next_handle
from tidemark.engine.memory.handles_kernels import withdraw


def mark_all(stage: Stage) -> dict[int, int]:
    """The twin of an index over all rows."""
    places = stage.places()
    stage.indexed = {places[each]: stage.sort_key(row) for each, row in stage.model.items()}
    return places


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 5, 700])
def test_bulk_build_of_every_shape_equals_twin_and_takes_changes(shape: str, count: int) -> None:
    stage, random = make(shape, count, 11, SMALL, fragments=3)
    stage.index.build()
    places = mark_all(stage)
    stage.verify()
    every = list(stage.model)
    some = [every[i] for i in random.permutation(count)[: count // 2]]
    stage.remove(some, places)
    stage.verify()
    stage.add(some, places)
    stage.verify()
    stage.close()


@pytest.mark.parametrize("count", range(0, 120, 7))
def test_bulk_build_of_any_size_has_no_node_below_a_quarter(count: int) -> None:
    stage, _ = make("one word", count, 12, SMALL)
    stage.index.build()
    mark_all(stage)
    stage.verify()
    stage.close()


def test_bulk_build_fills_leaves_to_fifteen_sixteenths() -> None:
    stage, _ = make("one word", 4_000, 13, None)
    stage.index.build()
    mark_all(stage)
    stage.verify()
    full = ix.leaf_capacity(1) * 15 // 16
    assert stage.index.counters()["leaves"] == -(-4_000 // full)
    stage.close()


@pytest.mark.parametrize("shape", ["one word", "three values", "long"])
def test_online_build_with_commits_between_its_slices_equals_twin(shape: str) -> None:
    """Commits must maintain the tree before the build's position, and need not after it; both may be done twice."""
    stage, random = make(shape, 3_000, 14, SMALL, fragments=2)
    places = mark_all(stage)
    every = list(stage.model)
    build = stage.index.build_online()
    for _ in build:
        chosen = [places[every[i]] for i in random.permutation(len(every))[:40]]
        present = [place for place in chosen if has_entry(stage, place)]
        assert stage.index.delete(present) == len(present)
        stage.index.reserve(len(chosen))
        stage.index.insert(chosen)
        stage.index.release(len(chosen))
    stage.verify()
    stage.close()


def has_entry(stage: Stage, place: int) -> bool:
    """By delete and insert, which have tests of their own."""
    if not stage.index.delete([place]):
        return False
    stage.index.reserve(1)
    stage.index.insert([place])
    stage.index.release(1)
    return True


@pytest.mark.parametrize("shape", ["one word", "long"])
def test_dropped_index_gives_every_block_back(shape: str) -> None:
    stage, _ = make(shape, 2_000, 15, TINY)
    pages, blocks = stage.store.arena.used_pages(), free_blocks(stage.store.arena)
    index = stage.make_index(TINY)
    index.build()
    index.drop()
    more = stage.store.arena.used_pages() - pages
    assert free_blocks(stage.store.arena) == blocks + more * a.BLOCKS_PER_PAGE
    stage.close()


def test_scan_of_an_index_being_dropped_ends_at_once() -> None:
    """NDB bugs #58277 and #57057: a busy index is dropped."""
    stage, _ = make("one word", 500, 16, TINY)
    index = stage.make_index(TINY)
    index.build()
    scan = index.scan(batch=10)
    assert len(next(scan)) == 10
    assert withdraw(stage.mem, index.handle) == a.OK
    assert drop_tree(stage.mem, next_handle(index.handle), 3) == a.ST_MORE
    assert list(scan) == []
    assert list(index.scan(reverse=True)) == []
    assert index.estimate(index.shape.below(), index.shape.above()) == 0
    index.drop()
    stage.close()


def test_build_without_memory_is_refused_and_its_memory_comes_back() -> None:
    stage, _ = make("one word", 3_000, 17, None, data_memory="1 MiB")
    index = stage.make_index((4, 8))
    blocks = free_blocks(stage.store.arena)
    with pytest.raises(MemoryExhausted):
        index.build()
    index.drop()
    assert free_blocks(stage.store.arena) > blocks
    with pytest.raises(MemoryExhausted):
        while True:
            stage.make_index()
    stage.close()


def corrupt_order(mem: Any, index: OrderedIndex, leaf: int) -> None:
    at = leaf + ix.NODE_HEADER_WORDS + index.shape.words * int(mem[address_of(index.handle) + ix.I_LEAF_CAPACITY])
    for plane in range(index.shape.words + 1):
        at = leaf + ix.NODE_HEADER_WORDS + plane * int(mem[address_of(index.handle) + ix.I_LEAF_CAPACITY])
        mem[at], mem[at + 1] = int(mem[at + 1]), int(mem[at])


def corrupt_key(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[leaf + ix.NODE_HEADER_WORDS + 1] += 1


def corrupt_place(mem: Any, index: OrderedIndex, leaf: int) -> None:
    at = leaf + ix.NODE_HEADER_WORDS + index.shape.words * int(mem[address_of(index.handle) + ix.I_LEAF_CAPACITY])
    mem[at] = 1 << 40


def corrupt_row(mem: Any, index: OrderedIndex, leaf: int) -> None:
    at = leaf + ix.NODE_HEADER_WORDS + index.shape.words * int(mem[address_of(index.handle) + ix.I_LEAF_CAPACITY])
    page, slot = int(mem[at]) >> ix.PLACE_SHIFT, int(mem[at]) & ix.PLACE_SLOT_MASK
    fragment = int(mem[(page << a.PAGE_SHIFT) + a.PG_FRAGMENT])
    row = (page << a.PAGE_SHIFT) + a.PAGE_HEADER_WORDS + slot * int(mem[fragment + a.F_ROW_WORDS])
    mem[row] = a.RESERVED << a.STATE_SHIFT


def corrupt_count(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[leaf + ix.N_COUNT] = 1


def corrupt_level(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[leaf + ix.N_INDEX] += 8


def corrupt_link(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[int(mem[leaf + ix.N_NEXT]) + ix.N_PREVIOUS] = 0


def corrupt_separator(mem: Any, index: OrderedIndex, leaf: int) -> None:
    root = int(mem[address_of(index.handle) + ix.I_ROOT])
    mem[root + ix.NODE_HEADER_WORDS + 1] = 1 << 62


def corrupt_entries(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[address_of(index.handle) + ix.I_COUNT] += 1


def corrupt_levels(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[address_of(index.handle) + ix.I_LEVELS + 1] += 1


def corrupt_free(mem: Any, index: OrderedIndex, leaf: int) -> None:
    mem[address_of(index.handle) + ix.I_FREE_COUNT] += 1


DAMAGE = {
    corrupt_order: ix.FAULT_ORDER,
    corrupt_key: ix.FAULT_KEY,
    corrupt_place: ix.FAULT_ROW,
    corrupt_row: ix.FAULT_ROW,
    corrupt_count: ix.FAULT_NODE,
    corrupt_level: ix.FAULT_NODE,
    corrupt_link: ix.FAULT_LINK,
    corrupt_separator: ix.FAULT_SEPARATOR,
    corrupt_entries: ix.FAULT_COUNT,
    corrupt_levels: ix.FAULT_COUNT,
    corrupt_free: ix.FAULT_FREE,
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("shape", ["one word", "long"])
def test_damage_of_a_tree_is_found(damage: Any, shape: str) -> None:
    stage, _ = make(shape, 400, 18, SMALL)
    index = stage.make_index((16, 16))
    index.build()
    assert index.check() is None
    leaf = int(stage.mem[int(stage.mem[address_of(index.handle) + ix.I_FIRST_LEAF]) + ix.N_NEXT])
    damage(stage.mem, index, leaf)
    fault = index.check()
    assert fault is not None and fault.number == DAMAGE[damage], fault
    stage.close()


def test_row_without_an_entry_is_found() -> None:
    stage, _ = make("long", 300, 19, SMALL)
    stage.index.build()
    places = stage.places()
    stage.index.delete([places[7]])
    fault = stage.index.check()
    assert fault is not None and (fault.number, fault.evidence) == (ix.FAULT_MISSING, places[7])
    stage.close()


def test_separator_of_rows_long_gone_does_not_mislead() -> None:
    """Found by the random histories: a separator's words may be less than those of every entry its child still has.

    A search for a key with the separator's words then compared only the part of the key after these words, went to the
    right, and did not find entries at the end of the left child.
    """
    stage = Stage([tm.Column("id", tm.Int64), tm.Column("k", tm.VarChar(90))], ["k"], capacities=TINY)
    texts = [LONG + str(i) for i in range(6)] + ["z" + "\0" * i for i in range(6)]
    stage.put({"id": i, "k": text} for i, text in enumerate(texts))
    places = stage.places()
    stage.add(range(12), places)
    stage.remove([2, 3, 4, 5], places)
    stage.verify()
    stage.remove([1], places)
    stage.add([5, 1], places)
    stage.remove([0], places)
    stage.verify()
    stage.close()


def test_whole_scan_of_a_large_index_is_sorted_by_key() -> None:
    stage, random = make("three values", 6_000, 20, None, fragments=4)
    stage.index.build()
    places = mark_all(stage)
    order = [int(each) for batch in stage.index.scan() for each in batch]
    assert order == stage.twin()
    some = [int(each) for each in random.permutation(6_000)[:3_000]]
    stage.remove(some, places)
    stage.verify()
    assert np.unique(order).size == 6_000
    stage.close()
