"""Reservation against its naive twin, step by step, and the numbers of the worked example."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.disk.space_stage import ROW, Stage
from tests.naive import space as naive
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk import extents_kernels as disk_extents
from tidemark.engine.disk import matrix_kernels as disk_matrix
from tidemark.engine.disk import matrix_layout as m
from tidemark.engine.disk.matrix import check_space, extents_of, matrix_of
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of, next_handle

FIRST = 3 << d.FILE_SHIFT | 1


def twin_of(stage: Stage, extents: int) -> naive.Fragment:
    spare = [
        naive.Extent([naive.Page(FIRST + extent * stage.pages + i, stage.payload) for i in range(stage.pages)])
        for extent in range(extents)
    ]
    need = int(stage.mem[address_of(stage.fragment) + a.F_DISK_ANY])
    return naive.Fragment(stage.payload, need, int(stage.mem[address_of(stage.fragment) + a.F_DISK_SMALL]), spare)


class Pair:
    """The store's own reservation and its twin, given the same calls."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pages, extents = self.random.choice([4, 5, 9]), self.random.choice([1, 3, 6])
        words = self.random.choice([48, 80, 200])
        any_words = self.random.choice([3, 9, words - 16 - 1])
        self.stage = Stage(words, pages, extents, any_words)
        self.twin = twin_of(self.stage, extents)
        self.promises: list[tuple[int, int]] = []  # page, words

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.45 or not self.promises:
            self.reserve()
        elif draw < 0.6:
            self.release()
        elif draw < 0.8:
            self.settle_promise()
        elif draw < 0.9:
            self.change_page()
        else:
            self.clean()

    def reserve(self) -> None:
        words = self.random.choice([1, 2, 5, self.stage.payload - 1, self.random.randint(1, self.stage.payload - 1)])
        near = self.random.choice([0, 0, self.any_page()])
        expected = self.twin.reserve(words, near)
        assert self.stage.reserve(words, near) == (a.ST_EXTENT if expected is None else expected)
        if expected is not None:
            self.promises.append((expected, words))

    def any_page(self) -> int:
        return FIRST + self.random.randrange(int(self.stage.mem[self.stage.file + d.FL_EXTENTS]) * self.stage.pages)

    def release(self) -> None:
        number, words = self.promises.pop(self.random.randrange(len(self.promises)))
        page = self.twin.find(number)
        assert page is not None
        assert self.stage.release(number, words) == a.OK
        self.twin.change(page, page.free, page.promised - words - 1, page.is_dirty)

    def settle_promise(self) -> None:
        number, words = self.promises.pop(self.random.randrange(len(self.promises)))
        page = self.twin.find(number)
        assert page is not None
        free = page.free - words - self.random.choice([0, 1])  # the slot may be one that was free
        assert self.stage.settle(number, words, free) == a.OK
        self.twin.change(page, free, page.promised - words - 1, True)

    def change_page(self) -> None:
        page = self.twin.find(self.any_page())
        if page is not None:
            free = self.random.choice(
                [page.free, self.stage.payload, self.random.randint(page.free, self.stage.payload)]
            )
            assert self.stage.settle(page.number, 0, free) == a.OK
            self.twin.change(page, free, page.promised, True)

    def clean(self) -> None:
        number = self.any_page()
        assert self.stage.cleaned(number) == a.OK
        page = self.twin.find(number)
        if page is not None:
            self.twin.change(page, page.free, page.promised, False)

    def compare(self) -> None:
        assert self.stage.check() == a.OK
        assert self.stage.matrix() == [len(self.twin.matrix(position)) for position in range(20)]
        for extent in self.twin.extents:
            for page in extent.pages:
                assert self.stage.free(page.number) == page.available
                assert self.stage.is_fresh(page.number) == (page.free == self.stage.payload)
        for extent in self.twin.spare:
            assert all(self.stage.is_fresh(page.number) for page in extent.pages)


@pytest.mark.parametrize("case", range(40))
def test_random_history_of_reservation_equals_twin_after_every_step(case: int) -> None:
    seed = random.SystemRandom().getrandbits(32) if case >= 20 else case
    print(f"seed {seed}")
    pair = Pair(seed)
    for _ in range(150):
        pair.step()
        pair.compare()


