"""Slotted pages against their twin, and pages that no honest program wrote."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.disk import kernels as k
from tests.naive.disk import SlottedPage
from tidemark.engine.disk import disk_layout as d
from tidemark.engine.memory.arena_layout import OK, P_SCRATCH, PAGE_WORDS, S_POOL, ST_INVARIANT

FRAME = 2 * PAGE_WORDS
GUARD = 7_777


def memory(page_words: int) -> Any:
    mem = np.full(FRAME + page_words + 64, GUARD, dtype=np.int64)
    mem[S_POOL + P_SCRATCH] = PAGE_WORDS
    k.format_page(mem, FRAME, page_words, 1 << 32 | 5, 9, 800)
    return mem


def compare(mem: Any, page_words: int, twin: SlottedPage) -> None:
    header = mem[FRAME : FRAME + d.PAGE_HEADER_WORDS]
    assert header[d.DP_FREE] == twin.free_words
    assert header[d.DP_ENTRIES] == twin.entries
    assert header[d.DP_USED] == len(twin.pieces)
    assert (header[d.DP_LSN], header[d.DP_PAGE], header[d.DP_OWNER]) == (800, 1 << 32 | 5, 9)
    for slot in range(-1, twin.entries + 2):
        held = twin.pieces.get(slot)
        at = k.piece(mem, FRAME, page_words, slot)
        assert k.piece_words(mem, FRAME, page_words, slot) == (-1 if held is None else len(held))
        assert (mem[at : at + len(held)].tolist() == held) if held else at == 0
    assert k.check_page(mem, FRAME, page_words) == OK
    assert (mem[FRAME + page_words :] == GUARD).all()


@pytest.mark.parametrize("page_words", [64, 512, 1_024, 4_096])
@pytest.mark.parametrize("seed", range(4))
def test_random_pieces_taken_and_given_equal_twin(page_words: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed * 10_000 + page_words)
    mem, twin = memory(page_words), SlottedPage(page_words)
    largest = rng.choice([4, page_words // 6, page_words])
    for step in range(1_500 if page_words < 1_024 else 400):
        words = rng.randint(0, largest)
        content = [rng.getrandbits(62) for _ in range(words)]
        choice = rng.random()
        if choice < 0.5:
            slot = k.take(mem, FRAME, page_words, words)
            assert slot == twin.take(content)
        elif choice < 0.6:
            slot = rng.randint(-1, twin.entries + 6)
            is_taken = twin.take_given(slot, content)
            assert k.take_given(mem, FRAME, page_words, slot, words) == (OK if is_taken else ST_INVARIANT)
            slot = slot if is_taken else -1
        else:
            given = rng.choice([*twin.pieces, rng.randint(-1, twin.entries + 1)])
            assert k.give(mem, FRAME, page_words, given) == (OK if twin.give(given) else ST_INVARIANT)
            slot = -1
        if slot >= 0:
            at = k.piece(mem, FRAME, page_words, slot)
            mem[at : at + words] = content
        if step % 7 == 0 or page_words < 512:
            compare(mem, page_words, twin)
    compare(mem, page_words, twin)
    for slot in list(twin.pieces):
        assert k.give(mem, FRAME, page_words, slot) == OK
    empty = mem[FRAME : FRAME + page_words]
    found = [int(empty[word]) for word in (d.DP_FREE, d.DP_ENTRIES, d.DP_TOP, d.DP_USED, d.DP_FREE_ENTRY)]
    assert found == [page_words - d.PAGE_HEADER_WORDS, 0, d.PAGE_HEADER_WORDS, 0, 0]


def test_full_page_with_holes_takes_a_piece_of_all_its_free_words() -> None:
    mem = memory(256)
    slots = [k.take(mem, FRAME, 256, 9) for _ in range(24)]
    assert slots == list(range(24))
    assert k.take(mem, FRAME, 256, 1) == -1, "one word more for a slot is not there"
    for slot in slots[::2]:
        assert k.give(mem, FRAME, 256, slot) == OK
    free = int(mem[FRAME + d.DP_FREE])
    assert free == 12 * 9
    assert k.take(mem, FRAME, 256, free + 1) == -1
    slot = k.take(mem, FRAME, 256, free)
    assert slot in slots[::2]
    assert k.piece_words(mem, FRAME, 256, slot) == free
    assert k.check_page(mem, FRAME, 256) == OK


def test_undoing_a_free_brings_slots_and_free_words_back() -> None:
    mem = memory(128)
    for _ in range(5):
        k.take(mem, FRAME, 128, 4)
    before = int(mem[FRAME + d.DP_FREE])
    for slot in (3, 1, 4):
        assert k.give(mem, FRAME, 128, slot) == OK
    assert mem[FRAME + d.DP_ENTRIES] == 3
    for slot in (4, 1, 3):
        assert k.take_given(mem, FRAME, 128, slot, 4) == OK
    assert k.take_given(mem, FRAME, 128, 3, 4) == ST_INVARIANT, "a slot that has a piece"
    assert (mem[FRAME + d.DP_FREE], mem[FRAME + d.DP_ENTRIES]) == (before, 5)
    assert k.check_page(mem, FRAME, 128) == OK


@pytest.mark.parametrize("seed", range(3))
def test_any_wrong_word_in_header_or_directory_is_survived_and_mostly_found(seed: int) -> None:
    """No call may leave the page, whatever it contains; and the check finds a wrong count, link or place."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    page_words = 96
    mem = memory(page_words)
    for words in (3, 5, 7, 2, 6):
        k.take(mem, FRAME, page_words, words)
    k.give(mem, FRAME, page_words, 1)
    k.give(mem, FRAME, page_words, 3)
    good = mem.copy()
    counts = [d.DP_FREE, d.DP_TOP, d.DP_ENTRIES, d.DP_FREE_ENTRY, d.DP_USED]
    strange = [-1, 0, 1, 95, 96, 4_096, 1 << 40, -(1 << 63), (1 << 63) - 1, d.ENTRY_FREE, d.ENTRY_FREE | 9]
    for _ in range(600):
        mem[:] = good
        word = rng.choice([*counts, *range(page_words - 5, page_words)])
        mem[FRAME + word] = rng.choice([*strange, int(good[FRAME + word]) + rng.choice([-1, 1, 1 << 16])])
        is_changed = mem[FRAME + word] != good[FRAME + word]
        if is_changed and word != d.DP_TOP and word in counts:
            assert k.check_page(mem, FRAME, page_words) == ST_INVARIANT
        for slot in (-1, 0, 1, 4, 5, 80, 1 << 40):
            at = k.piece(mem, FRAME, page_words, slot)
            size = k.piece_words(mem, FRAME, page_words, slot)
            assert (at == 0) == (size < 0)
            assert at == 0 or FRAME + d.PAGE_HEADER_WORDS <= at <= at + size <= FRAME + page_words
        for slot in (0, 2, 4):
            k.give(mem, FRAME, page_words, slot)
        k.take(mem, FRAME, page_words, 8)
        k.take_given(mem, FRAME, page_words, 6, 4)
        assert (mem[FRAME + page_words :] == GUARD).all()
        assert (mem[FRAME - 64 : FRAME] == GUARD).all()


def test_check_finds_overlap_cycle_and_impossible_size() -> None:
    mem = memory(96)
    for _ in range(3):
        k.take(mem, FRAME, 96, 5)
    good = mem.copy()
    mem[FRAME + 94] -= 2  # the second piece now overlaps the first; no count says so
    assert k.check_page(mem, FRAME, 96) == ST_INVARIANT
    mem[:] = good
    k.give(mem, FRAME, 96, 0)
    k.give(mem, FRAME, 96, 1)
    assert k.check_page(mem, FRAME, 96) == OK
    mem[FRAME + 95] = d.ENTRY_FREE | 2  # slot 0 leads to slot 1, which leads to slot 0
    assert k.check_page(mem, FRAME, 96) == ST_INVARIANT
    for page_words in (0, -1, 16, 4_097, 1 << 40):
        assert k.check_page(mem, FRAME, page_words) == ST_INVARIANT
    assert k.check_page(mem, -1, 96) == ST_INVARIANT
