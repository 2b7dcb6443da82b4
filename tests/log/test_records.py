"""The helpers through which kernels read records of the log, against a twin on lists that ends where the records do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.naive import records as naive
from tests.seeds import fresh_seeds
from tidemark.engine.jit.kernel import kernel
from tidemark.engine.log import records
from tidemark.engine.log.records_kernels import (
    author_of,
    fragment_of,
    is_operation,
    place_of,
    record_at,
    record_flags,
    record_has_var,
    rows_of,
    transaction_at,
)
from tidemark.engine.log.redo_layout import KIND_INSERT, KIND_MAX, KIND_SCHEMA, pack_kind
from tidemark.engine.memory.arena import Arena, address_of
from tidemark.engine.memory.arena_layout import F_VAR_SINCE
from tidemark.engine.rows.lcp_kernels import checked_disk_words
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.table.table import Table

COLUMNS = (tm.Column("id", tm.Int64), tm.Column("text", tm.Text))
TABLE = 2  # 1 is dropped
VAR_SINCE = 3
SENTINEL = pack_kind(KIND_INSERT, 0xFF, 4)  # after the last word: a helper that reads it finds a record


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def read_alone(mem, tables, words, at, stop, out):  # type: ignore[no-untyped-def]
    kind, size = record_at(words, at, stop)
    out[0] = kind
    out[1] = size
    out[2], out[3] = transaction_at(words, at, stop)
    out[4] = checked_disk_words(words, at, stop)
    if size < 0 or not is_operation(kind):
        return 0
    out[5], out[6] = place_of(words[at + 1])
    out[7], out[8] = rows_of(words, at, kind)
    out[9] = author_of(words, at)
    out[10] = record_flags(words, at)
    out[11] = fragment_of(mem, tables, words[at + 1])
    out[12] = record_has_var(mem, out[11], words[at + 1]) if out[11] > 0 else 0
    return 1


def any_words(rng: random.Random) -> list[int]:
    """Return words that begin like a record, most of them like an operation of a table that is there."""
    kind = rng.choice([naive.INSERT, naive.INSERT, naive.DELETE, rng.randrange(KIND_MAX + 3), rng.randrange(256)])
    size = rng.choice([4, 5, rng.randrange(12), rng.getrandbits(47), -1])
    identity = rng.choice([1, TABLE, TABLE, TABLE, 3, 1 << 31]) | rng.choice([0, 1, 1, 2, 4_095]) << 32
    rows = rng.choice([0, 7, 0xFFFF, rng.getrandbits(48)]) | rng.choice([0, 1, 2, 2_047, rng.getrandbits(15)]) << 48
    words = [pack_kind(kind, rng.randrange(256), size), identity | rng.randrange(6) << 44, rows]
    words += [rng.getrandbits(64) - (1 << 63) for _ in range(9)]
    if rng.randrange(4) == 0:
        words[rng.randrange(4)] = rng.choice([0, -1, words[3], pack_kind(naive.TRANSACTION, 0, size)])
    if kind == naive.TRANSACTION:
        words[4] = pack_kind(rng.randrange(KIND_MAX + 3), 0, 4)
    return words[: rng.randrange(1, 12)]


@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(2)])
def test_any_words_are_read_as_by_the_twin_and_none_past_their_end(seed: int) -> None:
    rng = random.Random(seed)
    arena = Arena(4 << 20, 1 << 20)
    made = Table(arena, TableDefinition(TABLE, 1, "t", COLUMNS, ("id",), tm.HashPartition(2)), 7, None, None)
    tables = np.array([0, 0, made.handle], dtype=np.int64)
    fragments = [address_of(each) for each in made.fragments]
    arena.mem[np.array(fragments) + F_VAR_SINCE] = VAR_SINCE
    seen: dict[str, int] = {}
    for _ in range(20_000):
        words, at = any_words(rng), rng.randrange(3)
        count = len(words)
        array = np.full(at + count + 64, SENTINEL, dtype=np.int64)
        array[at : at + count] = words
        out = np.full(16, -9, dtype=np.int64)
        is_read = bool(read_alone(arena.mem, tables, array, at, at + count, out))
        record, transaction, disk = naive.record_of(words), naive.transaction_of(words), naive.disk_words_of(words)
        assert out[0] == words[0] % 256 and out[1] == (record[1] if record else -1), (seed, words)
        assert out[2:4].tolist() == ([at + transaction[0], transaction[1]] if transaction else [-1, 0]), (seed, words)
        assert out[4] == (disk or -1), (seed, words)
        assert is_read == (record is not None and record[0] in (naive.INSERT, naive.UPDATE, naive.DELETE))
        name = "none" if record is None else "operation" if is_read else "other"
        if is_read:
            name = compare(words, out, fragments)
        seen[name] = seen.get(name, 0) + 1
    assert (
        min(seen.get(name, 0) for name in ("none", "other", "dropped", "never", "past", "old", "new", "no rows")) > 10
    ), seen


def compare(words: list[int], out: Any, fragments: list[int]) -> str:
    """Compare an operation with the twin's; return what was special about it."""
    twin = naive.operation_of(words)
    assert out[5:11].tolist() == [
        twin.table,
        twin.fragment,
        twin.rowid,
        -1 if twin.rows is None else twin.rows,
        twin.author,
        twin.flags,
    ]
    if twin.table > TABLE:
        assert out[11] == -1
        return "never"
    if twin.table < TABLE:
        assert out[11] == 0
        return "dropped"
    if twin.fragment >= len(fragments):
        assert out[11] == -1
        return "past"
    assert out[11] == fragments[twin.fragment]
    assert out[12] == (twin.version >= VAR_SINCE)
    return "no rows" if twin.rows is None else "new" if out[12] else "old"


def all_of(listed: Any) -> tuple[list[records.Frame], int]:
    """Return the frames that a listing yields, and the offset at which it ends with an invalid record."""
    found = []
    try:
        for frame in listed:
            found.append(frame)
    except records.InvalidRecord as error:
        return found, error.at
    return found, -1


@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(2)])
def test_frames_of_any_records_are_listed_as_by_the_twin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    invalid = 0
    for _ in range(400):
        monkeypatch.setattr(records, "FRAMES_AT_ONCE", rng.choice([1, 2, 7, 4_096]))
        words = [0] * 3
        for _ in range(rng.randrange(12)):
            kind, size = rng.choice([KIND_SCHEMA, rng.randrange(KIND_MAX + 1)]), rng.randrange(4, 9)
            head = [pack_kind(naive.TRANSACTION, 0, 4 + size), 7, 1, 0] if rng.randrange(9) else []
            words += [*head, pack_kind(kind, 0, size), *([0] * (size - 1))]
        if rng.randrange(3) == 0:
            words[rng.randrange(len(words))] = rng.choice([0, -1, pack_kind(naive.TRANSACTION, 0, 9)])
        array = np.array(words + [SENTINEL] * 20, dtype=np.int64)
        assert all_of(records.frames(array, 3, len(words))) == naive.frames_of(words, 3), (seed, words)
        expected, at = naive.transactions_of(words, 3)
        assert all_of(records.transactions(array, 3, len(words))) == (expected, at), (seed, words)
        schema = [each for each in expected if each[1] == KIND_SCHEMA]
        assert all_of(records.transactions(array, 3, len(words), KIND_SCHEMA)) == (schema, at), (seed, words)
        invalid += at >= 0
    assert 40 < invalid < 390