def test_thresholds_of_the_worked_example_of_ndb() -> None:
    """64-word rows of 4 bytes a word: 127 rows a page, 32 pages, 4064 rows; thresholds 3251, 2438, 1625, 812, 0."""
    stage = Stage()
    limit = 4_064
    thresholds = [3_251, 2_438, 1_625, 812]
    for row, least in enumerate(thresholds):
        assert stage.call(ROW, least, limit) == row
        assert stage.call(ROW, least - 1, limit) == row + 1
    assert stage.call(ROW, limit, limit) == 0
    assert stage.call(ROW, 900, limit) == 3, "no page of it empty: column 1, position 13"
    assert stage.call(ROW, 0, limit) == 4


def test_fixed_pieces_on_pages_of_8_kib_walk_through_the_positions_of_the_example() -> None:
    """Pieces of 33 words: 1008 // 34 = 29 a page, 928 in an extent of 32 pages: the example in our arithmetic."""
    stage = Stage(1_024, 32, 1, any_words=33, piece_words=33)
    page = stage.reserve(33)
    assert page == FIRST
    assert stage.position(FIRST) == d.POSITION_CURRENT
    served = [page, *(stage.reserve(33) for _ in range(32 * 29 - 1))]
    assert [served.count(FIRST + i) for i in range(32)] == [29] * 32
    assert stage.reserve(33) == a.ST_EXTENT
    # 900 / 4064 of the extent free, no page wholly free: row 3, column 1.
    assert disk_extents.add_extents(stage.mem, stage.file, 1) == 1
    other = stage.reserve(33)
    assert other == FIRST + 32, "the first extent is in the matrix now"
    assert stage.position(FIRST) == 4 * 4 + 3
    for each in range(32):
        for _ in range(7):
            assert stage.release(FIRST + each, 33) == a.OK
    assert stage.position(FIRST) == 13
    assert stage.matrix()[13] == 1


def test_request_searches_fullest_free_row_first_and_leaves_it_after_its_column() -> None:
    """A whole page is found in row 3 column 0 although row 0 has an extent without a wholly free page."""
    stage = Stage(116, 5, 4, any_words=40)
    for _ in range(5 * 2):  # two extents, fully reserved page by page
        assert stage.reserve(99) > 0
    # First extent: every page has one piece of two words, so 4 rows of free space and no empty page: row 0, column 1.
    for each in range(5):
        assert stage.release(FIRST + each, 99) == a.OK
        assert stage.reserve(2, FIRST + each) == FIRST + each
        assert stage.settle(FIRST + each, 2, 97) == a.OK
        assert stage.cleaned(FIRST + each) == a.OK
    # The third extent becomes current and is fully reserved, so that the matrix is used; the second gets one page back.
    for _ in range(5):
        assert stage.reserve(99) > 0
    assert stage.release(FIRST + 5, 99) == a.OK
    assert stage.position(FIRST) == 1
    assert stage.position(FIRST + 5) == 4 * 3
    assert stage.reserve(99) == FIRST + 5
    assert stage.reserve(39) == FIRST + 4, "the row of most free space serves what a page of class 1 holds, by its hint"
    assert stage.check() == a.OK


def test_wanted_page_of_another_fragment_is_not_taken() -> None:
    stage = Stage(extents=2)
    other = stage.make_fragment(12, 20)
    mine = stage.reserve(5)
    assert stage.reserve(5, mine, other) != mine
    assert stage.check() == a.OK
    assert stage.check(other) == a.OK


def test_reservation_without_memory_for_a_cell_changes_nothing_and_a_commit_needs_none() -> None:
    stage = Stage()
    page = stage.reserve(5)
    header = stage.mem[: a.S_POOL]
    saved = header.copy()
    header[a.S_FREE_CELLS], header[a.S_CELL_HIGH] = 0, header[a.S_CELL_LIMIT]
    before = stage.numbers()
    assert stage.reserve(stage.payload - 1) == a.ST_MEMORY
    assert stage.numbers() == before
    assert stage.settle(page + 1, 0, 11) == a.OK
    assert stage.free(page + 1) == 11
    assert stage.check() == a.OK
    header[:] = saved
    assert stage.reserve(stage.payload - 1) == page + 2


