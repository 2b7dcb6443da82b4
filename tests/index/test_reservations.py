"""Reservations are enough: with an empty pool, whatever is added and removed before the reserved space is used up."""

from __future__ import annotations

import random as plain_random
from collections.abc import Callable

import numpy as np
import pytest

import tidemark as tm
from tests.engine.pool_words import free_blocks
from tests.index.stage import Stage, numpy_random
from tidemark.engine.base.errors import MemoryExhausted
from tidemark.engine.index import index_layout as ix
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.pool_kernels import take_transaction_block

ROWS = 1_500


class Adversary:
    """Adds reserved entries where they cost most, and removes others at random; keys are 0 … ROWS - 1."""

    def __init__(self, random: np.random.Generator, capacities: tuple[int, int]) -> None:
        self.random = random
        self.stage = Stage([tm.Column("id", tm.Int64), tm.Column("k", tm.Int64)], ["k"], capacities=capacities)
        self.stage.put({"id": i, "k": i} for i in range(ROWS))
        self.places = self.stage.places()
        self.mem = self.stage.mem
        self.tree = self.stage.index.handle
        self.held: set[int] = set()

    def add(self, key: int) -> None:
        self.stage.index.insert([self.places[key]])  # InvariantBroken if there are not blocks enough
        self.held.add(key)

    def remove(self, key: int) -> None:
        assert self.stage.index.delete([self.places[key]]) == 1
        self.held.discard(key)

    def prepare(self, count: int) -> None:
        for key in self.random.permutation(ROWS)[:count]:
            self.stage.index.reserve(1)
            self.add(int(key))
            self.stage.index.release(1)

    def leaves(self) -> list[tuple[int, int, int]]:
        """(entries, least key, largest key) of every leaf."""
        found = []
        leaf = int(self.mem[address_of(self.tree) + ix.I_FIRST_LEAF])
        while leaf:
            count = int(self.mem[leaf + ix.N_COUNT])
            keys = self.mem[leaf + ix.NODE_HEADER_WORDS :][:count]
            if count:
                found.append((count, int(keys[0]), int(keys[-1])))
            leaf = int(self.mem[leaf + ix.N_NEXT])
        return found

    def free_in(self, low: int, high: int) -> int | None:
        free = [key for key in range(low, high + 1) if key not in self.held]
        return free[self.random.integers(len(free))] if free else None

    def into_the_fullest(self) -> int | None:
        for _, low, high in sorted(self.leaves(), reverse=True):
            key = self.free_in(low, high)
            if key is not None:
                return key
        return self.anywhere()

    def anywhere(self) -> int | None:
        return self.free_in(0, ROWS - 1)

    def at_the_end(self) -> int | None:
        top = max(self.held, default=-1)
        return top + 1 if top + 1 < ROWS else None

    def empty_the_end(self) -> None:
        """So that leaves are levelled and joined there."""
        for key in sorted(self.held)[-int(self.random.integers(1, 12)) :]:
            self.remove(key)

    def empty_around(self) -> None:
        """Take most of a leaf and its neighbour away."""
        leaves = self.leaves()
        at = int(self.random.integers(len(leaves))) if leaves else 0
        for _, low, high in leaves[at : at + 2]:
            for key in [key for key in range(low, high + 1) if key in self.held][1:]:
                if self.random.random() < 0.8:
                    self.remove(key)


STRATEGIES: dict[str, tuple[Callable[[Adversary], int | None], Callable[[Adversary], None] | None]] = {
    "fullest leaf first": (Adversary.into_the_fullest, None),
    "fullest leaf, leaves emptied meanwhile": (Adversary.into_the_fullest, Adversary.empty_around),
    "anywhere": (Adversary.anywhere, Adversary.empty_around),
    "at the end": (Adversary.at_the_end, None),
    "at the end, which is emptied again": (Adversary.at_the_end, Adversary.empty_the_end),
    "fullest leaf, end emptied": (Adversary.into_the_fullest, Adversary.empty_the_end),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("capacities", [(4, 8), (8, 8), (16, 10), (12, 126)])
def test_reserved_entries_find_room_with_the_pool_empty(strategy: str, capacities: tuple[int, int]) -> None:
    random = numpy_random(plain_random.SystemRandom().getrandbits(32))
    where, meanwhile = STRATEGIES[strategy]
    adversary = Adversary(random, capacities)
    index = adversary.stage.index
    adversary.prepare(int(random.integers(0, 400)) if random.random() < 0.5 else 0)
    entries = int(random.integers(1, 900))
    index.reserve(entries)
    while take_transaction_block(adversary.mem):
        pass
    assert adversary.mem[a.S_POOL + a.P_FREE_BLOCKS] == 0
    for _ in range(entries):
        key = where(adversary)
        if key is None:
            adversary.empty_around()
            continue
        adversary.add(key)
        if meanwhile is not None and random.random() < 0.1:
            meanwhile(adversary)
    adversary.stage.indexed = {adversary.places[key]: ((1, key),) for key in adversary.held}
    adversary.stage.verify()
    index.release(entries)
    assert index.counters()["reserved"] == 0


def test_reservation_larger_than_memory_is_refused_and_changes_nothing() -> None:
    adversary = Adversary(numpy_random(1), (8, 8))
    index = adversary.stage.index
    adversary.prepare(100)
    before = index.counters()
    with pytest.raises(MemoryExhausted):
        index.reserve(10_000_000)
    after = index.counters()
    assert after.pop("free_blocks") <= before.pop("free_blocks") + 16
    assert before == after
    index.reserve(ROWS)
    index.release(ROWS)


def test_reservations_of_many_transactions_add_up_and_are_released() -> None:
    """Blocks over a few spare ones go back to the pool when reservations are used or released."""
    adversary = Adversary(numpy_random(2), (8, 8))
    stage, index = adversary.stage, adversary.stage.index
    start = free_blocks(stage.store.arena) + stage.owned_blocks()
    for entries in (1, 300, 7):
        index.reserve(entries)
    assert index.counters()["reserved"] == 308
    for key in range(300):
        adversary.add(key)
    for entries in (7, 1, 300):
        index.release(entries)
    counters = index.counters()
    assert counters["free_blocks"] <= 16
    for key in range(300):
        adversary.remove(key)
    counters = index.counters()
    assert counters["leaves"] == 1 and counters["inner_nodes"] == 0 and counters["free_blocks"] <= 17
    end = free_blocks(stage.store.arena) + stage.owned_blocks()
    assert (end - start) % a.BLOCKS_PER_PAGE == 0, "blocks are only ever added by the page"


def test_more_entries_than_reserved_are_refused_before_anything_changes() -> None:
    adversary = Adversary(numpy_random(3), (4, 8))
    stage = adversary.stage
    with pytest.raises(tm.InvariantBroken):
        for key in range(ROWS):
            adversary.add(key)
    stage.indexed = {adversary.places[key]: ((1, key),) for key in adversary.held}
    stage.verify()
