"""Kernels of backups against their naive twins."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import backup as naive
from tidemark.engine.log.redo_layout import pack_identity
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_SPACE
from tidemark.engine.schema.row_layout import VAR_COUNT_SHIFT
from tidemark.recovery.backup import entries_kernels as k
from tidemark.recovery.backup import entries_layout as places

TABLE, FRAGMENT, SLOTS, FIXED = 5, 3, 40, 4
EMPTY = np.zeros(0, dtype=np.int64)


def part(rng: random.Random, is_var: bool) -> list[int]:
    words = rng.choice([1, 2, 3, 9]) if is_var else rng.choice([2, 3, 9])
    # A var part has its count of columns in the header; a disk part has zero there, and at least two words.
    return [words | (3 << VAR_COUNT_SHIFT if is_var else 0), *(rng.getrandbits(60) for _ in range(words - 1))]


def rows_of(rng: random.Random, count: int, has_var: bool, has_disk: bool) -> list[naive.Row]:
    slots = sorted(rng.sample(range(SLOTS * 6), count))
    return [
        naive.Row(
            (slot // SLOTS) << 16 | slot % SLOTS,
            rng.randrange(100),
            rng.randrange(1 << 16),
            [rng.getrandbits(62) for _ in range(FIXED)],
            part(rng, True) if has_var else [],
            part(rng, False) if has_disk else [],
        )
        for slot in slots
    ]


@given(st.integers(0, 1 << 30), st.booleans(), st.booleans(), st.booleans())
def test_entries_appended_checked_and_made_records_equal_twins(
    seed: int, has_var: bool, has_disk: bool, is_newer: bool
) -> None:
    rng = random.Random(seed)
    # is_newer: the table has got a var part since the definition that the backup uses.
    rows = rows_of(rng, rng.randrange(30), has_var or (is_newer and has_disk), has_disk)
    since = rng.choice([-1, 50, 98])
    entries = [naive.entry(row, TABLE, FRAGMENT) for row in rows]
    words = np.array([0, *(word for each in entries for word in each)], dtype=np.int64)
    offsets = np.cumsum([1, *(len(each) for each in entries)])[:-1].astype(np.int64) + naive.ENTRY
    live = np.zeros(rng.choice([0, 4]), dtype=np.int64)
    got: list[int] = []
    state = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64)
    out = np.zeros(rng.choice([30, 60, 500]), dtype=np.int64)
    shape = (FIXED, int(has_var), int(has_disk), since, len(rows), live, SLOTS)
    while (status := k.append_entries(words, offsets, *shape, out, state)) != OK:
        assert status <= ST_SPACE and int(state[places.B_USED]) > 0
        got += out[: int(state[places.B_USED])].tolist()
        state[places.B_USED] = 0
    got += out[: int(state[places.B_USED])].tolist()
    chosen = [row for row in rows if row.epoch > since]
    want = [word for row in chosen for word in naive.filed(row, TABLE, FRAGMENT, has_var, has_disk)]
    assert got == want
    assert (int(state[places.B_ENTRIES]), int(state[places.B_ROWS])) == (len(chosen), len(rows))
    assert live.tolist() == naive.live_map(rows, SLOTS, live.size)
    check(rng, got, has_var, has_disk, max(since, 0))
    if has_disk:
        records(rng, got, chosen, has_var)


def check(rng: random.Random, words: list[int], has_var: bool, has_disk: bool, since: int) -> None:
    """Sound entries are accepted; spoiled entries get the same verdict from the kernel and its twin."""
    shape = [FIXED, int(has_var), int(has_disk), TABLE, FRAGMENT, SLOTS, since, 99]
    for turn in range(4):
        spoiled = list(words)
        if turn and spoiled:
            at = rng.randrange(len(spoiled))
            spoiled[at] ^= 1 << rng.randrange(63)
            if turn == 3:
                del spoiled[at:]
        state = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64)
        state[places.B_ROWID] = -1
        array = np.array(spoiled, dtype=np.int64)
        wanted = np.full(rng.randrange(4), -1, dtype=np.int64)
        status = k.check_entries(array, 0, array.size, np.array(shape, dtype=np.int64), wanted, state)
        assert status == (OK if naive.is_entry_list(spoiled, shape) else ST_INVARIANT)
        assert turn or status == OK
        if status == OK:
            there = naive.live_map(naive.rows_at(spoiled, shape), SLOTS, wanted.size)
            assert (~wanted).tolist() == there


def records(rng: random.Random, words: list[int], rows: list[naive.Row], has_var: bool) -> None:
    """INSERT records of the rows whose bit is set; their bits are cleared."""
    identity = pack_identity(TABLE, FRAGMENT, 7)
    wanted = [row for row in rows if rng.random() < 0.5]
    live = np.array(naive.live_map(wanted, SLOTS, 4), dtype=np.int64)
    shape = np.array([FIXED, int(has_var), identity, TABLE, FRAGMENT, SLOTS], dtype=np.int64)
    array = np.array(words, dtype=np.int64)
    state = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64)
    out = np.zeros(40, dtype=np.int64)
    got: list[int] = []
    while (status := k.records_of_entries(array, 0, array.size, shape, live, 0, out, state)) != OK:
        assert status <= ST_SPACE
        got += out[: int(state[places.B_USED])].tolist()
        state[places.B_USED] = 0
    got += out[: int(state[places.B_USED])].tolist()
    plain = [
        naive.Row(row.rowid, row.epoch, row.author, row.fixed, row.var if has_var else [], row.disk) for row in wanted
    ]
    assert got == [word for row in plain for word in naive.record(row, identity)]
    assert not live.any()
    state[:] = 0
    if rows:  # the newest level has only rows that are wanted
        assert k.records_of_entries(array, 0, array.size, shape, live, 1, np.zeros(4_000, dtype=np.int64), state) == (
            ST_INVARIANT
        )


@pytest.mark.parametrize("rowid", [SLOTS, 4 << 16, -1, 1 << 48])
def test_row_at_a_slot_the_map_has_not_is_refused(rowid: int) -> None:
    row = naive.Row(rowid, 1, 0, [1, 2, 3, 4], [], [2, 5])
    array = np.array(naive.entry(row, TABLE, FRAGMENT), dtype=np.int64)
    shape = np.array([FIXED, 0, 0, TABLE, FRAGMENT, SLOTS], dtype=np.int64)
    live = np.full(2, -1, dtype=np.int64)
    state = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64)
    out = np.zeros(100, dtype=np.int64)
    assert k.records_of_entries(array, 0, array.size, shape, live, 1, out, state) == ST_INVARIANT


@given(st.integers(0, 1 << 30), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_entries_found_equal_twin(seed: int, has_var: bool, has_disk: bool, is_mixed: bool, is_newest: bool) -> None:
    rng = random.Random(seed)
    shapes = {TABLE: (FIXED, has_var, FRAGMENT + 1), TABLE + 1: (2, True, 2)}
    packed = np.zeros((TABLE + 2) * A.ENTRY_SHAPE_WORDS, dtype=np.int64)
    for number, shape in shapes.items():
        packed[number * A.ENTRY_SHAPE_WORDS : number * A.ENTRY_SHAPE_WORDS + 3] = shape
    rows = rows_of(rng, rng.randrange(30), has_var, has_disk)
    words = [word for row in rows for word in naive.filed(row, TABLE, FRAGMENT, has_var, has_disk)]
    if is_mixed:
        for row in rows_of(rng, 3, True, False):
            words += naive.entry(naive.Row(row.rowid, row.epoch, row.author, [1, 2], row.var, []), TABLE + 1, 1)
    kept = [row for row in rows if is_newest or rng.random() < 0.5]
    live = naive.live_map(kept, SLOTS, 4) if rng.random() < 0.7 else []
    for turn in range(4):
        spoiled = list(words)
        if turn and spoiled:
            at = rng.randrange(len(spoiled))
            spoiled[at] ^= 1 << rng.randrange(63)
            if turn == 3:
                del spoiled[at:]
        wanted = (TABLE, -1 if is_mixed else FRAGMENT, SLOTS, has_disk, is_newest)
        bits = {bit for bit in range(64 * len(live)) if live[bit // 64] >> bit % 64 & 1} if live else {-1}
        want = naive.found(spoiled, shapes, wanted, bits)
        array, left = np.array(spoiled, dtype=np.int64), np.array(live, dtype=np.int64)
        out, state = np.zeros(len(rows) + 3, dtype=np.int64), np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64)
        status = k.find_entries(array, 0, array.size, packed, np.array(wanted, dtype=np.int64), left, out, state)
        assert status == (ST_INVARIANT if want is None else OK), (seed, turn)
        if want is not None:
            assert out[: int(state[places.B_USED])].tolist() == want
            assert {bit for bit in range(left.size * 64) if int(left[bit // 64]) >> bit % 64 & 1} == bits - {-1}
            assert turn or len(want) == (len(kept) if live else len(rows))
    small = np.zeros(0, dtype=np.int64)
    array, state[:] = np.array(words, dtype=np.int64), 0
    wanted_words = np.array((*wanted[:4], 0), dtype=np.int64)
    status = k.find_entries(array, 0, array.size, packed, wanted_words, EMPTY, small, state)
    assert status == (ST_SPACE if rows else OK)
