"""Kernels of the UNDO log against their naive twins, and on words that are no records."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.naive import undo as naive
from tidemark.engine.disk import cache_layout as d
from tidemark.engine.disk import undo_kernels as k
from tidemark.engine.disk.disk_layout import UNDO_ALLOC, UNDO_CREATE, UNDO_FREE, UNDO_RESTART, UNDO_UPDATE
from tidemark.engine.memory.arena_layout import OK, S_UNDO, ST_INVARIANT, ST_SPACE, ST_UNDO, X_UNDO_WORDS

AT = 256
SIZE = 400


def memory(buffer_words: int = SIZE, free: int = 50_000) -> np.ndarray:
    mem = np.zeros(AT + k.undo_region_words(buffer_words) + 8, dtype=np.int64)
    mem[-8:] = -1
    k.setup_undo(mem, AT, buffer_words)
    mem[AT + d.U_FREE] = free
    mem[AT + d.U_LSN] = 8
    return mem


@pytest.mark.parametrize("seed", range(8))
def test_reservations_and_records_of_any_sequence_equal_twin(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    mem, twin = memory(free=6_000), naive.Buffer(SIZE, 6_000, 8)
    for _ in range(400):
        transaction = 64 + 32 * rng.randrange(3)
        step = rng.randrange(5)
        if step == 0:
            words = rng.randrange(200)
            assert (k.reserve_undo(mem, transaction, words) == OK) == twin.promise(transaction, words)
        elif step == 1:
            assert k.release_undo(mem, transaction) == OK
            twin.promised[transaction] = 0
        elif step == 2 and rng.random() < 0.3:  # as a flush takes the buffer away
            mem[AT + d.U_USED] = 0
            twin.words = []
        elif step == 3:
            values = [rng.getrandbits(40) for _ in range(4)]
            assert k.append_undo_mark(mem, UNDO_CREATE, *values) == twin.append(UNDO_CREATE, values)
        else:
            source = np.array([rng.getrandbits(62) for _ in range(20)], dtype=np.int64)
            start, words = rng.randrange(10), rng.randrange(1, 10)
            place = [rng.getrandbits(60), rng.getrandbits(40), rng.getrandbits(40)]
            values = [*place, *source[start : start + words].tolist()]
            is_full = len(twin.words) + 2 + len(values) > SIZE - k.MARK_ROOM_WORDS
            expected = -1 if is_full else twin.append(UNDO_UPDATE, values)
            assert k.append_undo(mem, UNDO_UPDATE, *place, source, start, words) == expected
        used = int(mem[AT + d.U_USED])
        active = int(mem[AT + d.U_ACTIVE])
        assert mem[active : active + used].tolist() == twin.words
        assert (mem[AT + d.U_LSN], mem[AT + d.U_FREE]) == (twin.lsn, twin.free)
        assert mem[AT + d.U_RESERVED] == sum(twin.promised.values())
        assert mem[AT + d.U_RECORDS] == twin.records
    assert not mem[AT + d.UNDO_WORDS + SIZE : -8].any() and (mem[-8:] == -1).all(), "nothing after the active buffer"


def test_reservation_without_a_log_is_refused_and_released_harmlessly() -> None:
    mem = memory()
    mem[S_UNDO] = 0
    assert k.reserve_undo(mem, 64, 10) == ST_UNDO
    assert k.release_undo(mem, 64) == OK
    assert mem[64 + X_UNDO_WORDS] == 0
    assert k.append_undo(mem, UNDO_ALLOC, 1, 2, 3, np.zeros(1, dtype=np.int64), 0, 0) == -1
    assert k.append_undo_mark(mem, UNDO_CREATE, 1, 0, 0, 0) == -1


def test_record_outside_its_source_or_the_buffer_writes_nothing() -> None:
    mem = memory()
    source = np.arange(500, dtype=np.int64)
    before = mem.copy()
    for start, words in [(-1, 3), (0, 501), (499, 2), (0, -1), (0, SIZE), (0, 1 << 40)]:
        assert k.append_undo(mem, UNDO_UPDATE, 1, 2, 3, source, start, words) == -1
    assert (mem == before).all()


def any_records(rng: random.Random, count: int) -> list[int]:
    words: list[int] = []
    lsn = 8
    for _ in range(count):
        kind = rng.randrange(1, 8)
        extra = 0 if kind == UNDO_ALLOC else 1 if kind > UNDO_FREE else rng.randrange(1, 9)
        record = [kind | (5 + extra) << 16, lsn, *(rng.randrange(20) for _ in range(3 + extra))]
        lsn += 8 * len(record) + 8 * rng.randrange(3)
        words += record
    return words


@pytest.mark.parametrize("seed", range(60))
def test_filter_and_parser_of_any_words_equal_twin(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    start = rng.randrange(30)
    words = [rng.randrange(-5, 5) for _ in range(start)] + any_records(rng, rng.randrange(30))
    stop = len(words)
    words += [7] * rng.randrange(10)
    if seed % 2 and stop > start:  # damage
        at = rng.randrange(start, stop)
        words[at] = rng.choice([0, -1, words[at] ^ 1 << rng.randrange(62), -(2**63), 2**63 - 1])
    array = np.array(words, dtype=np.int64)
    offsets, state = np.zeros(40, dtype=np.int64), np.full(5, 99, dtype=np.int64)
    parsed = naive.parsed(words, start, stop)
    found = k.parse_records(array, start, stop, offsets)
    assert found == (ST_INVARIANT if parsed is None else len(parsed))
    if parsed is not None:
        assert offsets[:found].tolist() == parsed
        if parsed:
            assert k.parse_records(array, start, stop, offsets[: len(parsed) - 1]) == ST_SPACE
    restorable = rng.randrange(-1, 21)
    expected = naive.filtered(words, start, stop, restorable)
    status = k.filter_records(array, start, stop, restorable, state)
    assert status == (ST_INVARIANT if expected is None else OK)
    if expected is not None:
        kept, dropped = expected
        flat = [word for record in kept for word in record]
        newest = max((record[4] for record in dropped), default=0)
        lost = sum(len(record) for record in dropped)
        assert state.tolist() == [len(flat), len(kept), len(dropped), newest, lost]
        assert array[start : start + len(flat)].tolist() == flat
    assert array[:start].tolist() == words[:start] and array[stop:].tolist() == words[stop:]


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (0, 11), (-5, 20)])
def test_filter_and_parser_outside_the_array_touch_nothing(start: int, stop: int) -> None:
    array, state = np.zeros(10, dtype=np.int64), np.zeros(5, dtype=np.int64)
    assert k.parse_records(array, start, stop, state) == ST_INVARIANT
    assert k.filter_records(array, start, stop, 1, state) == ST_INVARIANT
    assert k.filter_records(array, 0, 10, 1, state[:4]) == ST_INVARIANT


def test_last_kind_is_a_record_and_the_next_number_is_none() -> None:
    array, offsets = np.zeros(6, dtype=np.int64), np.zeros(4, dtype=np.int64)
    array[0] = UNDO_RESTART | 6 << 16
    assert k.parse_records(array, 0, 6, offsets) == 1
    array[0] += 1
    assert k.parse_records(array, 0, 6, offsets) == ST_INVARIANT
