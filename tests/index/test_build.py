"""Indexes filled with many rows at once, online and at restart, taken apart, and found damaged when they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize("count", range(0, 120, 7))
def test_bulk_build_of_any_size_has_no_node_below_a_quarter(count: int) -> None:
    stage, _ = make("one word", count, 12, SMALL)
    stage.index.build()
    mark_all(stage)
    stage.verify()


def test_bulk_build_fills_leaves_to_fifteen_sixteenths() -> None:
    stage, _ = make("one word", 4_000, 13, None)
    stage.index.build()
    mark_all(stage)
    stage.verify()
    full = ix.leaf_capacity(1) * 15 // 16
    assert stage.index.counters()["leaves"] == -(-4_000 // full)


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


class Damaged:
    """A tree of more than two leaves: words of its second leaf, its root and its descriptor, to be changed."""

    def __init__(self, index: OrderedIndex, mem: Any) -> None:
        self.mem = mem
        self.tree = address_of(index.handle)
        self.leaf = int(mem[int(mem[self.tree + ix.I_FIRST_LEAF]) + ix.N_NEXT])
        self.root = int(mem[self.tree + ix.I_ROOT])
        self.entries = self.leaf + ix.NODE_HEADER_WORDS
        self.capacity = int(mem[self.tree + ix.I_LEAF_CAPACITY])
        self.places = self.entries + index.shape.words * self.capacity

    def put(self, at: int, word: int) -> None:
        self.mem[at] = word

    def add(self, at: int, number: int) -> None:
        self.mem[at] += number

    def exchange(self) -> None:
        """The first two entries, keys and places."""
        for at in range(self.entries, self.places + 1, self.capacity):
            self.mem[at], self.mem[at + 1] = int(self.mem[at + 1]), int(self.mem[at])

    def reserve_row(self) -> None:
        """The row of the first entry is one that is not committed."""
        page, slot = divmod(int(self.mem[self.places]), 1 << ix.PLACE_SHIFT)
        fragment = int(self.mem[(page << a.PAGE_SHIFT) + a.PG_FRAGMENT])
        row = (page << a.PAGE_SHIFT) + a.PAGE_HEADER_WORDS + slot * int(self.mem[fragment + a.F_ROW_WORDS])
        self.put(row, a.RESERVED << a.STATE_SHIFT)


DAMAGE: dict[str, tuple[Callable[[Damaged], None], str]] = {
    "order": (Damaged.exchange, "entries are out of order"),
    "key": (lambda each: each.add(each.entries + 1, 1), "an entry has a different key than its row"),
    "place": (lambda each: each.put(each.places, 1 << 40), "an entry refers to no row"),
    "row": (Damaged.reserve_row, "an entry refers to no row"),
    "count": (lambda each: each.put(each.leaf + ix.N_COUNT, 1), "a node's level, count or fill is wrong"),
    "level": (lambda each: each.add(each.leaf + ix.N_INDEX, 8), "a node's level, count or fill is wrong"),
    "link": (
        lambda each: each.put(int(each.mem[each.leaf + ix.N_NEXT]) + ix.N_PREVIOUS, 0),
        "leaves are linked wrongly",
    ),
    "separator": (
        lambda each: each.put(each.root + ix.NODE_HEADER_WORDS + 1, 1 << 62),
        "a separator does not separate",
    ),
    "entries": (lambda each: each.add(each.tree + ix.I_COUNT, 1), "a counter is wrong"),
    "levels": (lambda each: each.add(each.tree + ix.I_LEVELS + 1, 1), "a counter is wrong"),
    "free": (lambda each: each.add(each.tree + ix.I_FREE_COUNT, 1), "the list of free blocks is broken"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("shape", ["one word", "long"])
def test_damage_of_a_tree_is_found(name: str, shape: str) -> None:
    stage, _ = make(shape, 400, 18, SMALL)
    index = stage.make_index((16, 16))
    index.build()
    assert index.check() is None
    damage, said = DAMAGE[name]
    damage(Damaged(index, stage.mem))
    fault = index.check()
    assert fault is not None and fault.what == said, fault


def test_row_without_an_entry_is_found() -> None:
    stage, _ = make("long", 300, 19, SMALL)
    stage.index.build()
    places = stage.places()
    stage.index.delete([places[7]])
    fault = stage.index.check()
    assert fault is not None and (fault.number, fault.evidence) == (ix.FAULT_MISSING, places[7])


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
