"""Pages, blocks and cells: the helpers of the pool against a model of what is held."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tests.seeds import fresh_seeds
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.pool_kernels import (
    free_block,
    free_cell,
    free_page,
    setup_memory,
    take_block,
    take_cell,
    take_page,
)

CELLS_FROM, PAGES_FROM, LIMIT = 2, 3, 9
CELLS = (PAGES_FROM - CELLS_FROM) * a.PAGE_WORDS // a.CELL_WORDS
PAGES = LIMIT - PAGES_FROM - 1  # without the scratch page


@kernel("int64(int64[::1], int64)")
def take(mem, unit):  # type: ignore[no-untyped-def]
    if unit == 0:
        return take_page(mem, a.S_POOL) << a.PAGE_SHIFT
    return take_block(mem, a.S_POOL) if unit == 1 else take_cell(mem)


@kernel("int64(int64[::1], int64, int64)")
def give(mem, unit, at):  # type: ignore[no-untyped-def]
    if unit == 0:
        free_page(mem, a.S_POOL, at >> a.PAGE_SHIFT)
    elif unit == 1:
        free_block(mem, a.S_POOL, at)
    else:
        free_cell(mem, at)
    return 0


class Model:
    """What is held, and what must be free because of it."""

    def __init__(self) -> None:
        self.mem = np.zeros(LIMIT * a.PAGE_WORDS, dtype=np.int64)
        assert setup_memory(self.mem, CELLS_FROM, PAGES_FROM, LIMIT) == a.OK
        self.held: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        self.words = (a.PAGE_WORDS, a.BLOCK_WORDS, a.CELL_WORDS)

    def free(self) -> tuple[int, int, int]:
        """(pages, blocks, cells) that can be taken: a page is carved only while any of its blocks is held."""
        carved = Counter(at >> a.PAGE_SHIFT for at in self.held[1])
        pages = PAGES - len(self.held[0]) - len(carved)
        blocks = sum(a.BLOCKS_PER_PAGE - count for count in carved.values()) + pages * a.BLOCKS_PER_PAGE
        return pages, blocks, CELLS - len(self.held[2])

    def take(self, unit: int) -> None:
        free = self.free()[unit]
        at = int(take(self.mem, unit))
        assert (at != 0) == (free > 0)
        if at:
            words = self.words[unit]
            assert at % words == 0
            assert unit != 1 or not self.mem[at : at + words].any(), "a block is zeroed"
            bounds = (CELLS_FROM, PAGES_FROM) if unit == 2 else (PAGES_FROM + 1, LIMIT)
            assert bounds[0] << a.PAGE_SHIFT <= at <= (bounds[1] << a.PAGE_SHIFT) - words
            self.mem[at : at + words] = -1
            self.held[unit].add(at)

    def give(self, unit: int, at: int) -> None:
        words = self.words[unit]
        assert (self.mem[at : at + words] == -1).all(), "what is held was written to"
        self.held[unit].remove(at)
        give(self.mem, unit, at)


@pytest.mark.parametrize("seed", [1, *fresh_seeds(2)])
def test_any_units_taken_and_freed_have_one_owner_and_blocks_become_pages_again(seed: int) -> None:
    print("seed", seed)
    rng, model = random.Random(seed), Model()
    for number in range(6_000):
        unit = rng.randrange(3)
        if rng.random() < (0.8 if number // 500 % 2 == 0 else 0.2):
            model.take(unit)
        elif model.held[unit]:
            model.give(unit, rng.choice(sorted(model.held[unit])))
    for unit in range(3):
        for at in rng.sample(sorted(model.held[unit]), len(model.held[unit])):
            model.give(unit, at)
    assert model.free() == (PAGES, PAGES * a.BLOCKS_PER_PAGE, CELLS)
    for _ in range(PAGES + 1):
        model.take(0)
    assert len(model.held[0]) == PAGES, "every block given back serves as a page again"
    for _ in range(CELLS + 1):
        model.take(2)
    assert len(model.held[2]) == CELLS