@pytest.mark.parametrize("page", [0, 1, FIRST - 1, FIRST + 12, -1, 9 << d.FILE_SHIFT | 1, FIRST | d.FRESH_PAGE])
def test_page_that_is_none_is_refused_everywhere(page: int) -> None:
    stage = Stage()
    stage.reserve(5)
    before = stage.mem.copy()
    assert stage.free(page) == 0
    assert not stage.is_fresh(page)
    assert stage.release(page, 5) == a.ST_INVARIANT
    assert stage.settle(page, 5, 10) == a.ST_INVARIANT
    assert stage.cleaned(page) == a.OK
    assert (stage.mem == before).all()


@pytest.mark.parametrize(
    "place",
    [d.EX_FREE, d.EX_CLASSES + 1, d.EX_POSITION, d.EX_PAGES + 3, d.EX_FRAGMENT, d.EX_FIRST],
    ids=["sum", "classes", "position", "page word", "owner", "first page"],
)
def test_recount_finds_what_is_changed_without_its_knowledge(place: int) -> None:
    stage = Stage()
    for _ in range(9):
        page = stage.reserve(stage.payload // 2)
        assert stage.settle(page, stage.payload // 2, stage.payload // 3) == a.OK
        assert stage.cleaned(page) == a.OK
    assert stage.check() == a.OK
    stage.mem[stage.call(6, FIRST) - d.EX_PAGES + place] += 1
    assert stage.check() in range(m.SPACE_CLASSES, m.SPACE_EXTENT + 1)


def test_recount_finds_a_lost_reservation_and_a_broken_list() -> None:
    stage = Stage()
    page = stage.reserve(5)
    cell = -int(stage.mem[stage.call(6, page)])
    stage.mem[cell + d.OP_NEXT] = cell
    assert stage.check() == m.SPACE_OPEN_LINKS
    stage.mem[cell + d.OP_NEXT] = 0
    stage.mem[cell + d.OP_RESERVED] = 0
    assert stage.check() == m.SPACE_OPEN


def test_extents_copied_and_restored_are_the_same_without_reservations() -> None:
    stage, seed = Stage(80, 5, 6), random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(60):
        words = draw.randint(1, 30)
        page = stage.reserve(words)
        if page > 0 and draw.random() < 0.7:
            before = int(stage.mem[-stage.mem[stage.call(6, page)] + d.OP_FREE])
            assert stage.settle(page, words, before - words - 1) == a.OK
    copies = stage.copies()
    other = Stage(80, 5, 6)
    words_of = np.array(copies, dtype=np.int64)
    for at in range(0, len(copies), 4 + 2):
        assert copies[at] == 11
        assert disk_extents.restore_extent(other.mem, copies[at + 1], other.fragment, words_of, at) == a.OK
        assert disk_extents.restore_extent(other.mem, copies[at + 1], other.fragment, words_of, at) == a.ST_INVARIANT
    assert other.check() == a.OK
    assert other.copies() == copies
    numbers = other.numbers()
    assert numbers[m.MX_DIRTY] == numbers[m.MX_RESERVED] == numbers[m.MX_CURRENT] == 0
    for number in range(6 * 5):
        at = stage.call(6, FIRST + number)
        word = int(stage.mem[at])
        assert other.free(FIRST + number) == (word if word >= 0 else stage.mem[-word + d.OP_FREE])


def test_dropped_tables_extents_wait_and_come_back_wholly_free() -> None:
    stage = Stage(extents=3)
    for _ in range(3 * 4):
        page = stage.reserve(stage.payload - 1)
        assert page > 0
    assert stage.settle(page, stage.payload - 1, 0) == a.OK
    cells = stage.numbers()[m.MX_RESERVED]
    assert cells == 11
    while disk_extents.drop_fragment_extents(stage.mem, stage.fragment, 1) == a.ST_MORE:
        pass
    assert stage.numbers() == [0] * m.MATRIX_WORDS
    assert stage.copies()[::5] == [11, 11, 11], "a kept local checkpoint may still bring them back"
    other = stage.make_fragment(12, 20)
    assert stage.reserve(5, 0, other) == a.ST_EXTENT
    assert disk_extents.free_dropped_extents(stage.mem, stage.tablespace, np.array([4, 11, 20]), 100) == 0
    assert disk_extents.free_dropped_extents(stage.mem, stage.tablespace, np.array([4, 12, 20]), 2) == 2
    assert disk_extents.free_dropped_extents(stage.mem, stage.tablespace, np.zeros(0, dtype=np.int64), 2) == 1
    assert stage.copies() == []
    for _ in range(3 * 4):
        page = stage.reserve(stage.payload - 1, 0, other)
        assert page > 0
        assert stage.is_fresh(page)
    assert stage.check(other) == a.OK


def test_dropped_tables_extents_come_back_from_a_copy_as_dropped() -> None:
    stage = Stage(extents=2)
    stage.reserve(5)
    copies = np.array(stage.copies(), dtype=np.int64)
    other = Stage(extents=2)
    assert disk_extents.restore_extent(other.mem, FIRST, 0, copies, 0) == a.OK
    assert other.copies() == copies.tolist()
    assert other.mem[other.tablespace + d.TS_FREE_COUNT] == 1
    copies[4] = other.payload + 1
    assert disk_extents.restore_extent(other.mem, FIRST + 4, other.fragment, copies, 0) == a.ST_INVARIANT


def test_tablespace_freed_leaves_every_block_as_before() -> None:
    stage = Stage(extents=200, extent_pages=100, pages=80)
    count = int(stage.mem[a.S_POOL + a.P_FREE_BLOCK_COUNT])
    other = disk_extents.setup_tablespace(stage.mem, 8, 512, 64, 0)
    file = disk_extents.add_data_file(stage.mem, other, 700)
    assert disk_extents.add_data_file(stage.mem, other, 700) == a.ST_INVARIANT
    assert disk_extents.add_extents(stage.mem, file, 50) == 50
    assert disk_extents.drop_data_file(stage.mem, file) == a.OK
    while disk_extents.drop_tablespace(stage.mem, other, 3) == a.ST_MORE:
        pass
    kept = 1  # the leaf of the directory that file 700 needed
    pages = (int(stage.mem[a.S_POOL + a.P_FREE_BLOCK_COUNT]) - count + kept) / a.BLOCKS_PER_PAGE
    assert pages == int(pages), "whole pages were carved and all their blocks are free"
    assert disk_extents.setup_tablespace(stage.mem, 8, 512, d.EXTENT_PAGES_MAX + 1, 0) == a.ST_INVARIANT


def test_fill_of_extents_lists_used_words_of_each_page() -> None:
    stage = Stage(extents=2)
    for _ in range(5):
        page = stage.reserve(stage.payload - 1)
        assert stage.settle(page, stage.payload - 1, page & 7) == a.OK
    out, state = np.zeros(7, dtype=np.int64), np.zeros(2, dtype=np.int64)
    found = {}
    while True:
        status = disk_matrix.fill_of_extents(stage.mem, stage.fragment, state, out)
        assert state[1] == 1 + stage.pages
        found[int(out[0])] = out[1 : state[1]].tolist()
        if status == a.OK:
            break
    full = [stage.payload - (FIRST + number & 7) for number in range(5)]
    assert found == {FIRST: full[:4], FIRST + 4: [full[4], 0, 0, 0]}


def test_fragment_dropped_meanwhile_has_no_extents_and_no_finding() -> None:
    """A recount of a dropped fragment found its free words wrong: the status for a stale handle was also a finding."""
    stage = Stage(extents=2)
    stage.settle(stage.reserve(9), 9, 3)
    space: Any = SimpleNamespace(mem=stage.mem)
    assert check_space(space, stage.fragment, lambda: None) == 1
    assert [int(each[0]) for each in extents_of(space, stage.fragment)] == [FIRST]
    assert matrix_of(space, stage.fragment)[m.MX_EXTENTS] == 1
    stale = next_handle(stage.fragment)
    assert check_space(space, stale, lambda: None) == 0
    assert list(extents_of(space, stale)) == []
    assert not matrix_of(space, stale).any()
