"""Replacement in the page cache, step by step with its twin: LIRS and LRU, pins, loads that fail, batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.disk import kernels as k
from tests.naive import disk as naive
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.disk import frames_kernels as f
from tidemark.engine.memory.arena_layout import OK, P_SCRATCH, PAGE_WORDS, S_POOL, ST_INVARIANT, ST_MISSING

WORDS = 32
ADDRESS = 2 * PAGE_WORDS
CODES = {
    "hit": c.CLAIM_HIT,
    "load": c.CLAIM_LOAD,
    "loading": c.CLAIM_LOADING,
    "dirty": c.CLAIM_DIRTY,
    "pinned": c.CLAIM_PINNED,
}


class Pair:
    """A cache in memory and its twin; every call goes to both."""

    def __init__(self, frames: int, policy: int = c.POLICY_LIRS) -> None:
        self.mem: Any = np.zeros(ADDRESS + f.cache_region_words(WORDS, frames) + 8, dtype=np.int64)
        self.mem[-8:] = 7
        self.mem[S_POOL + P_SCRATCH] = PAGE_WORDS
        assert f.setup_cache(self.mem, ADDRESS, WORDS, frames, f.heads_of(frames), policy) == OK
        hot_max = int(self.mem[ADDRESS + c.C_HOT_MAX])
        self.twin = naive.Cache(frames, hot_max, c.ENTRIES_PER_FRAME * frames, policy == c.POLICY_LRU)
        self.lsn = 0

    def claim(self, page: int, how: int = c.CLAIM_PIN) -> str:
        out = np.zeros(1, dtype=np.int64)
        f.claim_pages(self.mem, ADDRESS, np.array([page]), 0, 1, how, out)
        expected = self.twin.claim(
            page,
            is_quiet=bool(how & c.CLAIM_QUIET),
            is_any=bool(how & c.CLAIM_ANY),
            pins=bool(how & c.CLAIM_PIN),
        )
        assert out[0] == CODES[expected], (page, how)
        return expected

    def loaded(self, page: int, is_pinned: bool) -> None:
        assert f.loaded_page(self.mem, ADDRESS, page, np.zeros(WORDS, np.int64), 0, int(is_pinned)) == OK
        self.twin.loaded(page)
        if not is_pinned:
            self.twin.unpin(page)

    def use(self, page: int) -> str:
        """A reader's whole visit."""
        found = self.claim(page, 0)
        if found == "load":
            self.loaded(page, False)
        return found

    def touch(self, page: int) -> None:
        """A read that needs no pin."""
        assert (k.touch(self.mem, ADDRESS, page) != 0) == self.twin.touch(page)

    def drop(self, page: int) -> None:
        assert f.drop_page(self.mem, ADDRESS, page) == OK
        self.twin.drop(page)

    def unpin(self, page: int) -> None:
        f.unpin_pages(self.mem, ADDRESS, np.array([page]), 0, 1)
        self.twin.unpin(page)

    def change(self, page: int) -> None:
        self.lsn += 8
        k.dirty(self.mem, ADDRESS, page, self.lsn)
        self.twin.dirty.add(page)

    def forget(self, page: int) -> None:
        done = self.twin.forget(page)
        assert (f.forget_page(self.mem, ADDRESS, page) == OK) == done

    def copy(self, how: int, limit: int) -> tuple[Any, list[int]]:
        copied = np.zeros(limit * f.COPIED_WORDS, np.int64)
        cursor = np.zeros(1, np.int64)
        buffer = np.zeros(limit * WORDS, np.int64)
        count = f.copy_dirty_pages(self.mem, ADDRESS, how, 0, 0, limit, cursor, buffer, copied)
        pages = [int(page) for page in copied[: count * f.COPIED_WORDS : f.COPIED_WORDS]]
        twin = self.twin.copy_cold(limit) if how == c.COPY_COLD else self.twin.copy_hot(limit)
        assert pages == twin
        return copied, pages

    def written(self, copied: Any, pages: list[int], is_durable: bool) -> None:
        clean = f.finish_copies(self.mem, ADDRESS, copied, len(pages), int(is_durable))
        assert clean == (len(set(pages) - self.twin.dirty) if is_durable else 0)
        self.twin.written(pages, is_durable)

    def entries(self, head: int, link: int) -> list[int]:
        found, entry = [], int(self.mem[ADDRESS + head])
        while entry:
            found.append(entry)
            entry = int(self.mem[entry + link])
        return found

    def chain(self, head: int, link: int) -> list[int]:
        return [int(self.mem[entry + c.CE_PAGE]) for entry in self.entries(head, link)]

    def compare(self) -> None:
        twin, mem = self.twin, self.mem
        stack = self.chain(c.C_STACK_BOTTOM, c.CE_UP)
        assert stack == twin.stack
        assert stack[::-1] == self.chain(c.C_STACK_TOP, c.CE_DOWN)
        assert self.chain(c.C_QUEUE_FIRST, c.CE_AFTER) == twin.queue
        assert self.chain(c.C_QUEUE_LAST, c.CE_BEFORE)[::-1] == twin.queue
        assert self.chain(c.C_GHOST_FIRST, c.CE_AFTER) == twin.ghosts
        counts = {
            c.C_HOT: len(twin.hot),
            c.C_RESIDENT: len(twin.resident),
            c.C_FREE_FRAMES: twin.frames - len(twin.resident),
            c.C_DIRTY: len(twin.dirty),
            c.C_HITS: twin.hits,
            c.C_MISSES: twin.misses,
            c.C_EVICTIONS: twin.evictions,
            c.C_PINNED: sum(pins > 0 for pins in twin.pins.values()),
        }
        assert {word: int(mem[ADDRESS + word]) for word in counts} == counts
        free = len(self.entries(c.C_FREE_ENTRY, c.CE_HASH_NEXT))
        assert mem[ADDRESS + c.C_FRESH_ENTRY] - free == len(twin.resident) + len(twin.ghosts)
        for page in twin.resident:
            assert (k.frame(mem, ADDRESS, page) == 0) == (page in twin.loading)
        frames = [k.frame(mem, ADDRESS, page) for page in twin.resident - twin.loading]
        assert len(set(frames)) == len(frames)
        assert all(k.frame(mem, ADDRESS, page) == 0 for page in twin.ghosts)
        assert (mem[-8:] == 7).all()


