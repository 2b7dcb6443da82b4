"""The kernels that verify disk columns, against a walk in plain Python: the same faults, marks, chunks and chains."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.check.test_disk import Plant
from tests.naive import disk_check as naive
from tidemark.engine.disk.cache_layout import SLOT_BITS, TS_PAGE_WORDS
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.recovery.verification.disk_rows_check_kernels import check_disk_page, rows_not_marked
from tidemark.recovery.verification.disk_rows_check_layout import CD_CHAINS, CD_CHUNKS, CD_PIECES, CD_WHERE, CD_WORDS

SEED = 8_416
SLOTS_PER_CALL = 7


def judged(plant: Plant, page: int, marks: Any) -> tuple[list[tuple[int, int]], Any, Any, Any]:
    """Faults the kernel finds on a page, with the ROWID of each; its state, chunks and chains."""
    chunks, chains = np.zeros(4_096, dtype=np.int64), np.zeros(2_048, dtype=np.int64)
    state, faults = np.zeros(CD_WORDS, dtype=np.int64), []
    while (fault := int(check_disk_page(plant.mem, plant.fragment, page, marks, chunks, chains, state))) != a.OK:
        assert fault > 0, "the page is in the cache and the arrays are large"
        faults.append((fault, int(state[CD_WHERE])))
    return faults, state, chunks, chains


def unmarked(plant: Plant, marks: Any, room: int) -> list[int]:
    found: list[int] = []
    state, rowids = np.zeros(3, dtype=np.int64), np.zeros(room, dtype=np.int64)
    while True:
        status = int(rows_not_marked(plant.mem, plant.fragment, SLOTS_PER_CALL, marks, rowids, state))
        if status in (a.OK, a.ST_SPACE):
            found += rowids[: int(state[1])].tolist()
            state[1] = 0
        if status == a.OK:
            return found


def spoil(plant: Plant, rng: random.Random, rows: dict[int, tuple[int, int]]) -> None:
    """Some rows locked, gone, or with the reference of another."""
    for rowid in rng.sample(sorted(rows), 12):
        row, at = rows[rowid]
        if rng.random() < 0.4:
            plant.mem[row] = int(plant.mem[row]) | 5  # locked by a transaction
        draw = rng.random()
        if draw < 0.4:
            plant.mem[at] = int(plant.mem[rows[rng.choice(sorted(rows))][1]])
        elif draw < 0.7:
            plant.mem[row] = int(plant.mem[row]) & ~(a.STATE_MASK << a.STATE_SHIFT)


def test_pages_and_rows_of_any_state_are_judged_as_by_the_twin() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    plant = Plant()
    mem = plant.mem
    page_words = int(mem[plant.space + TS_PAGE_WORDS])
    rows = {rowid: (row, plant.reference_at(row)) for rowid, row in plant.rows.items()}
    pages = sorted({plant.reference(row) >> SLOT_BITS for row in plant.rows.values()})
    slots = int(mem[address_of(plant.fragment) + a.F_SLOTS])
    frames = {page: plant.frame(page) for page in rng.sample(pages, 12)}
    before = {place: int(mem[place]) for pair in rows.values() for place in pair}
    faults_seen = 0
    for turn in range(15):
        if turn:
            spoil(plant, rng, rows)
        marks = np.zeros(4_096, dtype=np.int64)
        proved: set[int] = set()
        for page, frame in frames.items():
            expected = naive.page_found(mem, frame, page_words, page, rows)
            faults, state, chunks, chains = judged(plant, page, marks)
            assert faults == expected.faults, f"turn {turn}, page {page}"
            assert int(state[CD_PIECES]) == expected.pieces
            pairs = chunks[: int(state[CD_CHUNKS])].reshape(-1, 2).tolist()
            assert [tuple(pair) for pair in pairs] == expected.chunks
            assert chains[: int(state[CD_CHAINS])].tolist() == expected.chains
            proved |= expected.proved
            faults_seen += len(faults)
        bits = {word * 32 + bit for word in np.flatnonzero(marks) for bit in range(32) if int(marks[word]) >> bit & 1}
        assert bits == {(rowid >> 16) * slots + (rowid & 0xFFFF) for rowid in proved}
        assert unmarked(plant, marks, rng.randrange(1, 50)) == naive.not_marked(mem, rows, proved)
        for place, word in before.items():
            mem[place] = word
    assert faults_seen > 20
