"""Blocks of load files, read with every length checked."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.load.support import NAME, batch, columns, rows
from tidemark.engine.log.load_arena_layout import (
    LR_AT,
    LR_RECORD,
    LR_ROWID,
    LR_WORDS,
    LS_RECORD,
    LS_ROWS,
    LS_USED,
    LS_WORDS,
)
from tidemark.engine.log.load_blocks import InvalidRecords, RecordPacker, Surveyor
from tidemark.engine.log.load_kernels import add_pages, pack_rows_of_file, survey_block
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_PARTITION
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition_words import KEY_ROOM_WORDS
from tidemark.engine.store.load_shape import LoadShape

KEY = np.zeros(KEY_ROOM_WORDS, dtype=np.int64)


def packed(shape: LoadShape, fragment: int, count: int, first: int = 0) -> tuple[Any, int, int]:
    """A block of rows, the first word of its records, and the word after them."""
    on_disk = shape.format.has_disk
    encoded = encode_rows(shape.format, batch(rows(0, count), on_disk))
    block = np.zeros(1 << 18, dtype=np.int64)
    state = np.zeros(LS_WORDS, dtype=np.int64)
    state[LS_USED], state[LS_ROWS] = 16, first
    offsets = np.zeros(0, dtype=np.int64) if encoded.stride_words else encoded.offsets
    order = np.zeros(0, dtype=np.int64)
    assert pack_rows_of_file(shape.words(fragment), encoded.images, offsets, order, 0, count, block, state) == count
    assert state[LS_ROWS] == first + count and 16 <= state[LS_RECORD] < state[LS_USED]
    return block, 16, int(state[LS_USED])


def listed(block: Any, start: int, stop: int, slots: int, first: int) -> list[tuple[int, int, int]]:
    """The naive twin for blocks that are sound: (image, ROWID, record) of each row, by the sizes of its values."""
    found, at, row = [], start, first
    while at < stop:
        size, count, rowid = int(block[at]) >> 16, int(block[at + 2]) >> 48, int(block[at + 2]) & (1 << 48) - 1
        assert rowid == row // slots << 16 | row % slots
        found += [(-1, rowid + place, at) for place in range(count)]
        row += count
        at += size
    return found


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_any_rows_are_listed_and_any_changed_word_is_refused_as_the_twin_says(
    seed: int, on_disk: bool
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    definition = TableDefinition(7, 1, NAME, tuple(columns(on_disk)), ("id",), tm.HashPartition(1))
    shape = LoadShape(definition)
    first = rng.choice([0, shape.slots - 3, 5 * shape.slots + 31])
    count = rng.randrange(1, 250)
    block, start, stop = packed(shape, 0, count, first)
    out = np.zeros((stop + 1) * LR_WORDS, dtype=np.int64)

    def survey(words: Any, until: int = stop, last: int = first + count) -> int:
        return int(survey_block(shape.words(0), shape.hash_header, words, start, until, first, last, out, KEY))

    assert survey(block) == count
    want = listed(block, start, stop, shape.slots, first)
    table = out[: count * LR_WORDS].reshape(-1, LR_WORDS)
    assert [(int(each[LR_ROWID]), int(each[LR_RECORD])) for each in table] == [each[1:] for each in want]
    keys = [int(block[int(each[LR_AT])]) for each in table]
    assert keys == list(range(count))
    assert survey(block, last=first + count - 1) == ST_INVARIANT
    assert survey(block, until=stop - 1) == ST_INVARIANT
    heads = sorted({each[2] for each in want})
    for _ in range(300):
        at = rng.choice(heads) + rng.randrange(4) if rng.random() < 0.7 else rng.randrange(start, stop)
        harmed = block.copy()
        harmed[at] ^= 1 << rng.randrange(63)
        status = survey(harmed)
        if at - 0 in heads or at - 1 in heads or at - 2 in heads or at - 3 in heads:
            assert status < 0, f"word {at} of a record"
        else:
            assert status in (count, ST_INVARIANT, ST_PARTITION)
    other = LoadShape(TableDefinition(7, 1, NAME, tuple(columns(on_disk)), ("id",), tm.HashPartition(64)))
    block, start, stop = packed(other, 1, 200)
    out = np.zeros((stop + 1) * LR_WORDS, dtype=np.int64)
    status = survey_block(other.words(1), other.hash_header, block, start, stop, 0, 200, out, KEY)
    assert status == ST_PARTITION
    # Pages are charged to every record, and to nothing else.
    moved = block.copy()
    assert add_pages(moved, start, stop, 9) == OK
    changed = np.flatnonzero(moved != block)
    assert set(changed.tolist()) == {each[2] + 2 for each in listed(block, start, stop, other.slots, 0)}
    assert set((moved - block)[changed].tolist()) == {9 << 16}
    moved[start] = 3
    assert add_pages(moved, start, stop, 9) == ST_INVARIANT


def test_row_larger_than_a_block_gets_a_block_of_its_own_and_every_row_is_listed_again() -> None:
    shape = LoadShape(TableDefinition(7, 1, NAME, tuple(columns()), ("id",), tm.HashPartition(1)))
    made = rows(0, 60)
    made[20] = (20, "long@example.com", 1, "t" * 3_000, b"c" * 3_000)
    encoded = encode_rows(shape.format, batch(made))
    packer, surveyor = RecordPacker(shape.words(0), 512), Surveyor()
    header, order = shape.hash_header, np.arange(59, -1, -1, dtype=np.int64)
    at, done, keys, sizes = 0, 0, [], []
    while at < 60:
        at = packer.append(encoded.images, encoded.offsets, order, at, 60)
        unit, stop = packer.unit(), 16 + packer.records_words
        assert packer.rows == at and not unit[:16].any() and not unit[stop:].any()
        listed = surveyor.rows_of(shape.words(0), header, unit, 16, stop, done, 60).reshape(-1, LR_WORDS)
        keys += unit[listed[:, LR_AT]].tolist()
        sizes.append(unit.size)
        done = at
        unit[16] ^= 1
        with pytest.raises(InvalidRecords):
            surveyor.rows_of(shape.words(0), header, unit, 16, stop, 0, 60)
        packer.clear()
    assert keys == order.tolist()
    assert set(sizes) == {512, 1_024} and sizes == sorted(sizes), "a block that has grown stays large"