def random_page(rng: random.Random, pages: int) -> int:
    page = int(pages * rng.random() ** 2.5) + 1
    return 1 << c.FILE_SHIFT | page


@pytest.mark.parametrize("policy", [c.POLICY_LIRS, c.POLICY_LRU])
@pytest.mark.parametrize("frames", [2, 3, 25, 60])
@pytest.mark.parametrize("seed", range(3))
def test_random_traces_equal_twin_step_by_step(seed: int, frames: int, policy: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed * 1_000 + frames + 7 * policy)
    pair = Pair(frames, policy)
    twin = pair.twin
    batch: tuple[Any, list[int]] | None = None
    for _ in range(2_000):
        choice = rng.random()
        page = random_page(rng, frames * 6)
        pinned = [each for each, pins in twin.pins.items() if pins and each not in twin.loading]
        if choice < 0.1:
            pair.touch(page)
        elif choice < 0.45:
            pair.claim(page, rng.choice([0, 0, c.CLAIM_PIN, c.CLAIM_QUIET, c.CLAIM_PIN | c.CLAIM_QUIET, c.CLAIM_ANY]))
        elif choice < 0.6 and twin.loading:
            page = rng.choice(sorted(twin.loading))
            if rng.random() < 0.2:
                pair.drop(page)
            else:
                pair.loaded(page, rng.random() < 0.3)
        elif choice < 0.75 and pinned:
            pair.unpin(rng.choice(pinned))
        elif choice < 0.85 and twin.resident - twin.loading:
            pair.change(rng.choice(sorted(twin.resident - twin.loading)))
        elif choice < 0.88:
            pair.forget(page)
        elif batch is None:
            batch = pair.copy(rng.choice([c.COPY_COLD, c.COPY_HOT]), rng.randint(1, frames))
        else:
            pair.written(*batch, is_durable=rng.random() < 0.8)
            batch = None
        pair.compare()


