"""Kernels for entries with disk parts against their naive twins."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import backup as naive
from tidemark.engine.log.redo_layout import pack_identity
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_SPACE
from tidemark.engine.schema.row_layout import VAR_COUNT_SHIFT
from tidemark.recovery.backup import entries_layout as places
from tidemark.recovery.backup.entries_kernels import records_of_entries
from tidemark.recovery.node_restart.disk_entries_kernels import append_entries

TABLE, FRAGMENT, FIXED = 5, 3, 4


def part(rng: random.Random, is_var: bool) -> list[int]:
    words = rng.choice([1, 2, 3, 9]) if is_var else rng.choice([2, 3, 9])
    # A var part has its count of columns in the header; a disk part has zero there, and at least two words.
    return [words | (3 << VAR_COUNT_SHIFT if is_var else 0), *(rng.getrandbits(60) for _ in range(words - 1))]


def rows_of(rng: random.Random, count: int, has_var: bool) -> list[naive.Row]:
    return [
        naive.Row(
            rowid,
            rng.randrange(100),
            rng.randrange(1 << 16),
            [rng.getrandbits(62) for _ in range(FIXED)],
            part(rng, True) if has_var else [],
            part(rng, False),
        )
        for rowid in sorted(rng.sample(range(1 << 20), count))
    ]


def all_of(call: Any, size: int) -> list[int]:
    """What a kernel writes, with an array of this size as its output, called until it is done."""
    got: list[int] = []
    state, out = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64), np.zeros(size, dtype=np.int64)
    while (status := int(call(out, state))) != OK:
        assert status <= ST_SPACE and int(state[places.B_USED]) > 0
        got += out[: int(state[places.B_USED])].tolist()
        state[places.B_USED] = 0
    return got + out[: int(state[places.B_USED])].tolist()


@given(st.integers(0, 1 << 30), st.booleans(), st.booleans())
def test_entries_appended_and_made_records_equal_twins(seed: int, has_var: bool, is_newer: bool) -> None:
    rng = random.Random(seed)
    # is_newer: the table has got a var part since the definition that the reader knows.
    rows = rows_of(rng, rng.randrange(30), has_var or is_newer)
    entries = [naive.entry(row, TABLE, FRAGMENT) for row in rows]
    words = np.array([0, *(word for each in entries for word in each), 0], dtype=np.int64)
    offsets = np.cumsum([1, *(len(each) for each in entries)])[:-1].astype(np.int64) + naive.ENTRY
    shape = (FIXED, int(has_var), len(rows))
    size = rng.choice([30, 60, 500])
    got = all_of(lambda out, state: append_entries(words, offsets, *shape, out, state), size)
    assert got == [word for row in rows for word in naive.filed(row, TABLE, FRAGMENT, has_var)]
    identity = pack_identity(TABLE, FRAGMENT, 7)
    about = np.array([FIXED, int(has_var), identity, TABLE, FRAGMENT], dtype=np.int64)
    array = np.array(got, dtype=np.int64)
    made = all_of(lambda out, state: records_of_entries(array, 0, array.size, about, out, state), 40)
    plain = [naive.Row(r.rowid, r.epoch, r.author, r.fixed, r.var if has_var else [], r.disk) for r in rows]
    assert made == [word for row in plain for word in naive.record(row, identity)]
    if rows:
        state, out = np.zeros(places.BACKUP_STATE_WORDS, dtype=np.int64), np.zeros(4_000, dtype=np.int64)
        for spoiled in (array[:-1].copy(), np.concatenate([array[:2], array[2:3] ^ (1 << 16), array[3:]])):
            state[:] = 0
            assert records_of_entries(spoiled, 0, spoiled.size, about, out, state) == ST_INVARIANT
