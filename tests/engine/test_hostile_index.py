"""Keys chosen against the primary index and unique indexes (F113): probes and growth are counted, not timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.engine.hash_shape import Shape, shape_of
from tests.engine.hostile_keys import Words, colliding_words
from tests.engine.pool_words import requests
from tests.store.support import SMALL, open_memory
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.index.index_layout import I_UNIQUE
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.hostile"
OPTIONS: dict[str, Any] = {"data_memory": "256 MiB", "redo_log": "128 MiB", "transaction_memory": "64 MiB"}
PAIRS = 16
COLUMNS = PAIRS // 4 * 8
COUNT = 100_000


def hostile_keys() -> Words:
    """100,000 keys of 32 words, of two families in which half of all pairs collide in xxh64, whatever the seed."""
    keys = np.concatenate([colliding_words(PAIRS, base) for base in (0, 1 << 40)])[:COUNT]
    return np.ascontiguousarray(keys)


def made(primary: bool) -> Any:
    db: Any = open_memory(**OPTIONS)
    names = [f"k{number}" for number in range(COLUMNS)]
    columns = [*(tm.Column(name, tm.Int64) for name in names), tm.Column("id", tm.Int64)]
    db.create_table(NAME, columns, names if primary else "id", tm.HashPartition(1))
    if not primary:
        db.create_index(NAME, "hostile", names, unique=True)
    return db


def insert_all(db: Any, keys: Words) -> int:
    """Insert rows with these keys; return how often memory was requested."""
    before = requests(db.parts.store.arena)
    for first in range(0, len(keys), 20_000):
        some = keys[first : first + 20_000]
        arrays = [*some.T.copy(), np.arange(first, first + len(some))]
        db[NAME].insert_many(pa.table([pa.array(each) for each in arrays], names=[*names_of(db)]))
    return requests(db.parts.store.arena) - before


def names_of(db: Any) -> list[str]:
    return [column.name for column in db[NAME].definition.columns]


def shape(db: Any, primary: bool) -> Shape:
    store = db.parts.store
    table = store.tables.named(NAME)
    if primary:
        return shape_of(store.mem, address_of(table.fragments[0]))
    (index,) = table.listed_indexes()
    return shape_of(store.mem, int(store.mem[address_of(index.tree.handle) + I_UNIQUE]))


@pytest.mark.parametrize("primary", [True, False], ids=["primary index", "unique index"])
def test_keys_that_collided_under_any_seed_cost_what_other_keys_cost(primary: bool) -> None:
    """Story: see `test_keys_that_collide_in_xxh64_under_any_seed_do_not_collide`. Each key of such a class made the
    index split its segment once more, to the last bit there is, and went to the overflow list, which takes 512.
    """
    hostile, harmless = made(primary), made(primary)
    keys = hostile_keys()
    rng = np.random.default_rng(20_261_124)
    others = rng.integers(-(2**62), 2**62, size=keys.shape, dtype=np.int64)
    takes, usual = insert_all(hostile, keys), insert_all(harmless, others)
    found, expected = shape(hostile, primary), shape(harmless, primary)
    assert found.entries == expected.entries == COUNT
    assert found.probe_entries <= 2 * a.BUCKET_WORDS + 4, found
    assert found.depth <= expected.depth + 1 and found.segments < 2 * expected.segments, (found, expected)
    assert takes < 1.2 * usual, "growth asked for memory more often than for harmless keys"
    some = [tuple(key) for key in keys[:: COUNT // 50].tolist()]
    index = {} if primary else {"index": "hostile"}
    assert all(hostile[NAME].get(key, **index) is not None for key in some)


def test_two_stores_have_seeds_of_their_own_and_keep_them() -> None:
    """The index is made anew at each opening, with the seed that the store drew when it was made."""
    seeds = set()
    for number in range(2):
        files = MemoryFiles()
        db = Database(files, Options.from_keywords(SMALL), ManualClock(number))
        db.create_table(NAME, [tm.Column("id", tm.Int64)], "id")
        db[NAME].insert((1,))
        seed = db.parts.store.tables.seed
        fragment = address_of(db.parts.store.tables.named(NAME).fragments[0])
        assert int(db.parts.store.mem[fragment + a.F_INDEX_SEED]) == seed
        db.close()
        again = open_memory(MemoryFiles.from_snapshot(files.snapshot()))
        assert again.parts.store.tables.seed == seed and again[NAME].get(1) is not None
        check_arena(again)
        seeds.add(seed)
    assert len(seeds) == 2 and 0 not in seeds