def test_long_scan_leaves_the_hot_pages_in_memory_under_lirs_and_none_under_lru() -> None:
    resident = {}
    for policy in (c.POLICY_LIRS, c.POLICY_LRU):
        pair = Pair(50, policy)
        for _ in range(3):
            for page in range(1, 31):
                pair.use(1 << c.FILE_SHIFT | page)
        for page in range(1_000, 2_000):
            pair.use(1 << c.FILE_SHIFT | page)
        resident[policy] = len({page & 0xFFFF for page in pair.twin.resident} & set(range(1, 31)))
        pair.compare()
    assert resident == {c.POLICY_LIRS: 30, c.POLICY_LRU: 0}


def test_reads_in_memory_do_not_take_a_cold_bottom_for_a_hot_one() -> None:
    """Story: pruning stops after 512 steps. A read of a page in memory went on with the cold entry at the bottom of the
    stack as if it were hot: entries without a frame came into the queue, the first victim among them put word 0 of the
    arena into the list of free frames, and the cache gave out frames past its end.
    """
    pair = Pair(1_000)
    hot_max = int(pair.mem[ADDRESS + c.C_HOT_MAX])
    for page in range(1, hot_max + 1):
        pair.use(page)
    for page in range(hot_max + 1, hot_max + 1_501):  # a scan: its pages stay on the stack as ghosts
        pair.use(page)
    pair.compare()
    # The last read moves the last hot page up from the bottom, under 1,500 cold entries.
    for page in range(1, hot_max + 1):
        assert k.touch(pair.mem, ADDRESS, page)
    bottom = int(pair.mem[ADDRESS + c.C_STACK_BOTTOM])
    assert not pair.mem[bottom + c.CE_FLAGS] & c.CE_HOT
    for page in range(hot_max + 1_500, hot_max + 1_400, -1):
        assert k.touch(pair.mem, ADDRESS, page)
    queue = pair.chain(c.C_QUEUE_FIRST, c.CE_AFTER)
    assert all(k.frame(pair.mem, ADDRESS, page) for page in queue)
    flags = [int(pair.mem[entry + c.CE_FLAGS]) for entry in pair.entries(c.C_STACK_BOTTOM, c.CE_UP)]
    assert sum(each & c.CE_HOT != 0 for each in flags) == pair.mem[ADDRESS + c.C_HOT] == hot_max
    out = np.zeros(1, dtype=np.int64)
    for page in range(5_000, 7_000):
        while f.claim_pages(pair.mem, ADDRESS, np.array([page]), 0, 1, 0, out) == 0:
            assert out[0] == c.CLAIM_AGAIN
        assert out[0] == c.CLAIM_LOAD
        assert f.loaded_page(pair.mem, ADDRESS, page, np.zeros(WORDS, np.int64), 0, 0) == OK
    assert pair.mem[ADDRESS + c.C_FRESH_FRAME] == pair.mem[ADDRESS + c.C_RESIDENT] == 1_000
    assert pair.mem[0] == 0
    assert (pair.mem[-8:] == 7).all()


def test_filling_phase_ends_by_the_count_of_hot_pages_not_of_all_pages() -> None:
    """NDB bug #48910: evicted hot pages leave space for hot ones, and the stack never empties."""
    pair = Pair(10)
    for page in range(1, 11):
        pair.use(page)
    assert len(pair.twin.hot) == 9
    for page in range(1, 10):
        pair.forget(page)
    assert not pair.twin.hot
    pair.compare()
    for page in range(20, 40):
        pair.use(page)
        pair.compare()
        assert pair.twin.stack
    assert len(pair.twin.hot) == 9


def test_pages_dirty_pinned_loading_or_written_are_no_victims() -> None:
    pair = Pair(4)
    for page in (1, 2, 3, 4):
        pair.claim(page)
    assert pair.claim(5) == "pinned", "all are being loaded"
    for page in (1, 2, 3, 4):
        pair.loaded(page, True)
    assert pair.claim(5) == "pinned"
    pair.change(1)
    pair.unpin(1)
    assert pair.claim(5) == "dirty"
    how = c.COPY_HOT if 1 in pair.twin.hot else c.COPY_COLD
    copied, pages = pair.copy(how, 4)
    assert pages == [1]
    assert pair.claim(5) == "pinned", "its copy is on the way to the disk"
    pair.change(1)
    pair.written(copied, pages, is_durable=True)
    assert pair.claim(5) == "dirty", "it was changed meanwhile"
    copied, pages = pair.copy(how, 4)
    pair.written(copied, pages, is_durable=False)
    assert pair.claim(5) == "dirty", "it was not written"
    copied, pages = pair.copy(how, 4)
    pair.written(copied, pages, is_durable=True)
    assert pair.claim(5) == "load"
    assert k.frame(pair.mem, ADDRESS, 1) == 0
    pair.compare()


def test_copying_all_takes_what_was_dirty_before_and_restores_its_first_change_if_not_written() -> None:
    pair = Pair(8)
    for page in range(1, 7):
        pair.use(page)
        pair.change(page)  # LSN 8, 16 ... 48
    assert k.dirty(pair.mem, ADDRESS, 1, 100) == 0  # first changed by 8 all the same
    buffer, copied, cursor = np.zeros(8 * WORDS, np.int64), np.zeros(24, np.int64), np.zeros(1, np.int64)

    def copy(before: int, limit: int) -> list[list[int]]:
        count = f.copy_dirty_pages(pair.mem, ADDRESS, c.COPY_ALL, before, 0, limit, cursor, buffer, copied)
        return sorted(copied[: 3 * count].reshape(-1, 3).tolist())

    assert copy(40, 3) == [[1, 100, 8], [2, 16, 16], [3, 24, 24]]
    assert cursor[0] > 0
    assert k.dirty(pair.mem, ADDRESS, 2, 200) == 0
    assert f.finish_copies(pair.mem, ADDRESS, copied, 3, 0) == 0
    assert copy(40, 3) == [[4, 32, 32]]
    assert cursor[0] == -1
    cursor[0] = 0
    assert copy(40, 8) == [[1, 100, 8], [2, 200, 16], [3, 24, 24]], "their first changes were not forgotten"
    assert buffer[5] == 100, "the copy has the page's LSN"


def test_unclaimed_numbers_and_wrong_sizes_are_refused() -> None:
    pair = Pair(4)
    page = np.zeros(WORDS, np.int64)
    assert f.loaded_page(pair.mem, ADDRESS, 9, page, 0, 0) == ST_INVARIANT
    assert f.drop_page(pair.mem, ADDRESS, 9) == ST_MISSING
    assert f.forget_page(pair.mem, ADDRESS, 9) == ST_MISSING
    pair.claim(9)
    assert f.loaded_page(pair.mem, ADDRESS, 9, page, 1, 0) == ST_INVARIANT, "beyond the array"
    page[6] = 10
    assert f.loaded_page(pair.mem, ADDRESS, 9, page, 0, 0) == ST_INVARIANT, "another page's number"
    page[6] = 9
    assert f.loaded_page(pair.mem, ADDRESS, 9, page, 0, 0) == ST_INVARIANT, "no directory"
    assert f.unpin_pages(pair.mem, ADDRESS, np.array([77]), 0, 1) == 1
    assert f.unpin_pages(pair.mem, ADDRESS, np.array([77]), 0, 2) == 0
    assert f.claim_pages(pair.mem, ADDRESS, np.array([77]), 0, 2, 0, np.zeros(2, np.int64)) == 0
    small = np.zeros(100, np.int64)
    assert f.setup_cache(small, 0, WORDS, 4, 16, 0) == ST_INVARIANT
    assert f.setup_cache(pair.mem, ADDRESS, WORDS, 1, 4, 0) == ST_INVARIANT
